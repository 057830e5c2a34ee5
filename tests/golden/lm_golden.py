"""The golden model and songs of upstream's language model (tests/data/golden/lm), as the tests want them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from levo.model.config import LMConfig
from levo.model.lm import LM
from levo.songs.text import Conditioning, TextIds

HERE = Path(__file__).parent.parent / "data" / "golden" / "lm"
N_ITEMS = 6
WINDOW = 6


@cache
def meta() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "meta.json").read_text(encoding="utf-8"))
    return found


@cache
def tensors(name: str) -> dict[str, Tensor]:
    return load_file(HERE / f"{name}.safetensors")


@cache
def model() -> LM:
    return LM.from_state(LMConfig.from_upstream(meta()["config"]), tensors("state"))


def pad_id() -> int:
    return int(meta()["pad_id"])


def item(j: int, name: str) -> Tensor:
    return tensors("items")[f"item{j}.{name}"]


def row_text(j: int, row: int) -> TextIds:
    """Ids of a row without their padding, so that the prefix has to pad them again."""

    def unpadded(name: str) -> tuple[int, ...]:
        ids = item(j, name)[row].tolist()
        while ids[-1] == pad_id():
            ids.pop()
        return tuple(ids)

    lyrics = unpadded("description_ids")
    structure = tuple(item(j, "structure_ids")[row].tolist()[: len(lyrics)])
    return TextIds(lyrics, structure, unpadded("type_info_ids"))


def conditioning(j: int) -> Conditioning:
    return Conditioning(row_text(j, 0), row_text(j, 1))


def prompt(j: int) -> Tensor:
    return item(j, "prompt_tokens")[0]
