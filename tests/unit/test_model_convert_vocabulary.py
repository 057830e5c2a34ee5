"""Conversion with the real Qwen2 vocabulary, on a checkpoint that is tiny in everything but its tables."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.upstream import TINY_CODEC, Held, hold_tiny, tiny_layout
from golden.test_tokenizer import GOLDEN

from levo.errors import ModelError
from levo.model import tiny
from levo.model.config import LMConfig
from levo.model.convert import convert
from levo.model.lm import LYRIC_TABLE, STRUCTURE_TABLE, STYLE_TABLE
from levo.model.upstream_names import lm_shapes
from levo.songs.text import TextEncoder


def hold(folder: Path, files: dict[str, bytes], version: str = "v2") -> Held:
    """A checkpoint whose tables have the rows of the released ones."""
    rows = {LYRIC_TABLE: 151659, STYLE_TABLE: 151652 if version == "v2" else 151646}
    config: dict[str, Any] = json.loads(json.dumps(tiny.CONFIG))
    config["lm"]["dim"] = 8
    found = {name: (n,) for name, n in rows.items()} | {STRUCTURE_TABLE: (200,)}
    weights = {name: torch.zeros(shape) for name, shape in lm_shapes(LMConfig.from_upstream(config), found).items()}
    conditioners = config["conditioners"]
    if version == "v1":
        conditioners["description"]["QwTokenizer"]["max_len"] = 300
        conditioners["type_info"]["QwTextTokenizer"]["max_len"] = 50
    return hold_tiny(folder, tiny_layout("mine", config=config, lm=weights, tokenizer=files))


@pytest.fixture(scope="session")
def files(qwen_files: Path) -> dict[str, bytes]:
    return {name: (qwen_files / name).read_bytes() for name in ("vocab.json", "merges.txt")}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_golden_tokens_come_from_a_converted_model(version: str, files: dict[str, bytes], tmp_path: Path) -> None:
    held = hold(tmp_path / "held", files, version)
    result = convert(held.checkpoint, held.runtime, tmp_path / "out", torch.float16, TINY_CODEC)
    encoder = TextEncoder(tmp_path / "out")
    assert (result.version, encoder.pad_id) == (version, 151643)
    cases = [case for case in GOLDEN["cases"] if case["version"] == version]
    assert len(cases) > 10
    for case in cases:
        ids = encoder.lyric_ids(case["text"])[0] if case["kind"] == "lyric" else encoder.style_ids(case["text"])
        assert list(ids) == case["ids"]


def swapped(files: dict[str, bytes]) -> dict[str, bytes]:
    vocabulary = json.loads(files["vocab.json"])
    names = list(vocabulary)
    vocabulary[names[1000]], vocabulary[names[2000]] = vocabulary[names[2000]], vocabulary[names[1000]]
    return {**files, "vocab.json": json.dumps(vocabulary).encode()}


def other_merges(files: dict[str, bytes]) -> dict[str, bytes]:
    head, *lines = files["merges.txt"].splitlines()
    return {**files, "merges.txt": b"\n".join([head, *reversed(lines)]) + b"\n"}


def shorter(files: dict[str, bytes]) -> dict[str, bytes]:
    vocabulary = json.loads(files["vocab.json"])
    last, first = max(vocabulary, key=vocabulary.__getitem__), files["merges.txt"].splitlines()
    del vocabulary[last]
    return {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": b"\n".join(first[:-1]) + b"\n"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swapped, "another vocabulary: the right number of entries, but other ones"),
        (other_merges, "merges.txt does not belong to the vocabulary"),
        (shorter, "another vocabulary: 151642 entries; the lyric table has rows for 151643"),
    ],
)
def test_other_vocabularies_are_refused(change: Any, message: str, files: dict[str, bytes], tmp_path: Path) -> None:
    held = hold(tmp_path / "held", change(files))
    with pytest.raises(ModelError, match=message):
        convert(held.checkpoint, held.runtime, tmp_path / "out", torch.float16, TINY_CODEC)
    assert not list(tmp_path.glob("out*"))
