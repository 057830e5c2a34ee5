"""Token ids of the real Qwen2 vocabulary: every golden case must be equal, id by id (no tolerance: they are integers).

The PyPI package `dashscope` carries that vocabulary as a tiktoken file (bytes and rank). vocab.json and merges.txt are
made from it here: a rank is an id, and the merge that makes a token joins the two pieces that the lower ranks leave.
"""

import base64
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fakes.vocabulary import byte_symbols, write_text_files

from levo.songs.text import STRUCTURE_TAGS, STYLE_TAGS, TextEncoder

CASES = Path(__file__).parent.parent / "data" / "golden" / "lm" / "tokenizer_cases.json"
GOLDEN: dict[str, Any] = json.loads(CASES.read_text(encoding="utf-8"))


def parts_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two pieces whose merge is `token`: what merging by all lower ranks leaves of its bytes."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        best = min(range(len(pieces) - 1), key=lambda i: ranks.get(pieces[i] + pieces[i + 1], len(ranks)))
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces[0], pieces[1]


@pytest.fixture(scope="session")
def qwen_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the real vocab.json and merges.txt."""
    package = importlib.util.find_spec("dashscope")
    if package is None or package.origin is None:
        pytest.skip("the PyPI package dashscope, which carries the Qwen2 vocabulary, is not installed")
    lines = (Path(package.origin).parent / "resources" / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in lines)}
    symbols = byte_symbols()

    def text(token: bytes) -> str:
        return "".join([symbols[byte] for byte in token])

    merges = [parts_of(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    folder = tmp_path_factory.mktemp("qwen")
    vocab = {text(token): rank for token, rank in ranks.items()}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    joined = "\n".join(f"{text(left)} {text(right)}" for left, right in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{joined}\n", encoding="utf-8")
    return folder


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
