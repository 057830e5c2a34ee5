"""Prefixes, hidden states and logits of one whole forward against upstream's, float32."""

import numpy as np
import pytest
import torch
from golden.compare import EXACT, Deviation, largest, n_different
from golden.lm_golden import N_ITEMS, item, model, pad_id, prompt, row_text, tensors

from levo.model import pattern
from levo.model.oracle import Forward, guided, teacher_forced
from levo.model.prefix import prefix, prompt_rows

# A prefix is looked up and added once, the same float32 operation in every implementation: so it must be EXACT.


@pytest.mark.parametrize("j", range(N_ITEMS))
def test_prompt_rows_start_with_eos_unless_absent(j: int, deviation: Deviation) -> None:
    config = model().config
    wanted = item(j, "prompt_codes")
    deviation(f"lm.prompt_rows.item{j}.cond ids", n_different(prompt_rows(config, prompt(j)), wanted[0]), EXACT)
    deviation(f"lm.prompt_rows.item{j}.uncond ids", n_different(prompt_rows(config, None), wanted[1]), EXACT)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("j", [0, 1])
def test_prefix_of_both_streams(j: int, row: int, deviation: Deviation) -> None:
    main, sub = prefix(model(), row_text(j, row), prompt(j) if row == 0 else None, pad_id())
    deviation(f"lm.prefix_main.item{j}.row{row}", largest(main, item(j, "prefix_main")[row]), EXACT)
    deviation(f"lm.prefix_sub.item{j}.row{row}", largest(sub, item(j, "prefix_sub")[row]), EXACT)


@pytest.fixture(scope="module")
def rows() -> tuple[Forward, Forward]:
    """Conditional and unconditional row of item 1 over the golden sequence."""
    sequence = tensors("teacher_forced")["sequence"][0].numpy()
    found = []
    for row in (0, 1):
        prefixes = prefix(model(), row_text(1, row), prompt(1) if row == 0 else None, pad_id())
        found.append(teacher_forced(model(), prefixes, sequence))
    return found[0], found[1]


def test_sequence_is_the_delayed_codes(deviation: Deviation) -> None:
    golden, config = tensors("teacher_forced"), model().config
    sequence, _ = pattern.build(golden["codes"].numpy(), config.delays, config.special)
    deviation("lm.teacher_forced.sequence ids", n_different(torch.from_numpy(sequence), golden["sequence"]), EXACT)


def test_hidden_states(rows: tuple[Forward, Forward], deviation: Deviation) -> None:
    golden = tensors("teacher_forced")
    hidden = torch.stack([row.main_hidden for row in rows])
    deviation("lm.teacher_forced.main_hidden", largest(hidden, golden["main_hidden"]))
    deviation("lm.teacher_forced.sub_input", largest(rows[0].sub_input, golden["sub_input"][0]))
    deviation("lm.teacher_forced.sub_hidden", largest(rows[0].sub_hidden, golden["sub_hidden"][0]))


def test_logits_of_both_rows_and_their_guided_mix(rows: tuple[Forward, Forward], deviation: Deviation) -> None:
    golden = tensors("teacher_forced")
    mixed = guided(rows[0].logits, rows[1].logits, model().config.cfg_coef)
    deviation("lm.teacher_forced.logits_cond", largest(rows[0].logits, golden["logits_cond"]))
    deviation("lm.teacher_forced.logits_uncond", largest(rows[1].logits, golden["logits_uncond"]))
    deviation("lm.teacher_forced.logits_cfg", largest(mixed, golden["logits_cfg"]))


def test_training_logits_stand_at_the_frame_they_predict(rows: tuple[Forward, Forward], deviation: Deviation) -> None:
    golden, config = tensors("teacher_forced"), model().config
    frames = golden["codes"].shape[-1]
    logits, mask = pattern.pick_logits(rows[0].logits.numpy(), frames, config.delays)
    np.testing.assert_array_equal(mask, golden["train_mask"].numpy().astype(bool))
    deviation("lm.teacher_forced.train_logits", largest(torch.from_numpy(logits), golden["train_logits"]))
