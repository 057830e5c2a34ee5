"""A transformer as a tick runs it: matrices fused, norms and additions fused, attention over pages.

The weights stay the model's: q, k and v of a layer become views of one matrix (gate and up too), so the plain modules,
which prefill and chunks use, go on working and nothing is held twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from levo.model.lm import Block, Transformer, rope_tables


def fuse(*layers: nn.Linear) -> Tensor:
    """One matrix [sum of outputs, d] whose rows the layers' weights become views of."""
    parts = [layer.weight for layer in layers]
    storage = parts[0].untyped_storage()
    if len(parts) > 1 and all(
        p.untyped_storage().data_ptr() == storage.data_ptr() and p.data_ptr() == parts[0].data_ptr() + i * p.nbytes
        for i, p in enumerate(parts)
    ):
        # Fused already (by an earlier engine of this model, or on disk).
        return torch.as_strided(parts[0], (sum(len(p) for p in parts), parts[0].shape[1]), parts[0].stride())
    fused = torch.cat([p.detach() for p in parts])
    for layer, piece in zip(layers, fused.split([len(p) for p in parts]), strict=True):
        layer.weight = nn.Parameter(piece, requires_grad=False)
    return fused


@dataclass(frozen=True)
class _Layer:
    norm1: Tensor
    qkv: Tensor
    o: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, block: nn.Module) -> "_Layer":
        assert isinstance(block, Block)
        attention, mlp = block.self_attn, block.mlp
        return cls(
            block.input_layernorm.weight,
            fuse(attention.q_proj, attention.k_proj, attention.v_proj),
            attention.o_proj.weight,
            block.post_attention_layernorm.weight,
            fuse(mlp.gate_proj, mlp.up_proj),
            mlp.down_proj.weight,
        )


class Stack:
    """Runs n positions through the transformer, whoever they belong to: that is known to the attention alone."""

    def __init__(self, transformer: Transformer, ops: ModuleType, n_positions: int, heads: tuple[int, int]) -> None:
        self.ops, self.heads, self.norm = ops, heads, transformer.norm
        self.layers = [_Layer.of(block) for block in transformer.layers]
        weight = self.norm.weight
        positions = torch.arange(n_positions, device=weight.device)
        cos, sin = rope_tables(positions, heads[1], transformer.theta, weight.dtype)
        self.rope = cos[:, 0].contiguous(), sin[:, 0].contiguous()  # [positions, hd]

    def run(self, x: Tensor, attend: Callable[[int, Tensor], Tensor], rows: int) -> Tensor:
        """x [n, d], overwritten -> hidden after the final norm [n, d]; the first `rows` rows of it are of use.

        attend: (layer, qkv [n, 3, H, hd] before rotation) -> attended values [n, H * hd].
        """
        ops, eps = self.ops, self.norm.eps
        norms = [*(layer.norm1 for layer in self.layers[1:]), self.norm.weight]
        h = ops.add_norm(x, None, self.layers[0].norm1, eps, rows)
        for number, (layer, next_norm) in enumerate(zip(self.layers, norms, strict=True)):
            attended = attend(number, linear(h, layer.qkv).unflatten(-1, (3, *self.heads)))
            h = ops.add_norm(x, linear(attended, layer.o), layer.norm2, eps, rows)
            gated = ops.gate(linear(h, layer.gate_up), rows)
            h = ops.add_norm(x, linear(gated, layer.down), next_norm, eps, rows)
        return h
