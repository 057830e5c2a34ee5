"""A model directory into modules, and modules' tensors into a model directory (the layout: levo/model/identity.py).

Written whole or not at all; at every load each tensor is checked by name, shape and content. Knows no song.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save
from torch import Tensor

from levo.disk import write_bytes
from levo.errors import ModelError
from levo.model import flow as flow_module
from levo.model import fused, tensor_files
from levo.model import identity as ids
from levo.model import vae as vae_module
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.config import LMConfig, ModelConfig
from levo.model.flow import Flow
from levo.model.folder import put_in_place, refuse_foreign
from levo.model.identity import AGAIN, CONFIG_FILE, FLOW_FILE, LM_FILE, MARK, VAE_CONFIG_FILE, VAE_FILE, Identity
from levo.model.lm import LM, LYRIC_TABLE, STYLE_TABLE, unused_tensors
from levo.model.vae import VAE
from levo.songs.text import BASE_SPECIALS, STRUCTURE_TAGS, STYLE_TAGS, TextEncoder, TextLimits


@dataclass(frozen=True)
class Model:
    """A loaded model. lm is None when it was loaded for rendering alone.

    lm and the flow's matrix products are in `dtype`. The VAE is float32 whatever the dtype: it is the master from which
    a faster copy is made, and the one that decodes again what was not finite in fp16.
    """

    name: str
    digest: str
    config: ModelConfig
    pad_id: int
    device: torch.device
    dtype: torch.dtype
    lm: LM | None
    flow: Flow
    vae: VAE


@dataclass(frozen=True)
class Contents:
    """Everything that a model directory is made of. tokenizer: file name (vocab.json, merges.txt) -> bytes."""

    name: str
    text: TextLimits
    config: Mapping[str, Any]
    vae_config: Mapping[str, Any]
    silence_vocal: int
    silence_bgm: int
    codec_heads: int
    tokenizer: Mapping[str, bytes]
    lm: Mapping[str, Tensor]
    flow: Mapping[str, Tensor]
    vae: Mapping[str, Tensor]


def load(model_dir: Path, device: str, dtype: torch.dtype, *, language: bool = True) -> Model:
    """Load a model, memory-mapped, tensor by tensor onto the device; every tensor read is hashed on the way.

    language=False leaves the language model's files alone. Raises ModelError that names what is missing, unknown,
    changed, or of another shape or size.
    """
    identity = ids.read_identity(model_dir)
    ids.check_plain_files(model_dir, identity)
    encoder = TextEncoder(model_dir)
    config = read_config(model_dir, identity)
    target = torch.device(device)
    lm = None
    if language:
        unused = unused_tensors(config.lm)
        state: dict[str, Tensor] = {}
        for name in identity.lm_files:
            state |= tensor_files.read(model_dir / name, identity.tensors[name], unused.__contains__, target, dtype)
        lm = LM.from_state(config.lm, fused.split(state))
        _check_tables(lm, encoder, identity.text)
    flow = Flow.from_state(config.codec, _codec_state(model_dir, FLOW_FILE, identity, target), dtype)
    vae = VAE.from_state(config.codec.vae, _codec_state(model_dir, VAE_FILE, identity, target))
    return Model(identity.name, identity.digest, config, encoder.pad_id, target, dtype, lm, flow, vae)


def write(out: Path, contents: Contents) -> str:
    """Write a model directory and return its digest. Equal contents give equal bytes.

    All is written beside it and renamed, so `out` is never half a model. An older model directory there is replaced;
    raises ModelError when something else is there.
    """
    refuse_foreign(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f"{out.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        digest = _write_files(temporary, contents)
        put_in_place(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return digest


def _write_files(folder: Path, contents: Contents) -> str:
    plain = {
        CONFIG_FILE: yaml.safe_dump(dict(contents.config), sort_keys=False).encode(),
        VAE_CONFIG_FILE: (json.dumps(contents.vae_config, indent=1) + "\n").encode(),
        **{name: contents.tokenizer[Path(name).name] for name in ids.TOKENIZER_FILES},
    }
    states = {LM_FILE: contents.lm, FLOW_FILE: contents.flow, VAE_FILE: contents.vae}
    for name, content in plain.items():
        write_bytes(folder / name, content)
    for name, state in states.items():
        write_bytes(folder / name, save({key: tensor.contiguous() for key, tensor in state.items()}))
    hashes = {name: {key: ids.tensor_sha256(state[key]) for key in sorted(state)} for name, state in states.items()}
    mark = {
        "format": ids.FORMAT,
        "name": contents.name,
        "text": asdict(contents.text),
        "silence": {"vocal": contents.silence_vocal, "bgm": contents.silence_bgm},
        "codec_heads": contents.codec_heads,
        "files": {name: ids.bytes_sha256(content) for name, content in plain.items()},
        "tensors": hashes,
    }
    mark["digest"] = ids.digest_of(mark)
    write_bytes(folder / MARK, (json.dumps(mark, indent=1, sort_keys=True) + "\n").encode())
    return str(mark["digest"])


def read_config(model_dir: Path, identity: Identity) -> ModelConfig:
    """Both halves' shapes. Raises ModelError when the files do not belong together."""
    lm = LMConfig.from_upstream(yaml.safe_load((model_dir / CONFIG_FILE).read_text(encoding="utf-8")))
    vae = VAEConfig.from_upstream(json.loads((model_dir / VAE_CONFIG_FILE).read_text(encoding="utf-8")))
    codec = CodecConfig.from_upstream(
        tensor_files.shapes(model_dir / FLOW_FILE),
        vae,
        identity.codec_heads,
        identity.silence_vocal,
        identity.silence_bgm,
    )
    text = identity.text
    pairs = {
        "samples a second of the frames and of the VAE": (lm.frame_rate * vae.samples_per_frame, vae.sample_rate),
        "lyric tokens in config.yaml and model.json": (lm.lyric_len, text.lyric_tokens),
        "style tokens in config.yaml and model.json": (lm.style_len, text.style_tokens),
        "seconds of the longest song in config.yaml and model.json": (lm.max_seconds, text.max_seconds),
        "frames of an audio prompt in config.yaml and model.json": (lm.prompt_frames, text.prompt_frames),
        "audio codes in config.yaml and model.json": (lm.code_size, text.audio_codes),
    }
    for what, (one, other) in pairs.items():
        if one != other:
            raise ModelError(f"{what} differ: {one} and {other}", where=str(model_dir), fix=AGAIN)
    return ModelConfig(lm, codec)


def _check_tables(lm: LM, encoder: TextEncoder, text: TextLimits) -> None:
    """Every id that the tokenizers can give needs a row."""
    first_tag = encoder.pad_id + len(BASE_SPECIALS)
    style_tags = len(STYLE_TAGS) if text.version != "v1" else 0
    state = lm.state_dict()
    for name, needed in ((LYRIC_TABLE, first_tag + len(STRUCTURE_TAGS)), (STYLE_TABLE, first_tag + style_tags)):
        if len(state[name]) < needed:
            raise ModelError(
                f"{name} has {len(state[name])} rows, the tokenizer of version {text.version} needs {needed}",
                where="model.safetensors and tokenizer/vocab.json",
                fix="use the tokenizer files and the text version of the checkpoint",
            )


def _codec_state(model_dir: Path, name: str, identity: Identity, device: torch.device) -> dict[str, Tensor]:
    unused = flow_module.UNUSED if name == FLOW_FILE else vae_module.UNUSED
    wanted = identity.tensors[name]
    return tensor_files.read(model_dir / name, wanted, lambda key: key.startswith(unused), device, torch.float32)
