"""The operations of a tick in plain torch: what the Triton kernels are tested against, and what a CPU runs.

Same names, arguments and results as levo.engine.kernels. Rows 2s and 2s + 1 belong to slot s; G slots, R = 2 G rows.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from levo.engine import sampling as rules
from levo.engine.pages import PAGE, KVRow, Table
from levo.engine.request import Sampling
from levo.engine.slots import Slots
from levo.model.lm import rotate

ROWS = 2


def add_norm(residual: Tensor, delta: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """Add delta to residual in place, and return the RMS norm of the sum times weight. All [R, d]."""
    if delta is not None:
        residual += delta
    wide = residual.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return wide.to(residual.dtype) * weight


def gate(gate_up: Tensor) -> Tensor:
    """silu(first half) * second half. [R, 2 F] -> [R, F]."""
    first, second = gate_up.chunk(2, dim=-1)
    return silu(first) * second


def attend(
    qkv: Tensor, table: Table, layer: int, slots: Slots, rope: tuple[Tensor, Tensor], scratch: Tensor | None
) -> Tensor:
    """Attend the position that the tick fills, after writing its key and value. Dead rows give zeros.

    qkv [R, 3, H, hd], not rotated; rope: cosines and sines [positions, hd].  Returns [R, H * hd].
    """
    rows, _, heads, head_dim = qkv.shape
    out = torch.zeros(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    for slot in slots.live.nonzero().flatten().tolist():
        position = slots.base + int(slots.count[slot])
        cos, sin = (t[position] for t in rope)
        for row in (ROWS * slot, ROWS * slot + 1):
            q, k, v = qkv[row]  # [H, hd]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            kv = KVRow(table, row)
            kv.write(layer, position, k[None], v[None])
            keys, values = kv.read(layer, position + 1)
            # Over this row's own positions only: its shapes, and with them its bits, depend on no other row.
            out[row] = scaled_dot_product_attention(q[None, :, None], keys[None], values[None]).flatten()
    return out


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
    """Choose codebook 0's next id of every live slot from logits [R, C + 1], and advance the slot."""
    C = logits.shape[1] - 1
    guided = rules.guide(logits, sampling.cfg)
    finite = torch.isfinite(guided).all(dim=1)
    values = rules.penalise(guided, slots.history[:, 0].long(), sampling.penalty, C)
    values = values.masked_fill(slots.banned.bool(), -torch.inf)
    ids = rules.draw(values, sampling.temperature, sampling.top_k, slots.keys, slots.count.long())
    _advance(slots, ids.clamp(max=C)[:, None], finite, C)


def sample_sub(logits1: Tensor, logits2: Tensor, slots: Slots, sampling: Sampling) -> None:
    """Choose codebooks 1 and 2 of every live slot, greedily, and advance the slot. An EOS in either ends it."""
    C = logits1.shape[1] - 1
    guided = torch.stack([rules.guide(logits, sampling.cfg) for logits in (logits1, logits2)], dim=1)
    finite = torch.isfinite(guided).flatten(1).all(dim=1)
    history = slots.history.long().flatten(0, 1)
    ids = rules.greedy(rules.penalise(guided.flatten(0, 1), history, sampling.penalty, C)).clamp(max=C)
    _advance(slots, ids.reshape(-1, 2), finite, C)


def _advance(slots: Slots, ids: Tensor, finite: Tensor, C: int) -> None:
    """Write ids [G, K] of live slots whose logits were finite; EOS, the cap and broken logits end a slot."""
    alive = slots.live.bool()
    slots.failed[alive & ~finite] = 1
    slots.live[alive & ~finite] = 0
    chosen = (alive & finite).nonzero().flatten()
    ids, step = ids[chosen], slots.count[chosen].long()
    slots.inputs[chosen] = ids
    slots.history[chosen, :, step % slots.history.shape[-1]] = ids.int()
    is_eos = (ids == C).any(dim=1)
    going = chosen[~is_eos]
    slots.codes[going, :, step[~is_eos]] = ids[~is_eos].int()
    slots.count[going] += 1
    slots.live[chosen[is_eos]] = 0
    slots.live[slots.count >= slots.cap] = 0


def scratch(rows: int, heads: int, head_dim: int, n_positions: int, device: torch.device) -> None:
    """The twins need no room for partial sums."""
