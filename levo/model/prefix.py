"""The P positions before step 0: lyrics, audio prompt, style (facts/lm.md section 2.4). One row at a time.

Knows no tokenizer: text arrives as unpadded ids, and the caller names the padding id. Padding rows are looked up like
any other (they are not assumed to be zero), and attention over the prefix has no mask.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from levo.errors import ModelError
from levo.model.config import LMConfig
from levo.model.lm import LM
from levo.songs.text import TextIds

PromptTokens = np.ndarray | Tensor
"""Integer audio prompt [3, n]; SPECIAL in the first frame of a codebook means that the codebook is absent."""


def padded(ids: Sequence[int], length: int, pad_id: int) -> list[int]:
    """Ids cut or filled on the right to `length`."""
    return [*ids[:length], *[pad_id] * (length - len(ids))]


def prompt_rows(config: LMConfig, prompt: PromptTokens | None) -> Tensor:
    """Ids [3, prompt_len - 1] that the prompt tables look up: EOS, then the frames, SPECIAL where there are none.

    An absent codebook is SPECIAL throughout, its leading EOS included. Longer prompts are cut.
    Raises ModelError for another shape or ids outside the tables.
    """
    rows = torch.full((config.code_depth, config.prompt_len - 1), config.special, dtype=torch.int64)
    if prompt is None:
        return rows
    ids = torch.as_tensor(prompt, dtype=torch.int64, device="cpu")
    if ids.ndim != 2 or ids.shape[0] != config.code_depth:
        raise ModelError(f"audio prompt of shape {list(ids.shape)}", fix=f"give [{config.code_depth}, frames]")
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) > config.special):
        raise ModelError(f"audio prompt with ids {int(ids.min())}..{int(ids.max())}", fix=f"use 0..{config.special}")
    ids = ids[:, : config.prompt_frames]
    for k in range(config.code_depth):
        if ids.shape[1] and int(ids[k, 0]) != config.special:
            rows[k, 0] = config.eos
            rows[k, 1 : 1 + ids.shape[1]] = ids[k]
    return rows


def prefix(lm: LM, text: TextIds, prompt: PromptTokens | None, pad_id: int) -> tuple[Tensor, Tensor]:
    """Prefix of one row -> (main [P, d], sub [P, d]); the two differ in the audio prompt only.

    The unconditional row of a song has no prompt.
    """
    config, tables = lm.config, lm.condition_provider.conditioners
    lyrics, audio, styles = tables.description, tables.prompt_audio, tables.type_info.output_proj
    device = styles.weight.device

    def ids(values: Sequence[int], length: int, fill: int) -> Tensor:
        return torch.tensor(padded(values, length, fill), dtype=torch.int64, device=device)

    lyric = lyrics.output_proj(ids(text.lyric_ids, config.lyric_len, pad_id))
    lyric = lyric + lyrics.structure_emb(ids(text.structure_ids, config.lyric_len, 0))
    style = styles(ids(text.style_ids, config.style_len, pad_id))
    rows = prompt_rows(config, prompt).to(device)
    prompt_main = torch.cat([audio.EOT_emb, audio.emb[0](rows[0])])
    prompt_sub = torch.cat([audio.layer2_EOT_emb, audio.emb[1](rows[1]) + audio.emb[2](rows[2])])
    return torch.cat([lyric, prompt_main, style]), torch.cat([lyric, prompt_sub, style])
