"""Decode attention over paged keys and values, split over the sequence in fixed-size splits.

One program attends one head of one row over one split of SPLIT positions and reads only filled positions. The
newest position is not read from memory: every program rotates the query itself, and the program of the last split
rotates the new key, writes key and value to their page, and starts its softmax from them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from levo.engine.pages import PAGE, Table
from levo.engine.slots import Slots

SPLIT = 512  # positions; part of the numbers, not a tuning knob: partial sums are combined split by split
BLOCK = 32  # positions read at once by one warp: 99 % of copy bandwidth on an H200 (docs/benchmarks/decode.md)


@triton.jit
def _rotate(x_ptr, cos, sin, HD: tl.constexpr):
    # First half of a head is paired with the second half (facts: rotate-half RoPE).
    half: tl.constexpr = HD // 2
    d = tl.arange(0, HD)
    x = tl.load(x_ptr + d).to(tl.float32)
    other = tl.load(x_ptr + (d + half) % HD).to(tl.float32)
    return x * cos + tl.where(d < half, -other, other) * sin


@triton.jit
def _take_block(q, keys, values, p, n_filled, peak, mass, acc, IS_WHOLE: tl.constexpr):
    # Online softmax: one block of positions more. Places behind the filled ones are not read.
    if IS_WHOLE:
        k = tl.load(keys).to(tl.float32)
        score = tl.sum(k * q[None, :], 1)
    else:
        filled = p < n_filled
        k = tl.load(keys, mask=filled[:, None], other=0.0).to(tl.float32)
        score = tl.where(filled, tl.sum(k * q[None, :], 1), -float("inf"))
    higher = tl.maximum(peak, tl.max(score, 0))
    weight = tl.exp(score - higher)
    shrink = tl.exp(peak - higher)
    if IS_WHOLE:
        v = tl.load(values).to(tl.float32)
    else:
        v = tl.load(values, mask=(p < n_filled)[:, None], other=0.0).to(tl.float32)
    acc = acc * shrink + tl.sum(v * weight[:, None], 0)
    return higher, mass * shrink + tl.sum(weight, 0), acc


@triton.jit
def _attend_split(
    qkv, pool, table, live, count, cos_table, sin_table, partial, peak_mass,
    base, layer_offset, unit_index, unit_stride, n_pages, n_units, scale,
    H: tl.constexpr, HD: tl.constexpr, PAGE_: tl.constexpr, SPLIT_: tl.constexpr, BLOCK_: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    slot = row // 2
    if tl.load(live + slot) == 0:
        return
    new = base + tl.load(count + slot)  # the position that this tick fills
    first = split * SPLIT_
    if first > new:
        return
    d = tl.arange(0, HD)
    p = tl.arange(0, BLOCK_)
    cos = tl.load(cos_table + new * HD + d).to(tl.float32)
    sin = tl.load(sin_table + new * HD + d).to(tl.float32)
    row_ptr = qkv + row * 3 * H * HD + head * HD
    q = _rotate(row_ptr, cos, sin, HD) * scale
    pages = table + (row * n_pages) * n_units + unit_index
    is_last = new < first + SPLIT_
    peak = -float("inf")
    mass = 0.0
    acc = tl.zeros([HD], dtype=tl.float32)
    if is_last:
        dtype = pool.dtype.element_ty
        k_new = _rotate(row_ptr + H * HD, cos, sin, HD).to(dtype)
        v_new = tl.load(row_ptr + 2 * H * HD + d)
        unit = tl.load(pages + (new // PAGE_) * n_units).to(tl.int64)
        at = pool + unit * unit_stride + layer_offset + head * PAGE_ * HD + (new % PAGE_) * HD + d
        tl.store(at, k_new)
        tl.store(at + H * PAGE_ * HD, v_new)
        peak = tl.sum(q * k_new.to(tl.float32), 0)
        mass = 1.0
        acc = v_new.to(tl.float32)
    stop = tl.minimum(new, first + SPLIT_)
    whole = stop - stop % BLOCK_
    for start in range(first, whole, BLOCK_):
        unit = tl.load(pages + (start // PAGE_) * n_units).to(tl.int64)
        tile = pool + unit * unit_stride + layer_offset + (head * PAGE_ + start % PAGE_) * HD
        at = tile + p[:, None] * HD + d[None, :]
        peak, mass, acc = _take_block(q, at, at + H * PAGE_ * HD, p, BLOCK_, peak, mass, acc, IS_WHOLE=True)
    if whole < stop:
        unit = tl.load(pages + (whole // PAGE_) * n_units).to(tl.int64)
        tile = pool + unit * unit_stride + layer_offset + (head * PAGE_ + whole % PAGE_) * HD
        at = tile + p[:, None] * HD + d[None, :]
        peak, mass, acc = _take_block(q, at, at + H * PAGE_ * HD, p, stop - whole, peak, mass, acc, IS_WHOLE=False)
    at = (split * tl.num_programs(0) + row) * H + head
    tl.store(partial + at * HD + d, acc)
    tl.store(peak_mass + at * 2, peak)
    tl.store(peak_mass + at * 2 + 1, mass)


@triton.jit
def _combine_splits(
    partial, peak_mass, live, count, out, base, rows,
    H: tl.constexpr, HD: tl.constexpr, SPLIT_: tl.constexpr, N_SPLITS: tl.constexpr,
):  # fmt: skip
    # All splits at once, not one after the other: one wait for memory. Splits without a position weigh nothing.
    row = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, HD)
    target = out + (row * H + head) * HD + d
    if tl.load(live + row // 2) == 0:
        tl.store(target, tl.zeros([HD], dtype=tl.float32).to(out.dtype.element_ty))
        return
    new = base + tl.load(count + row // 2)
    split = tl.arange(0, N_SPLITS)
    is_used = split * SPLIT_ <= new
    at = (split * rows + row) * H + head
    peak = tl.load(peak_mass + at * 2, mask=is_used, other=-float("inf"))
    mass = tl.load(peak_mass + at * 2 + 1, mask=is_used, other=0.0)
    sums = tl.load(partial + at[:, None] * HD + d[None, :], mask=is_used[:, None], other=0.0)
    weight = tl.exp(peak - tl.max(peak, 0))
    acc = tl.sum(sums * weight[:, None], 0) / tl.sum(mass * weight, 0)
    tl.store(target, acc.to(out.dtype.element_ty))


@dataclass(frozen=True)
class Scratch:
    """Partial sums of one layer, of the rows in use: partial float32 [splits, rows, H, hd], peak_mass [..., 2].

    out [R, H * hd]: the result; rows out of use stay zero.
    """

    partial: Tensor
    peak_mass: Tensor
    out: Tensor


def scratch(n_used: int, rows: int, heads: int, head_dim: int, n_positions: int, like: Tensor) -> Scratch:
    """Room for the splits of the longest song, in n_used slots of R = rows."""
    shape = (triton.cdiv(n_positions, SPLIT), 2 * n_used, heads)
    partial = torch.zeros(*shape, head_dim, dtype=torch.float32, device=like.device)
    peak_mass = torch.zeros(*shape, 2, dtype=torch.float32, device=like.device)
    return Scratch(partial, peak_mass, like.new_zeros(rows, heads * head_dim))


def attend(
    qkv: Tensor, table: Table, layer: int, slots: Slots, rope: tuple[Tensor, Tensor], scratch: Scratch
) -> Tensor:
    """See levo.engine.twins.attend. The result is overwritten by the next layer."""
    _, _, heads, head_dim = qkv.shape
    pool = table.pool.data
    unit, within = divmod(layer, pool.shape[1])
    n_splits, rows = scratch.partial.shape[:2]
    _attend_split[(rows, heads, n_splits)](
        qkv, pool, table.device, slots.live, slots.count, *rope, scratch.partial, scratch.peak_mass,
        slots.base, within * pool.stride(1), unit, pool.stride(0), *table.device.shape[1:], head_dim**-0.5,
        H=heads, HD=head_dim, PAGE_=PAGE, SPLIT_=SPLIT, BLOCK_=BLOCK, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    _combine_splits[(rows, heads)](
        scratch.partial, scratch.peak_mass, slots.live, slots.count, scratch.out, slots.base, rows,
        H=heads, HD=head_dim, SPLIT_=SPLIT, N_SPLITS=triton.next_power_of_2(n_splits), num_warps=2,
        enable_fp_fusion=True,
    )  # fmt: skip
    return scratch.out
