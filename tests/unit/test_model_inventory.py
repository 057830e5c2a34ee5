"""`levo model inspect`: the table's numbers are those of the files, and slots are those that were reckoned by hand."""

from pathlib import Path

import pytest
import torch
from fakes.upstream import TINY_CODEC, hold_tiny
from safetensors.torch import load_file

from levo.bench.random_checkpoint import full_config
from levo.errors import ModelError
from levo.model import memory
from levo.model.config import LMConfig
from levo.model.convert import convert
from levo.model.inventory import describe, inspect
from levo.model.lm import unused_tensors

GIB = 2**30


def test_reckoning_of_a_three_minute_song_is_that_of_the_design() -> None:
    """Main 1.66 GB, sub 0.60 GB, hidden states 0.07 GB; about 32 slots in 95 GiB and 50 in an H200 (139.8 GiB)."""
    config = LMConfig.from_upstream(full_config("v2-large"))
    song = memory.song_bytes(config, 4500)
    assert [round(part / 1e9, 2) for part in (song.main, song.sub, song.hidden)] == [1.66, 0.60, 0.07]
    weights = 11.1 * GIB  # LM 9.3, codec 1.8
    assert memory.slots(config, 4500, 95 * GIB, weights) == pytest.approx(32, abs=1)
    assert memory.slots(config, 4500, 139.8 * GIB, weights) == pytest.approx(50, abs=1)
    assert memory.slots(config, 4500, 16 * GIB, weights) == 0
    assert memory.slots(config, 25, 140 * GIB, weights) == memory.MAX_SLOTS


def test_inventory_counts_what_is_in_the_files(tiny_dir: Path, tmp_path: Path) -> None:
    held = hold_tiny(tmp_path)
    convert(held.checkpoint, held.runtime, tmp_path / "out", torch.float16, TINY_CODEC)
    plain, converted = inspect(tiny_dir), inspect(tmp_path / "out")
    state = load_file(tiny_dir / "model.safetensors")
    used = [tensor for name, tensor in state.items() if name not in unused_tensors(plain.config)]
    for inventory in (plain, converted):
        lm = inventory.parts[:4]
        assert sum(part.parameters for part in lm) == sum(tensor.numel() for tensor in used)
        assert sum(part.tensors for part in lm) == len(used), "a fused matrix counts as its parts"
    assert [part.dtypes for part in converted.parts] == ["float16"] * 4 + ["float32"] * 2
    assert (plain.value_bytes, converted.value_bytes) == (4, 2)


def test_page_names_the_model_its_origin_and_what_fits(tiny_dir: Path, tmp_path: Path) -> None:
    held = hold_tiny(tmp_path)
    result = convert(held.checkpoint, held.runtime, tmp_path / "out", torch.float16, TINY_CODEC)
    page = describe(inspect(tmp_path / "out"), 95)
    assert result.digest in page and "converted from an untested checkpoint" in page
    assert "224 automatic prompts in 14 genres" in page and "model.pt" in page
    assert [line.split()[0] for line in page.splitlines() if " s  " in line] == ["30"]
    assert "not converted" in describe(inspect(tiny_dir), 40, 20) and "20 s" in describe(inspect(tiny_dir), 40, 20)
    with pytest.raises(ModelError, match="has no model.json"):
        inspect(tmp_path)
