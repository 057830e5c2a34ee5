"""Integer arrays from a user's .npy, .safetensors or .pt file, without torch and without running anything in them.

A .pt file is a zip with a pickle that says how its tensor lies in a storage file beside it. The pickle is read by a
reader that knows the two names a tensor needs and refuses every other.
"""

import io
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from levo.errors import ManifestError

SUFFIXES = (".npy", ".safetensors", ".pt")
MAX_BYTES = 1 << 20  # 3 x 250 tokens of 8 bytes are 6 kB
_STORAGES = {"LongStorage": "<i8", "IntStorage": "<i4", "ShortStorage": "<i2"}


def read_prompt_file(path: Path) -> np.ndarray:
    """The one array in a file. Raises ManifestError that says what is wrong."""
    try:
        if path.suffix not in SUFFIXES:
            raise ValueError(f"its name ends in {path.suffix or 'nothing'}, not in one of {', '.join(SUFFIXES)}")
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes, and a prompt is a few thousand")
        found = {".npy": _npy, ".safetensors": _safetensors, ".pt": _torch}[path.suffix](path)
    except OSError as error:
        raise ManifestError(
            f"the prompt cannot be read: {error.strerror or 'not readable'}",
            where=str(path),
            fix="set `prompt_tokens` to a file that is there; relative paths start at the manifest's folder",
        ) from None
    except (ValueError, SafetensorError, pickle.UnpicklingError, zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ManifestError(
            f"the prompt cannot be read: {error}", where=str(path), fix="write one integer array [3, frames] there"
        ) from None
    return found


def _npy(path: Path) -> np.ndarray:
    found: np.ndarray = np.load(path, allow_pickle=False)
    return found


def _safetensors(path: Path) -> np.ndarray:
    tensors = load_file(path)
    if len(tensors) != 1:
        raise ValueError(f"it holds {len(tensors)} tensors, not one")
    return next(iter(tensors.values()))


def _torch(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(names) != 1 or sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
            raise ValueError("it is no file of torch.save with one small tensor")
        root = names[0].removesuffix("data.pkl")
        if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
            raise ValueError("it was written on a big-endian machine")
        found = _TensorReader(archive, root).load()
    if not isinstance(found, np.ndarray):
        raise ValueError(f"it holds {type(found).__name__}, not one tensor")
    return found


class _TensorReader(pickle.Unpickler):
    """Reads a pickled tensor. Nothing but _rebuild is ever called."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        super().__init__(io.BytesIO(archive.read(f"{root}data.pkl")))
        self.archive, self.root = archive, root

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if (module, name) == ("collections", "OrderedDict"):
            return dict  # a tensor's hooks: always empty
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and a prompt is one integer tensor")

    def persistent_load(self, pid: Any) -> np.ndarray:
        kind, dtype, key, *_ = pid
        if kind != "storage" or not isinstance(dtype, str) or not str(key).isalnum():
            raise pickle.UnpicklingError("a storage of an unknown kind")
        return np.frombuffer(self.archive.read(f"{self.root}data/{key}"), dtype=dtype)


def _rebuild(storage: np.ndarray, offset: int, size: Any, stride: Any, *_: Any) -> np.ndarray:
    if len(size) != len(stride) or min([offset, *size, *stride], default=0) < 0:
        raise pickle.UnpicklingError("a tensor of an impossible shape")
    if math.prod(size) > MAX_BYTES:
        raise pickle.UnpicklingError("a tensor that is no prompt: too large")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if 0 not in size and last >= len(storage):
        raise pickle.UnpicklingError("a tensor larger than its storage")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], tuple(size), steps).copy()
