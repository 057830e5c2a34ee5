"""The real Qwen2 vocabulary as vocab.json and merges.txt, made from the tiktoken file that the package dashscope has.

A rank is an id, and the merge that makes a token joins the two pieces that the lower ranks leave. As a script (in
tests/): python -m fakes.qwen2 FOLDER
"""

import base64
import importlib.util
import json
import sys
from pathlib import Path

from fakes.vocabulary import byte_symbols


def tiktoken_file() -> Path | None:
    """The file of ranks, if dashscope is installed."""
    package = importlib.util.find_spec("dashscope")
    return Path(package.origin).parent / "resources" / "qwen.tiktoken" if package and package.origin else None


def parts_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two pieces whose merge is `token`: what merging by all lower ranks leaves of its bytes."""
    pieces = [token[i : i + 1] for i in range(len(token))]
    while len(pieces) > 2:
        best = min(range(len(pieces) - 1), key=lambda i: ranks.get(pieces[i] + pieces[i + 1], len(ranks)))
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]
    return pieces[0], pieces[1]


def write_qwen2(folder: Path, source: Path) -> Path:
    """Write both files to an existing folder."""
    ranks = {base64.b64decode(word): int(rank) for word, rank in map(bytes.split, source.read_bytes().splitlines())}
    symbols = byte_symbols()

    def text(token: bytes) -> str:
        return "".join([symbols[byte] for byte in token])

    merges = [parts_of(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1]
    vocab = {text(token): rank for token, rank in ranks.items()}
    (folder / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    joined = "\n".join(f"{text(left)} {text(right)}" for left, right in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{joined}\n", encoding="utf-8")
    return folder


if __name__ == "__main__":
    file, target = tiktoken_file(), Path(sys.argv[1])
    if file is None:
        sys.exit("pip install dashscope first: it carries the vocabulary")
    target.mkdir(parents=True, exist_ok=True)
    print(write_qwen2(target, file))
