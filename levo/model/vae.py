"""Latents to samples: the decoder of the stable-audio Oobleck VAE, whole or in tiles (facts/vocoder.md section 4).

Knows no window order and no song. The output is not bounded: peaks above 1 are normal.
Letters: C channels, W latent frames, N samples.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from levo.model.codec_config import VAEConfig
from levo.model.codec_weights import fold_weight_norm, take_over, without

SNAKE_EPS = 1e-9
DILATIONS = (1, 3, 9)
UNUSED = ("encoder.",)
"""Beginnings of the tensor names that the released file holds for encoding only."""


class Snake(nn.Module):
    """x + sin(exp(alpha) x)^2 / exp(beta), per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        alpha, beta = self.alpha.exp()[:, None], self.beta.exp()[:, None]
        return x + torch.sin(alpha * x).square() / (beta + SNAKE_EPS)


class _Chain(nn.Module):
    """Layers one after the other, named layers.0, layers.1, ... as upstream."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Residual(_Chain):
    """x plus a dilated and a pointwise convolution, a snake before each."""

    def __init__(self, channels: int, dilation: int) -> None:
        wide = nn.Conv1d(channels, channels, 7, dilation=dilation, padding=3 * dilation)
        super().__init__(Snake(channels), wide, Snake(channels), nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def _upsampler(n_in: int, n_out: int, stride: int) -> _Chain:
    """Block that makes exactly `stride` (even) output positions of each input position."""
    grow = nn.ConvTranspose1d(n_in, n_out, 2 * stride, stride=stride, padding=stride // 2)
    return _Chain(Snake(n_in), grow, *(Residual(n_out, dilation) for dilation in DILATIONS))


class VAE(nn.Module):
    """The decoder side. Runs in the dtype of its weights; gives float32."""

    def __init__(self, config: VAEConfig) -> None:
        super().__init__()
        self.config = config
        widths = [config.channels * m for m in (1, *config.multipliers)]
        blocks = [_upsampler(widths[i + 1], widths[i], stride) for i, stride in reversed([*enumerate(config.strides)])]
        first = nn.Conv1d(config.latent_dim, widths[-1], 7, padding=3)
        last = nn.Conv1d(widths[0], config.audio_channels, 7, padding=3, bias=False)
        self.decoder = _Chain(first, *blocks, Snake(widths[0]), last)

    @classmethod
    def from_state(cls, config: VAEConfig, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> "VAE":
        """Model from upstream's tensors (the content of its `state_dict`), encoder tensors left out.

        Raises ModelError when a tensor is missing, unknown or of another shape.
        """
        with torch.device("meta"):
            vae = cls(config)
        take_over(vae, fold_weight_norm(without(state, UNUSED)), "vae.safetensors")
        return vae.to(dtype)

    def forward(self, latents: Tensor) -> Tensor:
        """As `decode`."""
        return self.decode(latents)

    def decode(self, latents: Tensor) -> Tensor:
        """Latents [latent, W] -> samples [2, W samples_per_frame] float32, in one piece."""
        weight = next(self.parameters())
        wave: Tensor = self.decoder(latents.to(weight.device, weight.dtype))
        return wave.float()

    def decode_tiled(self, latents: Tensor, tile: int, overlap: int) -> Tensor:
        """As `decode`, in tiles of `tile` frames: each loses overlap // 2 frames at every side that another continues.

        Upstream's chunked decode: the last tile ends with the latents and overwrites what is there. Equal to `decode`
        when overlap // 2 is at least the receptive field, 9 frames at full size. Up to `tile` frames are one tile.
        """
        n_frames, rate, margin = latents.shape[-1], self.config.samples_per_frame, overlap // 2
        if n_frames <= tile:
            return self.decode(latents)
        starts = tile_starts(n_frames, tile, overlap)
        wave = torch.empty(self.config.audio_channels, n_frames * rate, device=next(self.parameters()).device)
        for start in starts:
            piece = self.decode(latents[:, start : start + tile])
            left = 0 if start == 0 else margin
            right = tile if start == starts[-1] else tile - margin
            wave[:, (start + left) * rate : (start + right) * rate] = piece[:, left * rate : right * rate]
        return wave


def tile_starts(n_frames: int, tile: int, overlap: int) -> list[int]:
    """First frames of the tiles; one more at the end where the regular ones do not reach it. n_frames >= tile."""
    last = n_frames - tile
    starts = [*range(0, last + 1, tile - overlap)]
    return starts if starts[-1] == last else [*starts, last]
