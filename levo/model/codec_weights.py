"""Upstream's codec tensors into modules: weight norm folded once, names and shapes checked. Knows no files."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from levo.errors import ModelError

_SHOWN = 5


def fold_weight_norm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replace every weight_g, weight_v pair by weight = g v / |v|, in float32; the other tensors become float32 too.

    The norm runs over all axes but the first, no epsilon, also for transposed convolutions, whose first axis is the
    input channel. Raises ModelError for half a pair.
    """
    folded = {}
    for name, tensor in state.items():
        if name.endswith("weight_v"):
            stem = name.removesuffix("_v")
            gain = _other_half(state, f"{stem}_g", name).float()
            value = tensor.float()
            norm = value.flatten(1).norm(dim=1).view(-1, *[1] * (value.ndim - 1))
            folded[stem] = value * (gain / norm)
        elif name.endswith("weight_g"):
            _other_half(state, name.removesuffix("_g") + "_v", name)
        else:
            folded[name] = tensor.float()
    return folded


def _other_half(state: Mapping[str, Tensor], name: str, half: str) -> Tensor:
    if name not in state:
        raise ModelError(f"{half} comes without {name}", fix="use a whole checkpoint")
    return state[name]


def without(state: Mapping[str, Tensor], unused: Iterable[str]) -> dict[str, Tensor]:
    """The tensors whose names begin with none of the prefixes in `unused`."""
    prefixes = tuple(unused)
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def take_over(module: nn.Module, state: Mapping[str, Tensor], where: str) -> None:
    """Give the tensors to the module (no copy), for inference only.

    Raises ModelError that names the missing, unknown and wrongly shaped tensors. Nothing keeps random weights.
    """
    wanted = {name: tuple(t.shape) for name, t in module.state_dict().items()}
    shapes = [f"{name} {tuple(t.shape)} instead of {wanted[name]}" for name, t in sorted(state.items())
              if name in wanted and tuple(t.shape) != wanted[name]]  # fmt: skip
    missing, unknown = sorted(set(wanted) - set(state)), sorted(set(state) - set(wanted))
    kinds = (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
    trouble = [f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}" for kind, names in kinds if names]
    if trouble:
        raise ModelError(
            "the codec's tensors do not fit: " + "; ".join(trouble),
            where=where,
            fix="use the flow model and the VAE of a LeVo or LeVo 2 checkpoint",
        )
    module.load_state_dict(dict(state), strict=True, assign=True)
    module.requires_grad_(False).eval()


def cast_matrices(module: nn.Module, kinds: tuple[type[nn.Module], ...], dtype: torch.dtype) -> None:
    """Round the parameters of all submodules of these kinds to dtype; everything else stays float32."""
    for part in module.modules():
        if isinstance(part, kinds):
            part.to(dtype)
