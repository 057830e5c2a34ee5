"""Tensors of a file that is not ours, memory-mapped: torch pickles (never more than tensors), safetensors, shards.

Nothing is copied until a piece is read, and what was read can be let go of again, so that memory stays bounded
whatever the file's size. Knows no model.
"""

import ctypes
import json
import math
import mmap
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from levo.errors import ModelError

PIECE_BYTES = 8 << 20
MADV_DONTNEED = 4  # Linux
COPY_AGAIN = "download or copy the file again, and compare its size and sha256 with those published"

_LFS = b"version https://git-lfs"
_ZIP, _LEGACY_PICKLE = b"PK\x03\x04", b"\x80"
_libc = ctypes.CDLL(None, use_errno=True)


class TensorSource:
    """Named tensors on disk. rename gives the name under which a stored tensor is known here, or None to leave it."""

    def __init__(self, path: Path, rename: Callable[[str], str | None] = lambda name: name) -> None:
        self.path = path
        self.files = files_of(path)
        self.tensors: dict[str, Tensor] = {}
        self.mapped: list[tuple[int, int]] = []
        self.n_left_out = 0
        for file in self.files:
            for stored, tensor in _open(file).items():
                name = rename(stored)
                if name is None:
                    self.n_left_out += 1
                elif name in self.tensors:
                    raise ModelError(f"two tensors are named {name}", where=str(file), fix="use one checkpoint")
                else:
                    self.tensors[name] = tensor
            self.mapped += _mappings(file)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def pieces(self, name: str, dtype: torch.dtype) -> Iterator[Tensor]:
        """A tensor row by row in flat pieces of bounded size, cast to dtype.

        Raises ModelError when a value is not finite, or no longer is after the cast.
        """
        flat = self.tensors[name].contiguous().reshape(-1)
        step = max(1, PIECE_BYTES // max(flat.element_size(), dtype.itemsize))
        for start in range(0, math.prod(flat.shape), step):
            piece = flat[start : start + step].to(dtype, copy=True)
            if not bool(torch.isfinite(piece).all()):
                raise ModelError(
                    f"tensor {name} holds values that are not finite as {str(dtype).removeprefix('torch.')}",
                    where=str(self.path),
                    fix=COPY_AGAIN,
                )
            yield piece
            self._let_go(flat[start : start + step])

    def _let_go(self, piece: Tensor) -> None:
        """Give the whole pages under a piece back. They are clean and come from the file again if they are needed;
        memory that is no mapping of the file must not be touched: it would come back as zeros."""
        start, end = piece.data_ptr(), piece.data_ptr() + piece.nbytes
        if any(low <= start and end <= high for low, high in self.mapped):
            first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
            if last > first:
                _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED)


def files_of(path: Path) -> list[Path]:
    """The files that a path means: itself, or the shards of a *.safetensors.index.json. Raises if one is missing."""
    if path.name.endswith(".index.json"):
        try:
            shards = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise ModelError(f"the index cannot be read: {error!r}", where=str(path), fix=COPY_AGAIN) from None
        files = [path.parent / Path(str(shard)).name for shard in shards]
    else:
        files = [path]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ModelError(
            f"{len(missing)} of {len(files)} files missing: {', '.join(missing[:5])}",
            where=str(path.parent),
            fix="download the missing files; a checkpoint is used whole or not at all",
        )
    return files


def _open(path: Path) -> Mapping[str, Tensor]:
    """Mapped tensors by name. Told apart by content, since suffixes lie."""
    if _head(path).startswith((_ZIP, _LEGACY_PICKLE)):
        return _flat(load_pickle(path), path)
    try:
        with safe_open(str(path), framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"not a whole tensor file: {error}", where=str(path), fix=COPY_AGAIN) from None


def _head(path: Path) -> bytes:
    """The file's first bytes. Raises ModelError if there are none to read, or if it stands for another file."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS))
    except OSError as error:
        reason = error.strerror or "not readable"
        raise ModelError(f"cannot be read: {reason}", where=str(path), fix="check the path and its rights") from None
    if head.startswith(_LFS):
        raise ModelError("a Git LFS pointer, not the file itself", where=str(path), fix="fetch it with `git lfs pull`")
    return head


def load_pickle(path: Path) -> Any:
    """Content of a torch file: tensors in plain containers, memory-mapped. Anything else is refused and never run."""
    mapped = _head(path).startswith(_ZIP)  # the older format cannot be mapped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the pickle's version, beside the error that follows
            return torch.load(path, map_location="cpu", mmap=mapped or None, weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()
        name = next((line for line in reason if "GLOBAL" in line or "Unsupported" in line), reason[0] if reason else "")
        raise ModelError(
            f"the pickle asks for more than tensors, and was not run: {name.strip()[:160]}",
            where=str(path),
            fix="use the published file; if it is your own, save its state dict as safetensors",
        ) from None
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        reason = str(error).splitlines()
        raise ModelError(
            f"not a whole torch file: {reason[0] if reason else type(error).__name__}", where=str(path), fix=COPY_AGAIN
        ) from None


def _flat(content: Any, path: Path) -> Mapping[str, Tensor]:
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not content:
        kind = type(content).__name__
        raise ModelError(f"no mapping of names to tensors, but {kind}", where=str(path), fix=COPY_AGAIN)
    other = [str(name) for name, value in content.items() if not isinstance(value, Tensor)]
    if other:
        raise ModelError(
            f"{len(other)} entries are no tensors: {', '.join(other[:5])}",
            where=str(path),
            fix="use the file with the model's state dict alone",
        )
    return {str(name): value for name, value in content.items()}


def _mappings(path: Path) -> list[tuple[int, int]]:
    """Address ranges of this process that map the file."""
    inode, ranges = path.stat().st_ino, []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and int(fields[4]) == inode and Path(fields[5]).name == path.resolve().name:
            low, high = fields[0].split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges
