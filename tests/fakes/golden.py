"""The golden language model as an engine would get it, and songs to decode with it."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from levo.engine import twins
from levo.engine.decoder import Decoder
from levo.engine.pages import PAGE, Pool, unit_shape
from levo.engine.phases import Setup
from levo.engine.request import Request, Sampling, no_book
from levo.model.config import LMConfig
from levo.model.lm import LM
from levo.songs.text import Conditioning, TextIds

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "lm"
META = json.loads((GOLDEN / "meta.json").read_text())


def golden_lm() -> LM:
    return LM.from_state(LMConfig.from_upstream(META["config"]), load_file(GOLDEN / "state.safetensors"))


def golden_items() -> list[dict[str, torch.Tensor]]:
    tensors = load_file(GOLDEN / "items.safetensors")
    return [
        {name.split(".", 1)[1]: t for name, t in tensors.items() if name.startswith(f"item{j}.")}
        for j in range(len(META["items"]))
    ]


def golden_request(item: dict[str, torch.Tensor], key: int, seed: int = 0) -> Request:
    """A golden item's inputs; its text ids are padded already, which changes nothing."""
    cond, uncond = (
        TextIds(*(tuple(item[name][row].tolist()) for name in ("description_ids", "structure_ids", "type_info_ids")))
        for row in (0, 1)
    )
    prompt = item["prompt_tokens"][0].numpy().astype(np.int32)
    return Request(key, Conditioning(cond, uncond), seed, max_frames=40, predicted_frames=20, prompt=prompt)


def setup(lm: LM, sampling: Sampling, gemm_rows: int = 16, n_units: int = 400, ops=twins) -> Setup:
    """What the engine's decoder is built from; n_units bounds the pages of all songs."""
    like = lm.transformer.lm_head.weight
    kv = Pool(n_units, unit_shape(lm.config), like)
    hidden = Pool(n_units, (PAGE, lm.config.dim), like)
    return Setup(lm, META["pad_id"], gemm_rows, sampling, kv, hidden, ops, captured=like.is_cuda)


def decode(lm: LM, requests: list[Request], slots: int, sampling: Sampling, sync_ticks: int = 1, **kwargs) -> dict:
    """Run requests through the engine's decoder -> {key: Finished}."""
    found = {}
    with torch.inference_mode():
        decoder = Decoder(setup(lm, sampling, **kwargs), slots, sync_ticks, no_book)
        decoder.queue.extend(requests)
        while decoder.live:
            found |= {done.key: done for _, done in decoder.step()}
    return found
