"""Our own safetensors files onto a device: memory-mapped, no second copy on the host, every tensor's hash checked.

The files stay in the page cache, where the other ranks of a node find them. Hashing runs in threads beside the copies
to the device. Knows no modules.
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from levo.errors import ModelError
from levo.model.identity import AGAIN, tensor_sha256

HASH_THREADS = 8
_SHOWN = 5


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor, from the file's head."""
    return {name: shape for name, (shape, _) in entries(path).items()}


def entries(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype ("F16", "F32", ...) of every tensor, from the file's head."""
    with _open(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (tuple(part.get_shape()), str(part.get_dtype())) for name, part in slices.items()}


def read(
    path: Path,
    recorded: Mapping[str, str],
    unused: Callable[[str], bool],
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Tensors of a file, but the unused ones, on the device in dtype.

    recorded: sha256 by tensor name. Raises ModelError when the file's tensors are not those.
    """
    threads = min(HASH_THREADS, os.cpu_count() or 1)
    with _open(path) as file, ThreadPoolExecutor(threads, thread_name_prefix="hash") as pool:
        found = set(file.keys())
        kinds = (("missing", set(recorded) - found), ("unknown", found - set(recorded)))
        trouble = [f"{len(names)} {kind}: {', '.join(sorted(names)[:_SHOWN])}" for kind, names in kinds if names]
        if trouble:
            raise ModelError("not the tensors of model.json: " + "; ".join(trouble), where=str(path), fix=AGAIN)
        mapped = {name: file.get_tensor(name) for name in sorted(found) if not unused(name)}
        for name, tensor in mapped.items():
            if not tensor.is_floating_point():
                raise ModelError(f"tensor {name} is {tensor.dtype}, not floating point", where=str(path), fix=AGAIN)
        hashes: dict[str, Future[str]] = {name: pool.submit(tensor_sha256, tensor) for name, tensor in mapped.items()}
        state = {name: _move(tensor, device, dtype) for name, tensor in mapped.items()}
        for name, content in hashes.items():
            if content.result() != recorded[name]:
                raise ModelError(
                    f"tensor {name} (shape {list(mapped[name].shape)}) was changed since the model was written",
                    where=str(path),
                    fix=AGAIN,
                )
    return state


def _move(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    # Always a copy: a mapped tensor starts where the file's header ends, and kernels may choose by alignment.
    if device.type == "cpu":
        return tensor.to(dtype=dtype, copy=True)
    return tensor.to(device).to(dtype)  # the cast runs on the device


def _open(path: Path) -> Any:
    """A safetensors file, memory-mapped on the CPU; use as a context."""
    try:
        return safe_open(str(path), framework="pt")
    except FileNotFoundError:
        raise ModelError("a file of the model is missing", where=str(path), fix=AGAIN) from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"not a whole safetensors file: {error}", where=str(path), fix=AGAIN) from None
