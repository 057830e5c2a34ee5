"""Token ids of the real Qwen2 vocabulary: every golden case must be equal, id by id (no tolerance: they are integers).

The vocabulary comes from the PyPI package `dashscope` (tests/fakes/qwen2.py).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes.vocabulary import write_text_files

from levo.songs.text import STRUCTURE_TAGS, STYLE_TAGS, TextEncoder

CASES = Path(__file__).parent.parent / "data" / "golden" / "lm" / "tokenizer_cases.json"
GOLDEN: dict[str, Any] = json.loads(CASES.read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def encoders(qwen_files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextEncoder]:
    """An encoder for each text version, over the real vocabulary."""
    made = {}
    for version in ("v1", "v2"):
        model = write_text_files(tmp_path_factory.mktemp(version), version=version)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(qwen_files / name, model / "tokenizer" / name)
        made[version] = TextEncoder(model)
    return made


@pytest.mark.parametrize("number", range(len(GOLDEN["cases"])))
def test_ids_equal_upstreams(encoders: dict[str, TextEncoder], number: int) -> None:
    case = GOLDEN["cases"][number]
    encoder = encoders[case["version"]]
    if case["kind"] == "lyric":
        ids, structure = encoder.lyric_ids(case["text"])
        assert list(ids) == case["ids"]
        assert list(structure) == case["structure_ids"]
    else:
        assert list(encoder.style_ids(case["text"])) == case["ids"]


def test_added_ids_stand_where_the_checkpoint_has_them(encoders: dict[str, TextEncoder]) -> None:
    for version, encoder in encoders.items():
        assert encoder.pad_id == GOLDEN["pad"]
        for tag in STRUCTURE_TAGS:
            assert encoder.lyric_ids(tag)[0] == (GOLDEN["im_start"], GOLDEN["lyric_vocab"][tag])
        for tag in STYLE_TAGS:
            known = (GOLDEN["im_start"], GOLDEN["type_vocab_v2"][tag])
            assert (encoder.style_ids(tag) == known) == (version == "v2")
