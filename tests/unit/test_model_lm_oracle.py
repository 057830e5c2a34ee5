"""The rules of the one-loop oracle, each on its own, with scripted choices."""

import numpy as np
import torch
from torch import Tensor
from unit.test_model_lm import small_lm

from levo.model.oracle import (
    Choose,
    Generated,
    Rules,
    banned,
    cut_at_eos,
    drawn,
    generate,
    greedy,
    kept_probabilities,
    penalized,
    teacher_forced,
)
from levo.model.prefix import prefix
from levo.songs.text import Conditioning, TextIds

PAD, EOS, SPECIAL, CODES = 50, 64, 65, 64
TEXT = Conditioning(TextIds((51, 53, 7), (0, 1, 1), (51, 9)), TextIds((51,), (0,), (51,)))


def scripted(ids: list[list[int]]) -> Choose:
    """Ids of decode step i for every codebook; the last ones for ever."""
    return lambda logits, step: torch.tensor(ids[min(step, len(ids) - 1)])


def run(choose: Choose, max_frames: int = 8, rules: Rules = Rules(), record: int = 0) -> Generated:  # noqa: B008
    return generate(small_lm(), TEXT, None, PAD, max_frames, choose, rules, record)


def test_penalty_divides_each_id_of_the_window_once_and_raises_negative_logits() -> None:
    logits = torch.full((3, CODES + 1), 2.0)
    logits[1] = -2.0
    history = np.array([[1, 5, 5], [1, 6, 6], [1, EOS, SPECIAL]])
    found = penalized(logits, history, Rules(penalty=2.0, window=2), CODES)
    assert found[0, 5] == 1.0 and found[0, 1] == 2.0  # once for two of them; step 1 is out of the window
    assert found[1, 6] == -1.0  # QUIRK
    assert (found[2] == 2.0).all()  # neither EOS nor SPECIAL
    assert logits[0, 5] == 2.0


def test_window_0_is_the_whole_history_and_no_history_is_no_penalty() -> None:
    logits = torch.ones(3, CODES + 1)
    history = np.arange(9).reshape(3, 3)
    assert (penalized(logits, history, Rules(window=0), CODES)[0, :3] < 1).all()
    assert torch.equal(penalized(logits, history[:, :0], Rules(), CODES), logits)


def test_ban_list_is_the_audio_codes_of_the_prompts_codebook_0() -> None:
    assert banned(np.array([[7, 3, 7, EOS, SPECIAL], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]]), CODES).tolist() == [3, 7]
    assert banned(None, CODES).tolist() == []


def test_ban_holds_at_every_step_in_codebook_0_only() -> None:
    prompt = np.array([[7, 3], [1, 1], [2, 2]])
    found = generate(small_lm(), TEXT, prompt, PAD, 4, scripted([[0, 0, 0]]), Rules(), 9)
    for step in found.logits:
        assert step.final.isinf().nonzero().tolist() == [[0, 3], [0, 7]]
        assert step.cfg.isfinite().all()


def test_unfilled_cells_are_special_and_an_eos_drawn_there_does_not_count() -> None:
    """Codebooks 1 and 2 start 5 steps later; codebook 0 has nothing in the last 5 steps."""
    found = run(scripted([[1, EOS, EOS]] * 5 + [[2, 3, 4]]))
    assert found.fed.shape == (3, 8 + 5)
    assert found.fed[0].tolist() == [SPECIAL] + [1] * 5 + [2] * 3 + [SPECIAL] * 4
    assert found.fed[1].tolist() == [SPECIAL] * 6 + [3] * 7
    assert found.raw[2].tolist() == [4] * 8 and found.cut.shape == (3, 8)
    assert found.sampled[:, 0].tolist() == [1, EOS, EOS]


def test_after_its_eos_a_codebook_is_special_and_all_ended_stops_the_loop() -> None:
    found = run(scripted([[1, 1, 1], [1, 1, 1], [EOS, 1, 1], [9, 1, 1], [9, 1, 1], [9, 1, EOS], [9, EOS, 9]]))
    assert found.sampled.shape == (3, 7)
    assert found.raw[0].tolist() == [1, 1, EOS] + [SPECIAL] * 5
    assert found.raw[1].tolist() == [1, EOS] + [SPECIAL] * 6
    assert found.raw[2].tolist() == [EOS] + [SPECIAL] * 7
    assert found.cut.shape == (3, 0)


def test_song_is_cut_at_the_earliest_eos_of_any_codebook() -> None:
    raw = np.array([[1, 2, 3, EOS], [1, 2, EOS, SPECIAL], [1, 2, 3, 4]])
    assert cut_at_eos(raw, EOS).tolist() == [[1, 2], [1, 2], [1, 2]]
    assert cut_at_eos(raw[:, :2], EOS).shape == (3, 2)


def test_cached_steps_equal_the_whole_forward() -> None:
    """Bound: float32 products of 1 row against those of 42 + 13 rows, as in the golden numbers."""
    lm = small_lm()
    found = run(greedy, record=13)

    for row, text in (("cond", TEXT.cond), ("uncond", TEXT.uncond)):
        whole = teacher_forced(lm, prefix(lm, text, None, PAD), found.fed).logits  # [3, N, C+1]
        steps = torch.stack([getattr(step, row) for step in found.logits], dim=1)
        assert torch.allclose(steps, whole[:, : steps.shape[1]], atol=1e-4)


def test_top_k_keeps_the_ties_of_the_kth() -> None:
    logits = torch.tensor([3.0, 1.0, 2.0, 2.0, 2.0, 0.0])
    kept = kept_probabilities(logits, 2)
    assert (kept > 0).tolist() == [True, False, True, True, True, False]
    assert torch.isclose(kept.sum(), torch.tensor(1.0)) and kept[2] == kept[3] == kept[4]
    assert (kept_probabilities(logits, 99) > 0).all()


def test_draw_stays_within_top_k_and_is_greedy_in_codebooks_1_and_2() -> None:
    torch.manual_seed(0)
    logits: Tensor = torch.randn(3, CODES + 1)
    choose = drawn(1.0, 4, torch.Generator().manual_seed(0))
    ids = torch.stack([choose(logits, i) for i in range(200)])
    assert set(ids[:, 0].tolist()) == set(logits[0].topk(4).indices.tolist())
    assert (ids[:, 1:] == logits[1:].argmax(-1)).all()
