"""The VAE's elementwise steps and its last convolution, channels last: each reads its input once.

A snake takes the bias of the convolution before it along, so no convolution adds one by itself.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 4096
CONV_ROWS = 128


@triton.jit
def _sin_squared(u):
    """sin(u)^2 by its period pi: three-part reduction (exact below 2^16 periods), then an odd polynomial.

    Absolute error about 4e-7 up to |u| = 1e4. Infinity and NaN give NaN.
    """
    periods = tl.floor(u * 0.3183098861837907 + 0.5)
    r = u - periods * 3.140625
    r = r - periods * 9.67502593994140625e-4
    r = r - periods * 1.509957990978376432e-7
    q = r * r
    s = 2.5904884996346004e-06 * q - 0.00019800897762434233
    s = s * q + 0.008332899823346921
    s = s * q - 0.166666476346393
    s = (s * q + 0.9999999765898803) * r
    return s * s


@triton.jit
def _snake(
    x, bias_alpha_scale, out, n_rows, PAIRS: tl.constexpr, C: tl.constexpr, C_BLOCK: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    # No argument may be called `params`: Triton 3.6 writes a launcher with a variable of that name.
    first = tl.program_id(0).to(tl.int64) * ROWS
    i = tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, C_BLOCK)[None, :]
    inside = (first + i < n_rows) & (c < C)
    bias = tl.load(bias_alpha_scale + c, mask=c < C, other=0.0)
    alpha = tl.load(bias_alpha_scale + C + c, mask=c < C, other=0.0)
    scale = tl.load(bias_alpha_scale + 2 * C + c, mask=c < C, other=0.0)
    y = tl.load(x + first * C + (i * C + c), mask=inside, other=0.0).to(tl.float32) + bias
    y = (y + _sin_squared(alpha * y) * scale).to(out.dtype.element_ty)
    if PAIRS:
        # Position l is the second half of row l and the first half of row l + 1.
        second = out + first * 2 * C + (i * 2 * C + C + c)
        tl.store(second, y, mask=inside)
        tl.store(second + C, y, mask=inside)
    else:
        tl.store(out + first * C + (i * C + c), y, mask=inside)


def _launch_snake(x: Tensor, params: Tensor, out: Tensor, *, pairs: bool) -> None:
    n_rows, channels = x.shape
    block = triton.next_power_of_2(channels)
    rows = max(1, ELEMENTS // block)
    grid = (triton.cdiv(n_rows, rows),)
    _snake[grid](
        x, params, out, n_rows,
        PAIRS=pairs, C=channels, C_BLOCK=block, ROWS=rows, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def snake(x: Tensor, params: Tensor, out: Tensor) -> Tensor:
    """See levo.engine.codec_twins.snake."""
    _launch_snake(x, params, out, pairs=False)
    return out


def snake_pairs(x: Tensor, params: Tensor) -> Tensor:
    """See levo.engine.codec_twins.snake_pairs."""
    n, channels = x.shape
    pairs = torch.empty(n + 1, 2 * channels, dtype=x.dtype, device=x.device)
    pairs[0, :channels].zero_()
    pairs[-1, channels:].zero_()
    _launch_snake(x, params, pairs, pairs=True)
    return pairs


@triton.jit
def _last_conv(
    x, weight, out, n_rows,
    N_OUT: tl.constexpr, N: tl.constexpr, TAPS: tl.constexpr, C: tl.constexpr, C_BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C_BLOCK)
    n = tl.arange(0, N)
    acc = tl.zeros([ROWS, N], dtype=tl.float32)
    for tap in tl.static_range(TAPS):
        at = row + (tap - TAPS // 2)
        seen = ((at >= 0) & (at < n_rows))[:, None] & (c < C)[None, :]
        tile = tl.load(x + at[:, None] * C + c[None, :], mask=seen, other=0.0)
        w = tl.load(weight + (tap * C + c[:, None]) * N + n[None, :], mask=(c < C)[:, None], other=0.0)
        acc += tl.dot(tile, w, input_precision="ieee")
    tl.store(out + n[None, :] * n_rows + row[:, None], acc, mask=(row < n_rows)[:, None] & (n < N_OUT)[None, :])


def last_conv(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """See levo.engine.codec_twins.last_conv."""
    n_rows, channels = x.shape
    taps, _, width = weight.shape
    _last_conv[(triton.cdiv(n_rows, CONV_ROWS),)](
        x, weight, out, n_rows, N_OUT=len(out), N=width, TAPS=taps, C=channels,
        C_BLOCK=max(16, triton.next_power_of_2(channels)), ROWS=CONV_ROWS, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
