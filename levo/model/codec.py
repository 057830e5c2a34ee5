"""Tokens to samples, window by window: which codes a window sees, and how windows join (facts/vocoder.md section 2).

Plain reference that a faster driver takes its pieces from. Knows no gain, no files, no randomness: noise is given.
QUIRK kept on purpose: what lies behind a song's last frame is the song again from its start; the flow is not causal,
so its last frames see that. Not kept: upstream's length, which is a sample short at some frame counts.

Letters: n codes of a song (audio prompt included), W frames of a window, L context frames, N samples.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from levo.errors import ModelError
from levo.model.codec_config import CodecConfig
from levo.model.flow import Flow, solve
from levo.songs.song import Stem

Noise = Callable[[int], Tensor]
"""Number of a window -> standard normal noise [W, latent] float32, the start of its solver."""


@dataclass(frozen=True)
class AudioPrompt:
    """What a song continues: codes int64 [2, m] (vocal, bgm) before its own, latents [L, latent] in VAE space.

    Upstream's tokenizer gives one code more than latents (m = L + 1), so the song starts one frame late (facts 2.3).
    """

    codes: Tensor
    latents: Tensor


def window_starts(n_codes: int, window: int) -> list[int]:
    """First frames of the windows of n_codes codes: hop = window // 4 * 3, and no window beyond the last frame."""
    hop = window // 4 * 3
    n_windows = max(1, -(-(n_codes - (window - hop)) // hop))
    return [hop * i for i in range(n_windows)]


def window_codes(codes: Tensor, start: int, window: int) -> Tensor:
    """Codes [n] that the window at `start` sees, [W]: past the end they begin again."""
    return codes[(start + torch.arange(window, device=codes.device)) % len(codes)]


def stem_codes(config: CodecConfig, tokens: np.ndarray | Tensor, stem: Stem) -> tuple[Tensor, Tensor]:
    """Tokens [3, T] (mixed, vocal, bgm) -> codes of the two streams, int64 [T] each; the absent stem is silence.

    Raises ModelError for an empty song, another shape, or ids that are no codes.
    """
    ids = torch.as_tensor(tokens, dtype=torch.int64)
    if ids.ndim != 2 or ids.shape[0] != 3 or ids.shape[1] == 0:
        raise ModelError(f"tokens of shape {list(ids.shape)} cannot be rendered", fix="give [3, frames], frames >= 1")
    low, high = int(ids[1:].min()), int(ids[1:].max())
    if low < 0 or high >= config.code_size:
        raise ModelError(
            f"tokens {low}..{high} for a codebook of {config.code_size}",
            fix="cut the song at its earliest end-of-song token before it is rendered",
        )
    vocal, bgm = ids[1], ids[2]
    if stem == "vocal":
        bgm = torch.full_like(bgm, config.silence_bgm)
    elif stem == "bgm":
        vocal = torch.full_like(vocal, config.silence_vocal)
    return vocal, bgm


def window_latents(
    flow: Flow,
    codes: tuple[Tensor, Tensor],
    noise: Noise,
    steps: int,
    guidance: float,
    context: Tensor | None = None,
) -> Iterator[Tensor]:
    """Latents [latent, W] of each window in turn, in VAE space. codes: vocal and bgm, int64 [n] each.

    Each window continues the last `overlap` frames of the one before it; `context` [L, latent] is the first one's.
    """
    window, overlap = flow.config.window, flow.config.overlap
    vocal, bgm = codes
    for index, start in enumerate(window_starts(len(vocal), window)):
        seen = window_codes(vocal, start, window), window_codes(bgm, start, window)
        latents = solve(flow, *seen, context, noise(index), steps, guidance)
        yield latents
        context = latents[:, -overlap:].T


def join(wave: Tensor | None, piece: Tensor, n_overlap: int) -> Tensor:
    """Samples so far [2, N] and the next window's [2, M], which overlap by n_overlap samples -> [2, N + M - n_overlap].

    Linear cross-fade with both ends included, in float64, stored in float32. Not equal-power: both sides are the same
    latents, so that would be up to 3 dB too loud.
    """
    if wave is None:
        return piece
    ramp = torch.linspace(0, 1, n_overlap, dtype=torch.float64, device=wave.device)
    old, new = wave[:, -n_overlap:].double(), piece[:, :n_overlap].to(wave.device).double()
    faded = (old * (1 - ramp) + new * ramp).float()
    return torch.cat([wave[:, :-n_overlap], faded, piece[:, n_overlap:].to(wave.device)], dim=-1)


def render(
    flow: Flow,
    decode: Callable[[Tensor], Tensor],
    tokens: np.ndarray | Tensor,
    stem: Stem,
    noise: Noise,
    steps: int,
    guidance: float,
    prompt: AudioPrompt | None = None,
) -> Tensor:
    """One audio file: tokens [3, T] -> samples float32 [2, T samples_per_frame], exactly.

    decode: latents [latent, W] -> samples, normally the VAE. Raises ModelError as `stem_codes` does.
    """
    vocal, bgm = stem_codes(flow.config, tokens, stem)
    n_frames, rate, n_skip = len(vocal), flow.config.vae.samples_per_frame, 0
    context = None
    if prompt is not None:
        vocal, bgm = torch.cat([prompt.codes[0], vocal]), torch.cat([prompt.codes[1], bgm])
        context, n_skip = prompt.latents, len(prompt.latents)
    wave = None
    for latents in window_latents(flow, (vocal, bgm), noise, steps, guidance, context):
        wave = join(wave, decode(latents[:, n_skip:]), flow.config.overlap * rate)
        n_skip = 0  # the prompt lies in the first window only
    assert wave is not None, "a song has at least one window"
    return wave[:, : n_frames * rate]
