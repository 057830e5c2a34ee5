"""The one-loop oracle against upstream's generation: step logits, greedy songs, kept probabilities."""

from functools import cache

import pytest
import torch
from golden.compare import EXACT, Deviation, largest, n_different
from golden.lm_golden import N_ITEMS, WINDOW, conditioning, item, model, pad_id, prompt, tensors

from levo.model.oracle import Generated, Rules, generate, greedy, kept_probabilities

N_LOGITS = 12  # decode steps whose logits are in the golden files
# The smallest gap between the two highest logits of any greedy step is 0.0075 (meta.json), 75 times the bound on
# logits: so the greedy ids must be equal one by one.


@cache
def song(j: int) -> Generated:
    rules = Rules(cfg=model().config.cfg_coef, window=WINDOW)
    return generate(model(), conditioning(j), prompt(j), pad_id(), 40, greedy, rules, N_LOGITS)


@pytest.mark.parametrize("name", ["cond", "uncond", "cfg", "final"])
@pytest.mark.parametrize("j", range(N_ITEMS))
def test_step_logits(j: int, name: str, deviation: Deviation) -> None:
    found = torch.stack([getattr(step, name) for step in song(j).logits])
    deviation(f"lm.step_logits_{name}.item{j}", largest(found, item(j, f"step_logits_{name}")))


@pytest.mark.parametrize("j", range(N_ITEMS))
def test_greedy_song_is_upstreams_id_by_id(j: int, deviation: Deviation) -> None:
    for name, ids in (("greedy_fed", song(j).fed), ("greedy_sampled", song(j).sampled),
                      ("greedy_tokens_raw", song(j).raw), ("greedy_tokens_cut", song(j).cut)):  # fmt: skip
        wanted = item(j, name)[0]
        deviation(f"lm.{name}.item{j} ids", n_different(torch.from_numpy(ids), wanted), EXACT)


@cache
def replayed() -> Generated:
    """Item 2 with temperature 0.8 and top-k 10: the draws are upstream's own, everything else is ours."""
    sampled = tensors("sampled")["sampled"][0].long()
    rules = Rules(cfg=model().config.cfg_coef, window=WINDOW)
    return generate(model(), conditioning(2), prompt(2), pad_id(), 40, lambda logits, step: sampled[:, step], rules, 24)


def test_sampled_song_is_upstreams_when_its_draws_are_replayed(deviation: Deviation) -> None:
    golden = tensors("sampled")
    for name, ids in (("fed", replayed().fed), ("tokens_raw", replayed().raw), ("tokens_cut", replayed().cut)):
        deviation(f"lm.sampled.{name} ids", n_different(torch.from_numpy(ids), golden[name][0]), EXACT)


def test_logits_over_temperature_of_the_sampled_song(deviation: Deviation) -> None:
    found = torch.stack([step.final for step in replayed().logits]) / 0.8
    deviation("lm.sampled.logits_over_temp", largest(found, tensors("sampled")["logits_over_temp"]))


def test_kept_probabilities_of_the_sampled_song(deviation: Deviation) -> None:
    golden = tensors("sampled")
    final = torch.stack([step.final for step in replayed().logits]) / 0.8
    codebook0 = kept_probabilities(final[:, 0], 10)
    codebooks12 = kept_probabilities(final[:, 1:], 1)
    assert ((codebook0 > 0) == (golden["kept_probs_cb0"] > 0)).all()
    deviation("lm.sampled.kept_probs_cb0", largest(codebook0, golden["kept_probs_cb0"]))
    deviation("lm.sampled.kept_probs_cb12", largest(codebooks12, golden["kept_probs_cb12"]))
