"""A song's tokens to PCM: one window at a time, always at one shape, noise by counter (design: The engine, 4).

The audio of a song depends on its tokens, seed and rendition, so renditions and stems share the tokens, and the
stems of one rendition share the noise.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from levo.engine.philox import normals
from levo.engine.request import Audio, Book, Request
from levo.model.checkpoint import Model
from levo.model.codec import join, stem_codes, window_latents
from levo.songs.song import STEMS, Stem

PEAK_CEILING = 0.999
FULL_SCALE = 32767


class NotFinite(Exception):
    """The codec gave a value that is not a number. Made again it would come back with equal bits."""


class Renderer:
    """The codec's side of the engine."""

    def __init__(self, model: Model, steps: int, guidance: float, book: Book) -> None:
        self.flow, self.vae = model.flow, model.vae
        self.steps, self.guidance, self.book = steps, guidance, book

    def render(self, request: Request, tokens: np.ndarray) -> list[Audio]:
        """tokens: int32 [3, e], e >= 1. One Audio a rendition and stem. Raises NotFinite."""
        return list(self._render(request, tokens))

    def _render(self, request: Request, tokens: np.ndarray) -> Iterator[Audio]:
        for rendition in range(request.renditions):
            for stem in STEMS[request.gen_type]:
                wave = self._wave(request, tokens, stem, rendition)
                pcm, gain, peak, clipped_share = to_pcm(wave)
                self.book("vae", [request.key])
                dtype = str(next(self.vae.parameters()).dtype).removeprefix("torch.")
                yield Audio(rendition, stem, pcm, gain, peak, clipped_share, dtype)

    def _wave(self, request: Request, tokens: np.ndarray, stem: Stem, rendition: int) -> Tensor:
        config = self.flow.config
        codes = stem_codes(config, tokens, stem)

        def noise(window: int) -> Tensor:
            return normals(request.seed, window, rendition, (config.window, config.latent_dim), self.flow.device)

        wave = None
        for latents in window_latents(self.flow, codes, noise, self.steps, self.guidance):
            self.book("flow", [request.key])
            piece = self.vae.decode(latents)
            if not bool(torch.isfinite(piece).all()):
                raise NotFinite(f"audio is not finite (rendition {rendition}, stem {stem})")
            wave = join(wave, piece, config.overlap * config.vae.samples_per_frame)
            self.book("vae", [request.key])
        assert wave is not None, "a song has at least one window"
        return wave[:, : tokens.shape[1] * config.vae.samples_per_frame]


def to_pcm(wave: Tensor) -> tuple[np.ndarray, float, float, float]:
    """Samples float32 [2, N] -> (int16 [N, 2], gain, peak, clipped share), the last two before the gain.

    gain = min(1, 0.999 / peak) for the whole file; 16 bit, rounded half to even, no dither (design: The engine, 4).
    """
    peak = float(wave.abs().max())
    clipped_share = float((wave.abs() > 1).double().mean())
    gain = min(1.0, PEAK_CEILING / peak) if peak > 0 else 1.0
    pcm = torch.round(wave.double() * gain * FULL_SCALE).to(torch.int16)
    return np.ascontiguousarray(pcm.T.cpu().numpy()), gain, peak, clipped_share
