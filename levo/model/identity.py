"""What a model directory is: its files, model.json, and the digest that names it. Knows no modules.

    model.json            identity and hashes; written last, so its presence means that the directory is complete
    config.yaml           upstream's keys with plain values
    model.safetensors     the language model, upstream's names without `audiolm.`; or in shards,
                          model-00001-of-00006.safetensors, with q,k,v and gate,up fused (levo/model/fused.py)
    codec/flow.safetensors, codec/vae.safetensors, codec/vae.json       upstream's names and layout
    tokenizer/vocab.json, tokenizer/merges.txt                          Qwen2's files
    prompts/index.json, prompts/tokens.safetensors                      automatic prompts, where the checkpoint has them

The digest covers everything that can change a song: the content, dtype and shape of every tensor, the other files, the
text limits, the silence codes and the number of the flow's attention heads. It does not cover the name.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from levo.errors import ModelError
from levo.songs.text import TextLimits

FORMAT = 1
MARK = "model.json"
LM_FILE, FLOW_FILE, VAE_FILE = "model.safetensors", "codec/flow.safetensors", "codec/vae.safetensors"
CONFIG_FILE, VAE_CONFIG_FILE = "config.yaml", "codec/vae.json"
TOKENIZER_FILES = ("tokenizer/merges.txt", "tokenizer/vocab.json")
TENSOR_FILES = (LM_FILE, FLOW_FILE, VAE_FILE)
PLAIN_FILES = (CONFIG_FILE, VAE_CONFIG_FILE, *TOKENIZER_FILES)
PROMPT_FILES = ("prompts/index.json", "prompts/tokens.safetensors")
AGAIN = "make the model directory again, or copy it again from where it is whole"


@dataclass(frozen=True)
class Identity:
    """What model.json says. files and tensors hold sha256 by file, and by file and tensor name.

    origin: what a conversion was made from; {} for a model that was not converted. The digest does not cover it.
    """

    name: str
    digest: str
    text: TextLimits
    silence_vocal: int
    silence_bgm: int
    codec_heads: int
    files: dict[str, str]
    tensors: dict[str, dict[str, str]]
    origin: dict[str, Any]

    @property
    def lm_files(self) -> list[str]:
        """Tensor files of the language model, in order."""
        return sorted(name for name in self.tensors if "/" not in name)


def read_identity(model_dir: Path) -> Identity:
    """Read model.json alone. Raises ModelError when it is missing, damaged, or does not agree with its own digest."""
    path = model_dir / MARK
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(
            "not a complete model directory: it has no model.json",
            where=str(model_dir),
            fix="give what `levo model convert` wrote; `levo model tiny DIR` writes a small model",
        ) from None
    except ValueError as error:
        raise ModelError(f"model.json is damaged: {error}", where=str(path), fix=AGAIN) from None
    try:
        if found["format"] != FORMAT:
            raise ModelError(f"model.json has format {found['format']!r}, this program reads {FORMAT}", where=str(path))
        identity = Identity(
            name=str(found["name"]),
            digest=str(found["digest"]),
            text=TextLimits(**found["text"]),
            silence_vocal=int(found["silence"]["vocal"]),
            silence_bgm=int(found["silence"]["bgm"]),
            codec_heads=int(found["codec_heads"]),
            files={str(name): str(content) for name, content in found["files"].items()},
            tensors={str(name): dict(content) for name, content in found["tensors"].items()},
            origin=dict(found.get("origin", {})),
        )
        lost = [name for name in (*PLAIN_FILES, FLOW_FILE, VAE_FILE) if name not in identity.files | identity.tensors]
        if lost or not identity.lm_files:
            raise KeyError(*lost or [LM_FILE])
        content = digest_of(found)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"model.json is damaged: {error!r}", where=str(path), fix=AGAIN) from None
    if content != identity.digest:
        raise ModelError(
            "model.json was changed: its content does not give its digest",
            where=f"{path}: digest {identity.digest[:12]}..., content {content[:12]}...",
            fix=AGAIN,
        )
    return identity


def bytes_sha256(content: bytes) -> str:
    """Hex sha256."""
    return hashlib.sha256(content).hexdigest()


def hash_head(dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """What stands before a tensor's content in its hash."""
    return f"{dtype} {list(shape)}\n".encode()


def tensor_sha256(tensor: Tensor) -> str:
    """Of dtype, shape and content (row by row, little-endian as in a safetensors file)."""
    content = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    hashed = hashlib.sha256(hash_head(tensor.dtype, tensor.shape))
    hashed.update(content.numpy().data)
    return hashed.hexdigest()


def digest_of(mark: Mapping[str, Any]) -> str:
    """Digest of the content of a model.json: sha256 over canonical JSON of all that can change a song."""
    covered = {key: mark[key] for key in ("text", "silence", "codec_heads", "files", "tensors")}
    canonical = json.dumps(covered, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def check_plain_files(model_dir: Path, identity: Identity) -> None:
    """Raises ModelError that names the config or tokenizer file that is missing or was changed."""
    for name, recorded in identity.files.items():
        try:
            content = (model_dir / name).read_bytes()
        except OSError as error:
            raise ModelError(f"{name} cannot be read: {error.strerror}", where=str(model_dir), fix=AGAIN) from None
        if bytes_sha256(content) != recorded:
            raise ModelError(f"{name} was changed since the model was written", where=str(model_dir), fix=AGAIN)
