"""The operations of a tick in plain torch: what the Triton kernels are tested against, and what a CPU runs.

Same names, arguments and results as levo.engine.kernels. Rows 2s and 2s + 1 belong to slot s; G slots, R = 2 G rows.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from levo.engine import sampling as rules
from levo.engine.pages import PAGE, KVRows, Table
from levo.engine.request import Sampling
from levo.engine.slots import Slots
from levo.model.lm import rotate

ROWS = 2


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float, rows: int) -> Tensor:
    """Add delta to residual in place, and return the RMS norm of the sum times weight. All [R, d].

    Only the first `rows` rows are of use; the others may hold anything.
    """
    if delta is not None:
        residual += delta
    wide = residual.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return wide.to(residual.dtype) * weight


def gate(gate_up: Tensor, rows: int) -> Tensor:
    """silu(first half) * second half. [R, 2 F] -> [R, F]; only the first `rows` rows are of use."""
    first, second = gate_up.chunk(2, dim=-1)
    return silu(first) * second


def attend(qkv: Tensor, table: Table, layer: int, slots: Slots, rope: tuple[Tensor, Tensor], scratch: None) -> Tensor:
    """Attend the position that the tick fills, after writing its key and value. Dead rows give zeros.

    qkv [R, 3, H, hd], not rotated; rope: cosines and sines [positions, hd].  Returns [R, H * hd].
    """
    rows, _, heads, head_dim = qkv.shape
    out = torch.zeros(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    for slot in slots.live.nonzero().flatten().tolist():
        position = slots.base + int(slots.count[slot])
        cos, sin = (t[position] for t in rope)
        pair = slice(ROWS * slot, ROWS * slot + ROWS)
        q, k, v = qkv[pair].unbind(1)  # [2, H, hd]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        kv = KVRows(table.pool.data, table.host[pair])
        kv.write(layer, position, k[:, None], v[:, None])
        keys, values = kv.read(layer, position + 1)
        # Over this slot's own positions only: its shapes, and with them its bits, depend on no other slot.
        out[pair] = scaled_dot_product_attention(q[:, :, None], keys, values).flatten(1)
    return out


def attend_pass(
    qkv: Tensor, pool: Tensor, units: Tensor, layer: int, starts: Tensor, rope: tuple[Tensor, Tensor]
) -> Tensor:
    """Attend n new positions of each row over its earlier ones and themselves, after writing their keys and values.

    qkv [rows, n, 3, H, hd], not rotated; units int32 [rows, pages, parts]; starts int32 [rows], all equal.
    Returns [rows * n, H * hd].
    """
    n, start = qkv.shape[1], int(starts[0])
    q, k, v = qkv.unbind(2)  # [rows, n, H, hd]
    cos, sin = (t[start : start + n, None] for t in rope)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    kv = KVRows(pool, units)
    kv.write(layer, start, k, v)
    keys, values = kv.read(layer, start + n)
    position = torch.arange(start + n, device=q.device)
    seen = position <= position[start:, None]
    attended = scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=seen)  # [rows, H, n, hd]
    return attended.transpose(1, 2).flatten(0, 1).flatten(1)


def store_hidden(hidden: Tensor, table: Table, slots: Slots) -> None:
    """Keep the main hidden states [R, d] of live rows at the position that the tick fills."""
    for slot in slots.live.nonzero().flatten().tolist():
        position = slots.base + int(slots.count[slot])
        for row in (ROWS * slot, ROWS * slot + 1):
            table.pool.data[table.host[row, position // PAGE, 0], position % PAGE] = hidden[row]


def gather_sub_input(slots: Slots, table1: Tensor, table2: Tensor, hidden: Table) -> Tensor:
    """Input of the fusion MLP [R, 2 d]: summed embeddings of the slot's ids, then the main hidden state."""
    x = (table1[slots.inputs[:, 0]] + table2[slots.inputs[:, 1]]).repeat_interleave(ROWS, dim=0)
    h = torch.zeros_like(x)
    for slot in slots.live.nonzero().flatten().tolist():
        position = slots.base + int(slots.count[slot])
        for row in (ROWS * slot, ROWS * slot + 1):
            h[row] = hidden.pool.data[hidden.host[row, position // PAGE, 0], position % PAGE]
    return torch.cat((x, h), dim=-1)


def sample_main(logits: Tensor, slots: Slots, sampling: Sampling) -> None:
    """Choose codebook 0's next id of every live slot from logits [R, >= C + 1], and advance the slot."""
    n = slots.banned.shape[1]
    guided = rules.guide(logits[:, :n], sampling.cfg)
    finite = torch.isfinite(guided).all(dim=1)
    values = rules.penalise(guided, slots.seen[:, 0, :n] > 0, sampling.penalty)
    values = values.masked_fill(slots.banned.bool(), -torch.inf)
    ids = rules.draw(values, sampling.temperature, sampling.top_k, slots.keys, slots.count.long())
    _advance(slots, ids.clamp(max=n - 1)[:, None], finite)


def sample_sub(logits: Tensor, slots: Slots, sampling: Sampling) -> None:
    """Choose codebooks 1 and 2 of every live slot, greedily, and advance the slot. An EOS in either ends it.

    logits [R, 2, >= C + 1].
    """
    n = slots.banned.shape[1]
    guided = rules.guide(logits[:, :, :n], sampling.cfg)
    finite = torch.isfinite(guided).flatten(1).all(dim=1)
    seen = slots.seen[:, :, :n].flatten(0, 1) > 0
    ids = rules.greedy(rules.penalise(guided.flatten(0, 1), seen, sampling.penalty)).clamp(max=n - 1)
    _advance(slots, ids.reshape(-1, 2), finite)


def _advance(slots: Slots, ids: Tensor, finite: Tensor) -> None:
    """Write ids [G, K] of live slots whose logits were finite; EOS, the cap and broken logits end a slot."""
    eos, window = slots.banned.shape[1] - 1, slots.history.shape[-1]
    for slot in slots.live.nonzero().flatten().tolist():
        if not finite[slot]:
            slots.failed[slot] = 1
            slots.live[slot] = 0
            continue
        step, chosen = int(slots.count[slot]), ids[slot]
        slots.inputs[slot] = chosen
        for book, code in enumerate(chosen.tolist()):
            slots.seen[slot, book, slots.history[slot, book, step % window]] -= 1
            slots.seen[slot, book, code] += 1
        slots.history[slot, :, step % window] = chosen.int()
        if bool((chosen == eos).any()):
            slots.live[slot] = 0
            continue
        slots.codes[slot, :, step] = chosen.int()
        slots.count[slot] += 1
        if step + 1 == int(slots.cap[slot]):
            slots.live[slot] = 0


def scratch(n_used: int, rows: int, heads: int, head_dim: int, n_positions: int, like: Tensor) -> None:
    """The twins need no room for partial sums."""
