"""Audio prompts as token rows: automatic ones of a model, and the user's own from files. Knows no tensors of torch.

A prompt is int32 [3, n], n up to the model's limit (250 frames, 10 s): codebook 0 of the mix, 1 of the vocals, 2 of the
accompaniment. The absent id (SPECIAL) fills what is not there: whole codebooks, or the end. A song carries a source
and the tokens' hash; the tokens are read again where the song is made, and must still have that hash.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from levo.errors import ManifestError, ModelError
from levo.songs.prompt_files import read_prompt_file
from levo.songs.text import TextLimits

LANGUAGES = ("zh", "en")
INDEX_FORMAT = 1
GENRES = (
    *("Pop", "Latin", "Rock", "Electronic", "Metal", "Country", "R&B/Soul", "Ballad", "Jazz", "World"),
    *("Hip-Hop", "Funk", "Soundtrack", "Auto"),
)
"""Upstream's names; which of them a model has stands in its index."""

PURPOSE_PROMPT = 3  # beside those of the engine's draws (levo/engine/philox.py)
_AUTO, _FILE = "auto:", "file:"


class Prompt(NamedTuple):
    """source: "auto:GENRE/LANGUAGE/NUMBER" or "file:PATH".  sha256: of the tokens."""

    source: str
    sha256: str


class PromptBook:
    """The prompts that songs of a model can have."""

    def __init__(self, model_dir: Path, limits: TextLimits) -> None:
        self.folder, self.limits = model_dir / "prompts", limits

    @cached_property
    def index(self) -> dict[str, dict[str, list[int]]]:
        """Genre -> language -> (first, count) of the model's automatic prompts; {} if it has none."""
        path = self.folder / "index.json"
        if not path.exists():
            return {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != INDEX_FORMAT:
                raise ValueError(f"format {found['format']}")
            index: dict[str, dict[str, list[int]]] = found["genres"]
            return index
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"not readable: {error!r}", where=str(path), fix="convert the model again") from None

    def draw(self, genre: str, language: str, seed: int) -> Prompt | None:
        """An automatic prompt, uniformly, from the song's own seed; None where the model has none of that kind."""
        _, count = self.index.get(genre, {}).get(language, (0, 0))
        if not count:
            return None
        words = philox4x32((0, 0, PURPOSE_PROMPT << 16, 0), (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))
        number = (words[0] << 32 | words[1]) * count >> 64
        source = f"{_AUTO}{genre}/{language}/{number}"
        return Prompt(source, tokens_sha256(self.read(source)))

    def of_file(self, path: str) -> Prompt:
        """The prompt in a file. Raises ManifestError that says what is wrong with it."""
        return Prompt(_FILE + path, tokens_sha256(self.read(_FILE + path)))

    def read(self, source: str) -> np.ndarray:
        """Tokens int32 [3, n]. Raises ManifestError or ModelError."""
        if source.startswith(_FILE):
            return self._file(source.removeprefix(_FILE))
        genre, language, number = source.removeprefix(_AUTO).rsplit("/", 2)
        try:
            first, count = self.index[genre][language]
            tokens, lengths = self._tokens
            if not 0 <= int(number) < count:
                raise IndexError(number)
            at = first + int(number)
            found: np.ndarray = tokens[at, :, : lengths[at]]
        except (KeyError, IndexError, ValueError):
            raise ModelError(
                f"the model has no automatic prompt {source}",
                where=str(self.folder),
                fix="use the model of the check",
            ) from None
        return found

    def checked(self, prompt: Prompt) -> np.ndarray:
        """Tokens of a prompt that a check has seen. Raises ManifestError when they are others now."""
        tokens = self.read(prompt.source)
        if tokens_sha256(tokens) != prompt.sha256:
            raise ManifestError(
                "the prompt's tokens were changed since the manifest was checked",
                where=prompt.source,
                fix="put the old file back, or start a new RUN",
            )
        return tokens

    @cached_property
    def _tokens(self) -> tuple[np.ndarray, np.ndarray]:
        path = self.folder / "tokens.safetensors"
        try:
            found = load_file(path)
            return found["tokens"], found["lengths"]
        except (OSError, SafetensorError, KeyError) as error:
            raise ModelError(f"not readable: {error!r}", where=str(path), fix="convert the model again") from None

    def _file(self, path: str) -> np.ndarray:
        tokens = read_prompt_file(Path(path))
        if tokens.ndim == 3 and tokens.shape[0] == 1:
            tokens = tokens[0]  # upstream's own shape
        trouble = prompt_trouble(tokens, self.limits)
        if trouble:
            raise ManifestError(
                f"the prompt {trouble}", where=path, fix="write integers [3, frames]: mix, vocals, accompaniment"
            )
        return tokens.astype(np.int32)


def prompt_trouble(tokens: np.ndarray, limits: TextLimits) -> str:
    """What is wrong with prompt tokens, or ""."""
    if tokens.dtype.kind not in "iu":
        return f"is {tokens.dtype}, not integers"
    if tokens.ndim != 2 or tokens.shape[0] != 3:
        return f"has the shape {list(tokens.shape)}, not [3, frames]"
    if not 1 <= tokens.shape[1] <= limits.prompt_frames:
        return f"has {tokens.shape[1]} frames, and this model takes 1 to {limits.prompt_frames}"
    is_code, is_absent = tokens < limits.audio_codes, tokens == limits.absent
    if tokens.min() < 0 or not (is_code | is_absent).all():
        codes = f"0 to {limits.audio_codes - 1}, and {limits.absent} for absent frames"
        return f"has ids from {tokens.min()} to {tokens.max()}; known are {codes}"
    if (is_absent[:, :-1] & is_code[:, 1:]).any():
        return "has a code behind an absent frame"
    if is_absent[:, 0].all():
        return "is absent in all three codebooks"
    return ""


def tokens_sha256(tokens: np.ndarray) -> str:
    """Hex sha256 of tokens [3, n] as little-endian int32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).hexdigest()


def prompt_language(lyrics: str) -> str:
    """Upstream's rule for automatic prompts: zh if 20 % or more of all characters, tags included, are CJK; else en."""
    n_cjk = sum("\u4e00" <= character <= "\u9fff" for character in lyrics)
    return "zh" if lyrics and 5 * n_cjk >= len(lyrics) else "en"


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10 of one counter: the same words as the engine's draws (Salmon et al., SC 2011)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b & 0xFFFFFFFF, a >> 32 ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = k0 + 0x9E3779B9 & 0xFFFFFFFF, k1 + 0xBB67AE85 & 0xFFFFFFFF
    return c0, c1, c2, c3
