"""Attention of a parallel pass over one row: the prefix, or the chunk of known positions behind a song's end."""

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from levo.engine.pages import KVRow, Table


def backend(x: Tensor) -> SDPBackend:
    """The one SDPA backend for this dtype and device: pinned, since another one would give other bits."""
    if not x.is_cuda:
        return SDPBackend.FLASH_ATTENTION
    return SDPBackend.MATH if x.dtype == torch.float32 else SDPBackend.FLASH_ATTENTION


class Sequence:
    """Attends n new positions of one row over `start` earlier ones and themselves, causally; writes them to pages."""

    def __init__(self, table: Table, row: int, start: int) -> None:
        self.kv, self.start = KVRow(table, row), start

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: [n, heads, head_dim] of positions start ... start + n - 1. Returns the same shape."""
        self.kv.write(layer, self.start, k, v)
        n, end = len(q), self.start + len(q)
        if self.start:
            keys, values = self.kv.read(layer, end)
        else:
            keys, values = k.transpose(0, 1), v.transpose(0, 1)
        with sdpa_kernel(backend(q)):
            out = scaled_dot_product_attention(
                q.transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=causal_lower_right(n, end) if self.start else None,
                is_causal=not self.start,
            )
        return out[0].transpose(0, 1)
