"""Keys and values of the songs in flight, and the three ways to attend over them.

Each slot holds two rows (0 conditional, 1 unconditional). Attention runs slot by slot over that slot's own filled
positions, so its shapes, and with them its bits, depend on no other slot.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from levo.model.config import LMConfig

ROWS = 2  # a slot is a conditional and an unconditional row


class SlotCache:
    """k and v: [layers, slots, 2, heads, positions, head_dim]."""

    def __init__(self, config: LMConfig, layers: int, slots: int, positions: int, like: Tensor) -> None:
        """Dtype and device are those of `like`."""
        shape = (layers, slots, ROWS, config.num_heads, positions, config.head_dim)
        self.k = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.v = torch.zeros_like(self.k)


class Sequence:
    """Attends one row of one slot over `start` earlier positions and n new ones, causally (prefill, chunk)."""

    def __init__(self, cache: SlotCache, slot: int, row: int, start: int) -> None:
        self.k = cache.k[:, slot, row]  # [layers, heads, positions, head_dim]
        self.v = cache.v[:, slot, row]
        self.start = start

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: [n, heads, head_dim] of positions start .. start + n - 1. Returns the same shape."""
        n, end = q.shape[0], self.start + q.shape[0]
        self.k[layer][:, self.start : end] = k.transpose(0, 1)
        self.v[layer][:, self.start : end] = v.transpose(0, 1)
        position = torch.arange(end, device=q.device)
        visible = position[None] <= position[self.start :, None]  # [n, end]
        out = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            self.k[layer][None, :, :end],
            self.v[layer][None, :, :end],
            attn_mask=None if self.start == 0 else visible,
            is_causal=self.start == 0,
        )
        return out[0].transpose(0, 1).reshape(n, *q.shape[1:])


class Tick:
    """Attends the newest position of every live slot. Dead rows come back as zeros."""

    def __init__(self, cache: SlotCache, positions: dict[int, int]) -> None:
        """positions: the position that each live slot fills in this tick."""
        self.cache = cache
        self.positions = positions

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: [rows, heads, head_dim], rows 2s and 2s + 1 belong to slot s. Returns the same shape."""
        out = torch.zeros_like(q)
        for slot, position in self.positions.items():
            rows = slice(ROWS * slot, ROWS * slot + ROWS)
            keys, values = self.cache.k[layer, slot], self.cache.v[layer, slot]
            keys[:, :, position] = k[rows]
            values[:, :, position] = v[rows]
            attended = scaled_dot_product_attention(
                q[rows, :, None], keys[:, :, : position + 1], values[:, :, : position + 1]
            )
            out[rows] = attended[:, :, 0]
        return out
