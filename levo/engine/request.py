"""What the engine is asked for and what it gives back. No files, no song ids: a request carries a number."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from levo.songs.text import Conditioning


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn (facts/lm.md section 4). temperature 0 means greedy in codebook 0 too."""

    temperature: float = 0.9
    top_k: int = 50
    cfg: float = 1.5
    penalty: float = 1.1
    window: int = 50


@dataclass(frozen=True)
class Request:
    """One song to make.

    key: the caller's number for it.  prompt: int32 [3, n] audio prompt tokens, or None.
    tokens: int32 [3, frames] when the song's tokens are known already and only audio is wanted.
    """

    key: int
    conditioning: Conditioning
    seed: int
    max_frames: int
    predicted_frames: int
    gen_type: str = "mixed"
    renditions: int = 1
    prompt: np.ndarray | None = None
    tokens: np.ndarray | None = None


@dataclass(frozen=True)
class Audio:
    """One audio file to be: pcm int16 [samples, 2] at the codec's rate, gain already applied.

    gain = min(1, 0.999 / peak); peak and clipped_share (share of samples beyond full scale) are those before the gain.
    """

    rendition: int
    stem: str
    pcm: np.ndarray
    gain: float
    peak: float
    clipped_share: float
    vae_dtype: str


@dataclass(frozen=True)
class Finished:
    """A song that left the engine. error is None when it is ok; then tokens is int32 [3, frames].

    stop_reason: "eos", "cap", or "given" for tokens that came with the request.  main_slot, sub_slot: where it ran.
    """

    key: int
    error: str | None
    tokens: np.ndarray | None = None
    stop_reason: str | None = None
    main_slot: int | None = None
    sub_slot: int | None = None
    audio: list[Audio] = field(default_factory=list)


class Book(Protocol):
    """Books the wall time since the previous call, in equal shares to `keys`, under `stage`.

    Stages of the engine: prefill, main, sub, flow, vae. An empty `keys` books to nobody (idle).
    """

    def __call__(self, stage: str, keys: Sequence[int]) -> None: ...


def no_book(stage: str, keys: Sequence[int]) -> None:
    """For callers that keep no ledger."""
