"""The VAE decoder in serving form: channels last, one window at a time, captured once.

The mathematics is that of levo.model.vae. A transposed convolution is one matrix product over pairs of neighbouring
positions, a pointwise one adds itself to the residual inside its product, and every bias waits for the next snake.
A window that is not finite in halves is decoded again by the float32 model, in tiles.

Letters: W frames, L positions and C channels of a layer, s stride.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from levo.engine.graph import Graph
from levo.model.vae import SNAKE_EPS, VAE, Snake

TILE, TILE_OVERLAP = 128, 32
"""Of the decode in float32, in frames: upstream's. Half the overlap is more than the receptive field of 9."""
LAST_CHANNELS = 16  # the audio channels, padded to what a tensor core takes


@contextmanager
def exact_convolutions() -> Iterator[None]:
    """cuDNN without timing, without atomics and without TF32."""
    with warnings.catch_warnings():
        # Some versions of torch call this interface old; the new one does not exist in 2.7.
        warnings.filterwarnings("ignore", "Please use the new API settings to control TF32")
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield


def snake_params(snake: Snake, bias: Tensor) -> Tensor:
    """[3, C] float32: bias to add before, alpha, and the factor of the squared sine."""
    return torch.stack([bias, snake.alpha.exp(), 1 / (snake.beta.exp() + SNAKE_EPS)])


def wide_weight(conv: nn.Conv1d, dtype: torch.dtype) -> Tensor:
    """[C_out, C_in, taps] -> [C_out, C_in, 1, taps], channels last."""
    return conv.weight[:, :, None].to(dtype).contiguous(memory_format=torch.channels_last)


def convolve(x: Tensor, weight: Tensor, dilation: int = 1) -> Tensor:
    """[L, C_in] -> [L, C_out], zero padded, no bias. weight as from wide_weight."""
    wide = x.view(1, 1, *x.shape).permute(0, 3, 1, 2)  # [1, C, 1, L], channels last
    padding = weight.shape[-1] // 2 * dilation
    out = F.conv2d(wide, weight, padding=(0, padding), dilation=(1, dilation))
    return out.permute(0, 2, 3, 1).reshape(len(x), -1)


@dataclass(frozen=True)
class Unit:
    """A residual unit: snake, dilated convolution, snake, pointwise convolution [C_in, C_out]."""

    snake_1: Tensor
    wide: Tensor
    dilation: int
    snake_2: Tensor
    point: Tensor

    @classmethod
    def of(cls, unit: Any, bias: Tensor, dtype: torch.dtype) -> "Unit":
        """unit: a Residual; bias: what the residual stream still lacks before it."""
        first, wide, second, point = unit.layers
        return cls(
            snake_params(first, bias),
            wide_weight(wide, dtype),
            wide.dilation[0],
            snake_params(second, wide.bias),
            point.weight[:, :, 0].t().to(dtype).contiguous(),
        )


@dataclass(frozen=True)
class Upsampler:
    """A decoder block. grow [s C_out, 2 C_in]: row (r, c) has tap s + r for the position before, then tap r."""

    snake: Tensor
    grow: Tensor
    stride: int
    units: tuple[Unit, ...]

    @classmethod
    def of(cls, block: Any, bias: Tensor, dtype: torch.dtype) -> tuple["Upsampler", Tensor]:
        """The block, and the bias that its output lacks."""
        snake, conv, *residuals = block.layers
        stride = conv.stride[0]
        taps = conv.weight.permute(2, 1, 0).to(dtype)  # [2 s, C_out, C_in]
        grow = torch.cat([taps[stride:], taps[:stride]], dim=-1).flatten(0, 1).contiguous()
        before = snake_params(snake, bias)
        units, bias = [], conv.bias
        for residual in residuals:
            units.append(Unit.of(residual, bias, dtype))
            bias = bias + residual.layers[3].bias
        return cls(before, grow, stride, tuple(units)), bias


class VAEDecoder:
    """Latents of one window to samples. ops: levo.engine.kernels or levo.engine.codec_twins."""

    def __init__(self, vae: VAE, n_frames: int, dtype: torch.dtype, ops: ModuleType, *, captured: bool) -> None:
        layers: Any = vae.decoder.layers
        first, *blocks, snake, last = layers
        config, device = vae.config, last.weight.device
        self.vae, self.dtype, self.ops = vae, dtype, ops
        self.first, bias = wide_weight(first, dtype), first.bias
        self.blocks = []
        for block in blocks:
            upsampler, bias = Upsampler.of(block, bias, dtype)
            self.blocks.append(upsampler)
        self.snake = snake_params(snake, bias)
        taps = last.weight.permute(2, 1, 0)  # [taps, C, 2]
        self.last = F.pad(taps, (0, LAST_CHANNELS - config.audio_channels)).to(dtype).contiguous()
        self.latents = torch.zeros(n_frames, config.latent_dim, dtype=dtype, device=device)
        self.wave = torch.zeros(config.audio_channels, n_frames * config.samples_per_frame, device=device)
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.graph = Graph(self._decode, device, captured=captured)

    def start(self, latents: Tensor) -> None:
        """Begin to decode latents [W, latent] float32."""
        self.given = latents
        self.latents.copy_(latents)
        self.graph.run()

    def result(self) -> tuple[Tensor, bool] | None:
        """Samples [2, N] float32, valid until the next start, and whether float32 was needed. None: not finite in it.

        Waits for the device.
        """
        if bool(self.finite):
            return self.wave, False
        if self.dtype == torch.float32:
            return None
        with exact_convolutions():
            wave = self.vae.decode_tiled(self.given.t(), TILE, TILE_OVERLAP)
        return (wave, True) if bool(torch.isfinite(wave).all()) else None

    def _decode(self) -> None:
        with exact_convolutions():
            x = convolve(self.latents, self.first)
            for block in self.blocks:
                x = self._upsample(block, x)
        x = self.ops.snake(x, self.snake, x)
        self.ops.last_conv(x, self.last, self.wave)
        self.finite.copy_(torch.isfinite(self.wave).all())

    def _upsample(self, block: Upsampler, x: Tensor) -> Tensor:
        n, stride = len(x), block.stride
        grown = F.linear(self.ops.snake_pairs(x, block.snake), block.grow)  # [L + 1, s C_out]
        x = grown.view((n + 1) * stride, -1)[stride // 2 : stride // 2 + n * stride]
        for unit in block.units:
            y = self.ops.snake(x, unit.snake_1, torch.empty_like(x))
            y = convolve(y, unit.wide, unit.dilation)
            x.addmm_(self.ops.snake(y, unit.snake_2, y), unit.point)
        return x
