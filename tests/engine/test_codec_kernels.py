"""The codec's kernels against their torch twins and float64: on the GPU, and in Triton's interpreter without one."""

import math
import os
from types import ModuleType

import pytest
import torch
from torch import Tensor

ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from levo.engine import codec_twins, kernels  # noqa: E402
from levo.engine.vae_decoder import exact_convolutions  # noqa: E402

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
BOUND = {torch.float32: 2e-6, torch.float16: 1e-3}
"""Largest error relative to the result's norm: the rounding of the result in each dtype, with room."""
BOTH = pytest.mark.parametrize("ops", [kernels, codec_twins], ids=["kernel", "twin"])


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def error(found: Tensor, exact: Tensor) -> float:
    """Distance over norm, in float64. NaN where something was not written."""
    return float((found.double() - exact).norm() / exact.norm())


@pytest.fixture(params=[torch.float32, torch.float16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def snake_inputs(n: int, channels: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, parameters, and the exact result."""
    x = random(n, channels, dtype=dtype) * 3
    params = torch.stack([random(channels, seed=1), random(channels, seed=2).exp(), random(channels, seed=3).exp()])
    bias, alpha, scale = params.double()
    y = x.double() + bias
    return x, params, y + torch.sin(alpha * y).square() * scale


@BOTH
@pytest.mark.parametrize(("n", "channels"), [(300, 8), (37, 128), (5, 2048), (11, 12)])
def test_snake(ops: ModuleType, dtype: torch.dtype, n: int, channels: int) -> None:
    x, params, exact = snake_inputs(n, channels, dtype)
    before = x.clone()
    out = ops.snake(x, params, torch.empty_like(x))
    assert out.dtype == dtype and torch.equal(x, before)
    assert error(out, exact) < BOUND[dtype]
    assert torch.equal(ops.snake(x, params, x), out) and torch.equal(x, out), "in place gives the same"


@BOTH
def test_snake_of_a_steep_channel(ops: ModuleType) -> None:
    """Angles of thousands of periods: a snake of a trained model may be steep."""
    x = random(200, 16) * 4
    params = torch.stack([torch.zeros(16), torch.full((16,), 1024.0), torch.ones(16)]).to(DEVICE)
    exact = x.double() + torch.sin(1024.0 * x.double()).square()  # a power of two: the product is exact in float32
    assert float((ops.snake(x, params, torch.empty_like(x)).double() - exact).abs().max()) < 2e-6


@BOTH
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, in the interpreter
def test_snake_keeps_what_is_not_finite(ops: ModuleType) -> None:
    """Else a window that overflowed in halves could pass as sound."""
    x = torch.tensor([[math.inf, -math.inf, math.nan, 1.0]], device=DEVICE)
    out = ops.snake(x, torch.ones(3, 4, device=DEVICE), torch.empty_like(x))
    assert torch.isfinite(out).tolist() == [[False, False, False, True]]


@BOTH
@pytest.mark.parametrize(("n", "channels"), [(300, 8), (37, 128), (1, 12)])
def test_snake_pairs_put_each_position_beside_the_one_before(
    ops: ModuleType, dtype: torch.dtype, n: int, channels: int
) -> None:
    x, params, exact = snake_inputs(n, channels, dtype)
    pairs = ops.snake_pairs(x, params)
    edge = exact.new_zeros(1, channels)
    assert pairs.shape == (n + 1, 2 * channels) and pairs.dtype == dtype
    assert error(pairs, torch.cat([torch.cat([edge, exact]), torch.cat([exact, edge])], dim=1)) < BOUND[dtype]
    assert not pairs[0, :channels].any() and not pairs[-1, channels:].any()


@BOTH
@pytest.mark.parametrize(("n", "channels"), [(300, 8), (128, 128), (2, 24)])
def test_last_conv(ops: ModuleType, dtype: torch.dtype, n: int, channels: int) -> None:
    x, weight = random(n, channels, dtype=dtype), random(7, channels, 16, seed=1, dtype=dtype)
    weight[:, :, 2:] = 0
    out = torch.full((2, n), math.nan, device=DEVICE)
    with exact_convolutions():
        ops.last_conv(x, weight, out)
    kernel = weight[:, :, :2].double().permute(2, 1, 0)
    exact = torch.nn.functional.conv1d(x.double().t()[None], kernel, padding=3)[0]
    assert error(out, exact) < BOUND[dtype]


@BOTH
@pytest.mark.parametrize("gated", [True, False])
def test_modulate(ops: ModuleType, dtype: torch.dtype, gated: bool) -> None:
    h, width = random(6, 44) * 3 + 1, 44
    gate, delta = random(width, seed=1), random(6, width, seed=2, dtype=dtype)
    shift_scale, norm = random(2, width, seed=3), (random(width, seed=4), random(width, seed=5))
    total = h.double() + gate.double() * delta.double() * gated
    exact = torch.nn.functional.layer_norm(total, (width,), *(t.double() for t in norm), eps=1e-5)
    exact = exact * (1 + shift_scale[1].double()) + shift_scale[0].double()
    out = ops.modulate(h, (gate, delta) if gated else None, shift_scale, norm, dtype)
    assert out.dtype == dtype and h.dtype == torch.float32
    assert error(h, total) < BOUND[torch.float32] and error(out, exact) < BOUND[dtype]


@BOTH
@pytest.mark.parametrize(("heads", "head_dim", "size"), [(5, 14, 16), (2, 22, 24)])
def test_rotate_heads(ops: ModuleType, dtype: torch.dtype, heads: int, head_dim: int, size: int) -> None:
    """Neighbouring channels turn together; values and padding stay."""
    n_frames = 9
    qkv = random(2, n_frames, 3, heads, size, dtype=dtype)
    qkv[..., head_dim:] = 0
    angle = random(n_frames, head_dim // 2, seed=1)
    pad = (0, (size - head_dim) // 2)
    cos, sin = (torch.nn.functional.pad(t, pad) for t in (angle.cos(), angle.sin()))
    exact = qkv.double().clone()
    even, odd = exact[:, :, :2, :, 0:head_dim:2].clone(), exact[:, :, :2, :, 1:head_dim:2].clone()
    c, s = (t[:, None, None, : head_dim // 2].double() for t in (cos, sin))
    exact[:, :, :2, :, 0:head_dim:2], exact[:, :, :2, :, 1:head_dim:2] = even * c - odd * s, even * s + odd * c
    values = qkv[:, :, 2].clone()
    ops.rotate_heads(qkv, cos, sin)
    assert error(qkv, exact) < BOUND[dtype]
    assert torch.equal(qkv[:, :, 2], values) and not qkv[..., head_dim:].any()
