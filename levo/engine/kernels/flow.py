"""The flow estimator's steps between its matrix products, each in one pass over its data."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from levo.model.estimator import LAYER_NORM_EPS


@triton.jit
def _modulate(
    h, gate, delta, shift_scale, weight, bias, out, eps,
    HAS_DELTA: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    inside = d < WIDTH
    x = tl.load(h + row * WIDTH + d, mask=inside, other=0.0)
    if HAS_DELTA:
        x += tl.load(gate + d, mask=inside, other=0.0) * tl.load(delta + row * WIDTH + d, mask=inside, other=0.0)
        tl.store(h + row * WIDTH + d, x, mask=inside)
    centred = tl.where(inside, x - tl.sum(x, 0) / WIDTH, 0.0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred, 0) / WIDTH + eps)
    normed = normed * tl.load(weight + d, mask=inside, other=0.0) + tl.load(bias + d, mask=inside, other=0.0)
    shift = tl.load(shift_scale + d, mask=inside, other=0.0)
    scale = tl.load(shift_scale + WIDTH + d, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + d, normed * (1.0 + scale) + shift, mask=inside)


def modulate(
    h: Tensor, gated: tuple[Tensor, Tensor] | None, shift_scale: Tensor, norm: tuple[Tensor, Tensor], dtype: torch.dtype
) -> Tensor:
    """See levo.engine.codec_twins.modulate."""
    rows, width = h.shape
    out = torch.empty(rows, width, dtype=dtype, device=h.device)
    gate, delta = gated if gated is not None else (h, h)
    _modulate[(rows,)](
        h, gate, delta, shift_scale, *norm, out, LAYER_NORM_EPS,
        HAS_DELTA=gated is not None, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=8,
        enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_heads(
    qkv, cos, sin, n_frames, N: tl.constexpr, P: tl.constexpr, N_BLOCK: tl.constexpr, P_BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0)
    half: tl.constexpr = P // 2
    half_block: tl.constexpr = P_BLOCK // 2
    n = tl.arange(0, N_BLOCK)[:, None]
    p = tl.arange(0, P_BLOCK)[None, :]
    i = tl.arange(0, half_block)[None, :]
    at = qkv + row.to(tl.int64) * (3 * N // 2) * P + n * P + p  # N = 2 H heads of queries and keys, then H of values
    inside = (n < N) & (p < P)
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, [N_BLOCK, half_block, 2]))
    angle = (row % n_frames) * half + i
    c = tl.load(cos + angle, mask=i < half, other=0.0)
    s = tl.load(sin + angle, mask=i < half, other=0.0)
    turned = tl.join(even * c - odd * s, even * s + odd * c)
    tl.store(at, tl.reshape(turned, [N_BLOCK, P_BLOCK]), mask=inside)


def rotate_heads(qkv: Tensor, cos: Tensor, sin: Tensor) -> None:
    """See levo.engine.codec_twins.rotate_heads."""
    rows, n_frames, _, heads, size = qkv.shape
    _rotate_heads[(rows * n_frames,)](
        qkv, cos, sin, n_frames, N=2 * heads, P=size,
        N_BLOCK=triton.next_power_of_2(2 * heads), P_BLOCK=triton.next_power_of_2(size), num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
