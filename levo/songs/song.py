"""One song, as the manifest asks for it, in canonical form. Knows no tensors."""

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

GenType = Literal["mixed", "vocal", "bgm", "separate"]
Stem = Literal["mixed", "vocal", "bgm"]
GEN_TYPES: tuple[GenType, ...] = ("mixed", "vocal", "bgm", "separate")

# The audio files of one rendition, by generation type (facts/vocoder.md section 1.3).
STEMS: dict[str, tuple[Stem, ...]] = {
    "mixed": ("mixed",),
    "vocal": ("vocal",),
    "bgm": ("bgm",),
    "separate": ("mixed", "vocal", "bgm"),
}

FRAME_RATE = 25  # frames a second, one token per codebook


@dataclass(frozen=True)
class Song:
    """A row of songs.parquet. Text is NFC; token counts are those of the model's tokenizer, start token included.

    prompt_source: where the audio prompt's tokens are (levo/songs/prompts.py); None without a prompt.
    """

    song_id: str
    lyrics: str
    description: str | None
    gen_type: GenType
    renditions: int
    seed: int
    max_seconds: float
    language: str
    lyric_tokens: int
    style_tokens: int
    predicted_frames: int
    file: str
    line: int
    prompt_source: str | None = None
    prompt_sha256: str | None = None

    @property
    def max_frames(self) -> int:
        """The cap on frames (facts/lm.md section 4: int(duration * 25))."""
        return int(self.max_seconds * FRAME_RATE)

    @property
    def n_files(self) -> int:
        """Audio files that this song becomes."""
        return self.renditions * len(STEMS[self.gen_type])


SONG_SCHEMA = pa.schema(
    [
        pa.field("song_id", pa.string(), nullable=False),
        pa.field("lyrics", pa.string(), nullable=False),
        pa.field("description", pa.string()),
        pa.field("gen_type", pa.string(), nullable=False),
        pa.field("renditions", pa.int32(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("max_seconds", pa.float64(), nullable=False),
        pa.field("language", pa.string(), nullable=False),
        pa.field("lyric_tokens", pa.int32(), nullable=False),
        pa.field("style_tokens", pa.int32(), nullable=False),
        pa.field("predicted_frames", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("line", pa.int64(), nullable=False),
        pa.field("prompt_source", pa.string()),
        pa.field("prompt_sha256", pa.string()),
    ],
    metadata={"levo.schema": "songs", "levo.schema_version": "2"},
)
