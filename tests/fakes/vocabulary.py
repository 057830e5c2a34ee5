"""A model directory's text files with the smallest vocabulary: one symbol a byte, nothing merges."""

import json
from pathlib import Path


def byte_symbols() -> list[str]:
    """The printable character of each byte in byte-level BPE: Latin-1's own where printable, else from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in own]
    return [chr(byte if byte in own else 256 + others.index(byte)) for byte in range(256)]


def write_text_files(
    model_dir: Path,
    vocab: dict[str, int] | None = None,
    version: str = "v2",
    lyric_tokens: int = 600,
    style_tokens: int = 100,
    max_seconds: float = 30,
) -> Path:
    """model.json (its text section only) and tokenizer/; a byte's symbol has the byte as id unless `vocab` is given."""
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())} if vocab is None else vocab
    (model_dir / "tokenizer").mkdir(parents=True, exist_ok=True)
    (model_dir / "tokenizer" / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (model_dir / "tokenizer" / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    text = {"version": version, "lyric_tokens": lyric_tokens, "style_tokens": style_tokens, "max_seconds": max_seconds}
    (model_dir / "model.json").write_text(json.dumps({"text": text}), encoding="utf-8")
    return model_dir
