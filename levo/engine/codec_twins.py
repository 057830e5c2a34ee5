"""The codec's small steps in plain torch: what the Triton kernels are tested against, and what a CPU runs.

Same names, arguments and results as in levo.engine.kernels. Letters: R rows of a call (unconditional, conditional),
W frames, d width, H heads, P padded head size; L positions and C channels of a VAE layer, channels last.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from levo.model.estimator import LAYER_NORM_EPS, rotate_pairs


def modulate(
    h: Tensor, gated: tuple[Tensor, Tensor] | None, shift_scale: Tensor, norm: tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor:
    """Add gate * delta to h in place, and return (LayerNorm(h) (1 + scale) + shift) in dtype.

    h [R W, d] float32; gated: gate [d] float32 and delta [R W, d]; shift_scale [2, d] float32; norm: weight, bias [d].
    """
    if gated is not None:
        gate, delta = gated
        h += gate * delta
    shift, scale = shift_scale
    return (F.layer_norm(h, (h.shape[1],), *norm, eps=LAYER_NORM_EPS) * (1 + scale) + shift).to(dtype)


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding of queries and keys in place. qkv [R, W, 3, H, P]; cos, sin float32 [W, P/2], padded with 0."""
    both = qkv[:, :, :2]
    both.copy_(rotate_pairs(both, cos[:, None, None], sin[:, None, None]))


def snake(x: Tensor, params: Tensor, out: Tensor) -> Tensor:
    """y + sin(alpha y)^2 scale with y = x + bias, float32 inside, into out, which may be x. Returns out.

    x, out [L, C]; params float32 [3, C]: bias, alpha, scale.
    """
    bias, alpha, scale = params
    y = x.float() + bias
    return out.copy_(y + torch.sin(alpha * y).square() * scale)


def snake_pairs(x: Tensor, params: Tensor) -> Tensor:
    """As snake; each position stands beside the one before it, with zeros behind both ends: [L + 1, 2 C]."""
    n, channels = x.shape
    pairs = x.new_zeros(n + 1, 2, channels)
    pairs[:-1, 1] = snake(x, params, torch.empty_like(x))
    pairs[1:, 0] = pairs[:-1, 1]
    return pairs.flatten(1)


def last_conv(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """Convolution to few channels: x [L, C], weight [taps, C, 16] of which out's channels count, out float32 [n, L]."""
    kernel = weight[:, :, : len(out)].permute(2, 1, 0)
    out.copy_(F.conv1d(x.t()[None], kernel, padding=len(weight) // 2)[0])
