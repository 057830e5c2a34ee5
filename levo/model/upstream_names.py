"""Which tensors upstream's files must hold, name by name with their shapes. Knows no files."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from levo.errors import ModelError
from levo.model.codec_config import BGM, VOCAL, CodecConfig, VAEConfig
from levo.model.config import LMConfig
from levo.model.flow import Flow
from levo.model.lm import LM, LYRIC_TABLE, STRUCTURE_TABLE, STYLE_TABLE, unused_tensors
from levo.model.vae import VAE

Shape = tuple[int, ...]
_SHOWN = 8


def lm_shapes(config: LMConfig, found: Mapping[str, Sequence[int]]) -> dict[str, Shape]:
    """What inference reads of the language model. The rows of the three text tables are those found."""
    rows = [int(found[name][0]) if found.get(name) else 0 for name in (LYRIC_TABLE, STYLE_TABLE, STRUCTURE_TABLE)]
    with torch.device("meta"):
        lm = LM(config, *rows)
    return {name: tuple(tensor.shape) for name, tensor in lm.state_dict().items()}


def flow_shapes(config: CodecConfig) -> dict[str, Shape]:
    """What decoding reads of the flow model; weight norm is not folded in upstream's file."""
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in Flow(config).state_dict().items()}
    for name in (f"{VOCAL}.out_proj.weight", f"{BGM}.out_proj.weight"):
        rows, columns = shapes.pop(name)
        shapes |= {f"{name}_v": (rows, columns, 1), f"{name}_g": (rows, 1, 1)}
    return shapes


def vae_shapes(config: VAEConfig) -> dict[str, Shape]:
    """What decoding reads of the VAE; weight norm is not folded in upstream's file."""
    with torch.device("meta"):
        vae = VAE(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in vae.state_dict().items()}
    for path, part in vae.named_modules():
        if isinstance(part, nn.Conv1d | nn.ConvTranspose1d):
            shape = shapes.pop(f"{path}.weight")
            shapes |= {f"{path}.weight_v": shape, f"{path}.weight_g": (shape[0], 1, 1)}
    return shapes


def compare(wanted: Mapping[str, Shape], found: Mapping[str, Shape], where: str, allowed: Mapping[str, Shape]) -> None:
    """Raises ModelError that names what is missing, unknown and of another shape.

    allowed: tensors that may be there, in this shape, and are not used.
    """
    known = {**allowed, **wanted}
    missing = sorted(set(wanted) - set(found))
    unknown = sorted(set(found) - set(known))
    shapes = [f"{name} {list(found[name])} instead of {list(known[name])}"
              for name in sorted(set(found) & set(known)) if found[name] != known[name]]  # fmt: skip
    kinds = (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
    trouble = [f"{len(names)} {kind}: {', '.join(names[:_SHOWN])}" for kind, names in kinds if names]
    if trouble:
        raise ModelError(
            "the tensors are not those of this model: " + "; ".join(trouble),
            where=where,
            fix="use weights and config of one LeVo or LeVo 2 checkpoint",
        )


def lm_unused(config: LMConfig) -> dict[str, Shape]:
    """The six tensors of the language model that inference never reads."""
    return unused_tensors(config)
