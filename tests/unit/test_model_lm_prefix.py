"""The prefix: cutting, padding, structure ids, absent codebooks."""

import numpy as np
import pytest
import torch
from unit.test_model_lm import small_lm

from levo.errors import ModelError
from levo.model.prefix import prefix, prompt_rows
from levo.songs.text import TextIds

PAD, EOS, SPECIAL = 50, 64, 65
LYRICS, PROMPT, STYLE = 24, 8, 10


def test_too_long_texts_are_cut_to_their_places() -> None:
    lm = small_lm()
    long = TextIds(tuple(range(40)), (2,) * 40, tuple(range(30)))
    cut = TextIds(tuple(range(LYRICS)), (2,) * LYRICS, tuple(range(STYLE)))
    for found, wanted in zip(prefix(lm, long, None, PAD), prefix(lm, cut, None, PAD), strict=True):
        assert found.shape == (LYRICS + PROMPT + STYLE, lm.config.dim)
        assert torch.equal(found, wanted)


def test_padding_rows_are_read_not_assumed_zero() -> None:
    lm = small_lm()
    tables = lm.condition_provider.conditioners
    main, sub = prefix(lm, TextIds((51,), (3,), (51,)), None, PAD)
    lyric_pad = tables.description.output_proj.weight[PAD] + tables.description.structure_emb.weight[0]
    assert torch.equal(main[0], tables.description.output_proj.weight[51] + tables.description.structure_emb.weight[3])
    assert torch.equal(main[1:LYRICS], lyric_pad.expand(LYRICS - 1, -1))
    assert torch.equal(main[LYRICS + PROMPT + 1 :], tables.type_info.output_proj.weight[PAD].expand(STYLE - 1, -1))
    assert torch.equal(main[:LYRICS], sub[:LYRICS]) and torch.equal(main[-STYLE:], sub[-STYLE:])


def test_absent_prompt_keeps_the_learned_first_vector() -> None:
    lm = small_lm()
    audio = lm.condition_provider.conditioners.prompt_audio
    audio.EOT_emb.fill_(2.0)
    audio.layer2_EOT_emb.fill_(3.0)
    main, sub = prefix(lm, TextIds((51,), (0,), (51,)), None, PAD)
    assert (main[LYRICS] == 2).all() and (sub[LYRICS] == 3).all()
    special = audio.emb[0].weight[SPECIAL]
    assert torch.equal(main[LYRICS + 1 : LYRICS + PROMPT], special.expand(PROMPT - 1, -1))


def test_prompt_frames_follow_eos_and_are_cut_or_filled() -> None:
    config = small_lm().config
    long = prompt_rows(config, np.arange(30, dtype=np.int32).reshape(3, 10))
    assert long[1].tolist() == [EOS, 10, 11, 12, 13, 14, 15]
    short = prompt_rows(config, np.array([[1, 2], [3, 4], [5, 6]]))
    assert short[2].tolist() == [EOS, 5, 6] + [SPECIAL] * 4


def test_codebook_that_starts_special_is_absent_with_its_eos() -> None:
    config = small_lm().config
    rows = prompt_rows(config, np.array([[1, 2, 3], [SPECIAL, 4, 4], [5, SPECIAL, 6]]))
    assert rows[1].tolist() == [SPECIAL] * 7
    assert rows[2].tolist() == [EOS, 5, SPECIAL, 6] + [SPECIAL] * 3
    assert prompt_rows(config, np.zeros((3, 0), dtype=np.int32)).unique().tolist() == [SPECIAL]


@pytest.mark.parametrize("prompt", [np.zeros((2, 4)), np.zeros(4), np.full((3, 4), 66), np.full((3, 4), -1)])
def test_prompt_that_does_not_fit_the_tables_is_refused(prompt: np.ndarray) -> None:
    with pytest.raises(ModelError, match="audio prompt"):
        prompt_rows(small_lm().config, prompt)
