"""Matrices that the engine multiplies by as one: how they lie on disk, and the views that the plain modules get.

A layer's q, k and v projections read the same input, and so do gate and up. On disk each set is one matrix, rows one
set after the other; in memory the modules' weights are row ranges of it, so that both uses share one copy.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

SETS: dict[str, tuple[str, ...]] = {
    "self_attn.qkv_proj.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "mlp.gate_up_proj.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}


def parts_of(name: str) -> tuple[str, ...]:
    """Names of the plain tensors that lie in the tensor `name`, in the order of their rows; itself if it is plain."""
    for fused, parts in SETS.items():
        if name.endswith(fused):
            stem = name.removesuffix(fused)
            return tuple(stem + part for part in parts)
    return (name,)


def fuse_names(names: Iterable[str]) -> list[str]:
    """The tensors on disk for these plain ones: a set's fused name stands where its first part stood."""
    fused: dict[str, None] = {}
    for name in names:
        stem = next((fused for fused, parts in SETS.items() if name.endswith(parts)), None)
        if stem is not None:
            part = next(part for part in SETS[stem] if name.endswith(part))
            name = name.removesuffix(part) + stem
        fused[name] = None
    return list(fused)


def split(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain tensors under upstream's names: views of the fused ones, and the others as they are."""
    plain: dict[str, Tensor] = {}
    for name, tensor in state.items():
        parts = parts_of(name)
        # A row count that does not divide gives parts of wrong shapes, which the loader names.
        pieces = tensor.chunk(len(parts)) if len(parts) > 1 else (tensor,)
        plain.update(zip(parts, pieces, strict=False))
    return plain
