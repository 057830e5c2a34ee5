"""Safetensors files written piece by piece, so that memory is bounded by a piece and not by the file.

The format (https://github.com/huggingface/safetensors): 8 bytes with the head's length, little-endian; the head, JSON
of name -> dtype, shape and byte range; the bytes. Padded with spaces so that the tensors begin at a page.
A finished file has a note beside it with its tensors' hashes; with it a later run can tell that the file is whole.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from levo.disk import whole_file, write_bytes
from levo.model.identity import hash_head
from levo.model.tensor_source import TensorSource

PAGE = 4096
DTYPES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32"}
NOTE_SUFFIX = ".whole"
_READ_BYTES = 8 << 20


@dataclass(frozen=True)
class Planned:
    """A tensor to be: parts (source, name) whose rows follow each other."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    parts: tuple[tuple[TensorSource, str], ...]

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def write_file(path: Path, tensors: Iterable[Planned]) -> dict[str, str]:
    """Write a file and its note; returns sha256 by tensor name. Raises OSError when the disk does not take it."""
    planned = list(tensors)
    hashes: dict[str, str] = {}
    with whole_file(path) as file:
        file.write(_head(planned))
        for tensor in planned:
            hashed = hashlib.sha256(hash_head(tensor.dtype, tensor.shape))
            for piece in _pieces(tensor):
                content = piece.view(torch.uint8).numpy().data
                hashed.update(content)
                file.write(content)
            hashes[tensor.name] = hashed.hexdigest()
    write_bytes(note_of(path), json.dumps(hashes).encode())
    return hashes


def note_of(path: Path) -> Path:
    """The note beside a finished file."""
    return path.with_name(path.name + NOTE_SUFFIX)


def whole(path: Path, tensors: Iterable[Planned]) -> dict[str, str] | None:
    """sha256 by tensor name when the file is there, as planned, and says what its note says; else None."""
    planned = list(tensors)
    try:
        noted: dict[str, str] = json.loads(note_of(path).read_bytes())
        with open(path, "rb") as file:
            head = _head(planned)
            if file.read(len(head)) != head or list(noted) != [tensor.name for tensor in planned]:
                return None
            for tensor in planned:
                if _hash_next(file, tensor) != noted[tensor.name]:
                    return None
            return None if file.read(1) else noted
    except (OSError, ValueError):
        return None


def _hash_next(file: IO[bytes], tensor: Planned) -> str:
    hashed, left = hashlib.sha256(hash_head(tensor.dtype, tensor.shape)), tensor.n_bytes
    while left:
        content = file.read(min(left, _READ_BYTES))
        if not content:
            break
        hashed.update(content)
        left -= len(content)
    return hashed.hexdigest()


def _pieces(tensor: Planned) -> Iterable[Tensor]:
    for source, name in tensor.parts:
        yield from source.pieces(name, tensor.dtype)


def _head(planned: list[Planned]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in planned:
        end = start + tensor.n_bytes
        entries[tensor.name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    padded = -(-(8 + len(text)) // PAGE) * PAGE - 8
    return padded.to_bytes(8, "little") + text.ljust(padded)
