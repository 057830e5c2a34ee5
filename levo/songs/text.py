"""Lyrics and style text to token ids and structure ids (facts/lm.md section 6). Knows no tensors.

STUB of the interface: the owner of levo/songs replaces this file, keeping these names.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TextIds:
    """Token ids with the start token, unpadded and uncut; structure ids belong to the lyric ids, one each."""

    lyric_ids: tuple[int, ...]
    structure_ids: tuple[int, ...]
    style_ids: tuple[int, ...]


@dataclass(frozen=True)
class Conditioning:
    """The two rows of a song under guidance."""

    cond: TextIds
    uncond: TextIds


@dataclass(frozen=True)
class TextLimits:
    """What a model takes: read from model.json["text"]."""

    version: str  # "v1" or "v2"
    lyric_tokens: int  # 600
    style_tokens: int  # 100
    max_seconds: float  # 270


class TextEncoder:
    """Tokenizers of a model directory."""

    limits: TextLimits

    def __init__(self, model_dir: Path) -> None: ...

    def prepare(self, lyrics: str, description: str | None, gen_type: str) -> Conditioning: ...
