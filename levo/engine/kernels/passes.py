"""Attention of a parallel pass: many new positions of a row over its pages, causally.

Two kernels: the first rotates queries and keys and writes keys and values to their pages; the second attends, one
program a block of queries, over all earlier positions and the new ones. Where a row starts is read on the device, so
a pass is captured once and serves every song.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from levo.engine.pages import PAGE

QUERIES = 64
KEYS = 64


@triton.jit
def _rotate_and_write(
    qkv, pool, units, starts, cos_table, sin_table, n, layer_offset, unit_index, unit_stride, n_pages, n_units,
    H: tl.constexpr, HD: tl.constexpr, PAGE_: tl.constexpr, H_BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    row = tl.program_id(1)
    half: tl.constexpr = HD // 2
    position = tl.load(starts + row) + i
    h = tl.arange(0, H_BLOCK)[:, None]
    d = tl.arange(0, half)[None, :]
    inside = h < H
    cos = tl.load(cos_table + position * HD + d).to(tl.float32)
    sin = tl.load(sin_table + position * HD + d).to(tl.float32)
    base = qkv + (row * n + i) * 3 * H * HD + h * HD + d
    unit = tl.load(units + (row * n_pages + position // PAGE_) * n_units + unit_index).to(tl.int64)
    page = pool + unit * unit_stride + layer_offset + (h * PAGE_ + position % PAGE_) * HD + d
    dtype = pool.dtype.element_ty
    q1 = tl.load(base, mask=inside).to(tl.float32)
    q2 = tl.load(base + half, mask=inside).to(tl.float32)
    tl.store(base, (q1 * cos - q2 * sin).to(dtype), mask=inside)
    tl.store(base + half, (q2 * cos + q1 * sin).to(dtype), mask=inside)
    k1 = tl.load(base + H * HD, mask=inside).to(tl.float32)
    k2 = tl.load(base + H * HD + half, mask=inside).to(tl.float32)
    tl.store(page, (k1 * cos - k2 * sin).to(dtype), mask=inside)
    tl.store(page + half, (k2 * cos + k1 * sin).to(dtype), mask=inside)
    tl.store(page + H * PAGE_ * HD, tl.load(base + 2 * H * HD, mask=inside), mask=inside)
    tl.store(page + H * PAGE_ * HD + half, tl.load(base + 2 * H * HD + half, mask=inside), mask=inside)


@triton.jit
def _attend_pass(
    qkv, pool, units, starts, out, n, layer_offset, unit_index, unit_stride, n_pages, n_units, scale,
    H: tl.constexpr, HD: tl.constexpr, PAGE_: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    head = tl.program_id(1)
    row = tl.program_id(2)
    start = tl.load(starts + row)
    i = block * M + tl.arange(0, M)
    j = tl.arange(0, N)
    d = tl.arange(0, HD)
    rows = (row * n + i) * 3 * H * HD + head * HD
    q = tl.load(qkv + rows[:, None] + d[None, :], mask=(i < n)[:, None], other=0.0)
    peak = tl.full([M], -float("inf"), dtype=tl.float32)
    mass = tl.zeros([M], dtype=tl.float32)
    acc = tl.zeros([M, HD], dtype=tl.float32)
    end = start + tl.minimum(n, block * M + M)
    for first in range(0, end, N):
        unit = tl.load(units + (row * n_pages + first // PAGE_) * n_units + unit_index).to(tl.int64)
        page = pool + unit * unit_stride + layer_offset + (head * PAGE_ + first % PAGE_) * HD
        at = page + j[:, None] * HD + d[None, :]
        filled = ((first + j) < end)[:, None]
        k = tl.load(at, mask=filled, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = (first + j)[None, :] <= (start + i)[:, None]
        score = tl.where(visible, score, -float("inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(peak - higher)
        v = tl.load(at + H * PAGE_ * HD, mask=filled, other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        mass = mass * shrink + tl.sum(weight, 1)
        peak = higher
    target = out + ((row * n + i) * H + head)[:, None] * HD + d[None, :]
    tl.store(target, (acc / mass[:, None]).to(out.dtype.element_ty), mask=(i < n)[:, None])


def attend_pass(
    qkv: Tensor, pool: Tensor, units: Tensor, layer: int, starts: Tensor, rope: tuple[Tensor, Tensor]
) -> Tensor:
    """See levo.engine.twins.attend_pass. Rotates the queries in qkv in place."""
    rows, n, _, heads, head_dim = qkv.shape
    out = torch.empty(rows * n, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    unit, within = divmod(layer, pool.shape[1])
    where = (within * pool.stride(1), unit, pool.stride(0), *units.shape[1:])
    _rotate_and_write[(n, rows)](
        qkv, pool, units, starts, *rope, n, *where,
        H=heads, HD=head_dim, PAGE_=PAGE, H_BLOCK=triton.next_power_of_2(heads), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    _attend_pass[(triton.cdiv(n, QUERIES), heads, rows)](
        qkv, pool, units, starts, out, n, *where, head_dim**-0.5,
        H=heads, HD=head_dim, PAGE_=PAGE, M=QUERIES, N=KEYS, num_warps=4, num_stages=2, enable_fp_fusion=True,
    )  # fmt: skip
    return out
