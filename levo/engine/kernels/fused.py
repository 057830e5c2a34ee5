"""The small steps between the matrix products of a tick, each in one pass over its data."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from levo.engine.pages import PAGE, Table
from levo.engine.slots import Slots

BLOCK = 1024


@triton.jit
def _add_norm(residual, delta, weight, out, width, eps, HAS_DELTA: tl.constexpr, BLOCK_: tl.constexpr):
    row = tl.program_id(0)
    d = tl.arange(0, BLOCK_)
    inside = d < width
    x = tl.load(residual + row * width + d, mask=inside, other=0.0)
    if HAS_DELTA:
        x = x + tl.load(delta + row * width + d, mask=inside, other=0.0)
        tl.store(residual + row * width + d, x, mask=inside)
    wide = x.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    scaled = wide.to(x.dtype) * tl.load(weight + d, mask=inside, other=0.0)
    tl.store(out + row * width + d, scaled, mask=inside)


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, rows: int) -> Tensor:
    """See levo.engine.twins.add_norm."""
    width = residual.shape[1]
    out = torch.empty_like(residual)
    _add_norm[(rows,)](
        residual, delta, weight, out, width, eps,
        HAS_DELTA=delta is not None, BLOCK_=triton.next_power_of_2(width), num_warps=8, enable_fp_fusion=True,
    )  # fmt: skip
    return out


@triton.jit
def _gate(gate_up, out, width, BLOCK_: tl.constexpr):
    row = tl.program_id(0)
    d = tl.program_id(1) * BLOCK_ + tl.arange(0, BLOCK_)
    inside = d < width
    g = tl.load(gate_up + row * 2 * width + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + d, mask=inside, other=0.0)
    silu = (g / (1.0 + tl.exp(-g))).to(up.dtype)
    tl.store(out + row * width + d, silu * up, mask=inside)


def gate(gate_up: Tensor, rows: int) -> Tensor:
    """See levo.engine.twins.gate."""
    width = gate_up.shape[1] // 2
    out = torch.empty(len(gate_up), width, dtype=gate_up.dtype, device=gate_up.device)
    _gate[(rows, triton.cdiv(width, BLOCK))](gate_up, out, width, BLOCK_=BLOCK, num_warps=4, enable_fp_fusion=True)
    return out


@triton.jit
def _store_hidden(
    hidden, pool, table, live, count, base, n_pages, width,
    PAGE_: tl.constexpr, BLOCK_: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(live + row // 2) == 0:
        return
    position = base + tl.load(count + row // 2)
    d = tl.arange(0, BLOCK_)
    page = tl.load(table + row * n_pages + position // PAGE_).to(tl.int64)
    value = tl.load(hidden + row * width + d, mask=d < width)
    tl.store(pool + (page * PAGE_ + position % PAGE_) * width + d, value, mask=d < width)


def store_hidden(hidden: Tensor, table: Table, slots: Slots) -> None:
    """See levo.engine.twins.store_hidden."""
    rows, width = hidden.shape
    _store_hidden[(rows,)](
        hidden, table.pool.data, table.device, slots.live, slots.count, slots.base, table.device.shape[1], width,
        PAGE_=PAGE, BLOCK_=triton.next_power_of_2(width), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _gather_sub_input(
    ids, table1, table2, pool, table, live, count, out, base, n_pages, width,
    PAGE_: tl.constexpr, BLOCK_: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = row // 2
    d = tl.arange(0, BLOCK_)
    inside = d < width
    id1 = tl.load(ids + slot * 2)
    id2 = tl.load(ids + slot * 2 + 1)
    x = tl.load(table1 + id1 * width + d, mask=inside) + tl.load(table2 + id2 * width + d, mask=inside)
    tl.store(out + row * 2 * width + d, x, mask=inside)
    alive = tl.load(live + slot) != 0
    position = base + tl.load(count + slot)
    page = tl.load(table + row * n_pages + position // PAGE_).to(tl.int64)
    at = pool + (page * PAGE_ + position % PAGE_) * width + d
    # A dead slot's page may hold anything, a NaN too; its row must stay harmless.
    hidden = tl.load(at, mask=inside, other=0.0)
    hidden = tl.where(alive, hidden, 0.0).to(hidden.dtype)
    tl.store(out + row * 2 * width + width + d, hidden, mask=inside)


def gather_sub_input(slots: Slots, table1: Tensor, table2: Tensor, hidden: Table) -> Tensor:
    """See levo.engine.twins.gather_sub_input."""
    width, rows = table1.shape[1], 2 * len(slots.live)
    out = torch.empty(rows, 2 * width, dtype=table1.dtype, device=table1.device)
    _gather_sub_input[(rows,)](
        slots.inputs, table1, table2, hidden.pool.data, hidden.device, slots.live, slots.count, out,
        slots.base, hidden.device.shape[1], width, PAGE_=PAGE, BLOCK_=triton.next_power_of_2(width), num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip
    return out
