"""The tiny model in upstream's layout: what a user would hold of it."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from levo.bench.random_checkpoint import Layout, random_prompts, write_layout
from levo.model import tiny
from levo.model.upstream import CodecConstants

TINY_CODEC = CodecConstants(heads=tiny.HEADS, silence_vocal=tiny.SILENCE_VOCAL, silence_bgm=tiny.SILENCE_BGM)


class Held(NamedTuple):
    """Folders for --checkpoint and --runtime."""

    checkpoint: Path
    runtime: Path


def tiny_layout(name: str = "songgeneration_v2_tiny", **changes: Any) -> Layout:
    """Its parts, with tensors that upstream's files hold beside those that are used."""
    whole = tiny.contents()
    layout = Layout(
        name=name,
        config=whole.config,
        lm=whole.lm,
        flow={**whole.flow, "bestrq.some.weight": torch.ones(3), "normfeat.sum_target_x2": torch.ones(10)},
        vae={**whole.vae, "encoder.layers.0.bias": torch.ones(3)},
        vae_json=whole.vae_config,
        tokenizer=whole.tokenizer,
        prompts=random_prompts(tiny.TEXT.prompt_frames, tiny.CODES, 1),
    )
    return replace(layout, **changes)


def hold_tiny(folder: Path, layout: Layout | None = None) -> Held:
    """Write it below `folder`."""
    return Held(*write_layout(folder, layout or tiny_layout()))
