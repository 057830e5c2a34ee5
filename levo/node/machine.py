"""What a song was made on: code, versions, device, host, job. Facts for provenance rows; decides nothing."""

import ctypes
import os
import platform
import runpy
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import levo

UNKNOWN = "unknown"
GPU_FACTS = (
    "cuda_version",
    "cublas_version",
    "cudnn_version",
    "triton_version",
    "driver_version",
    "gpu_name",
    "gpu_uuid",
)


@dataclass(frozen=True)
class Machine:
    """Columns of every provenance row that a rank makes; null where the device has no such thing."""

    levo_version: str
    git_commit: str
    torch_version: str
    cuda_version: str | None
    cublas_version: str | None
    cudnn_version: str | None
    triton_version: str | None
    driver_version: str | None
    python_version: str
    numpy_version: str
    device: str
    gpu_name: str | None
    gpu_uuid: str | None
    host: str


def machine(device: str) -> Machine:
    """The facts of this process, which computes on `device` ("cpu" or "cuda")."""
    on_gpu = device.startswith("cuda")
    gpu = _gpu() if on_gpu else dict.fromkeys(GPU_FACTS)
    return Machine(
        levo_version=levo.__version__,
        git_commit=git_commit(),
        torch_version=torch_version(),
        python_version=platform.python_version(),
        numpy_version=version("numpy"),
        device="cuda" if on_gpu else "cpu",
        host=socket.gethostname(),
        **gpu,
    )


def _gpu() -> dict[str, str | None]:
    import torch  # late: takes seconds, and a CPU has none of these facts

    gpu = torch.cuda.get_device_properties(0)
    cudnn = torch.backends.cudnn.version()
    return {
        "cuda_version": torch.version.cuda,
        "cublas_version": cublas_version(torch.version.cuda or ""),
        "cudnn_version": None if cudnn is None else str(cudnn),
        "triton_version": _version("triton"),
        "driver_version": driver_version(),
        "gpu_name": gpu.name,
        "gpu_uuid": _uuid(str(gpu.uuid)),
    }


def _uuid(number: str) -> str:
    """As nvidia-smi prints it. CUDA may give a MIG instance its GPU's; the instance's own is in the environment."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return first if first.startswith("MIG-") else f"GPU-{number.removeprefix('GPU-')}"


def torch_version() -> str:
    """torch.__version__ with its build ("+cpu"), from torch's own file, without the seconds that importing it takes."""
    return str(_torch_facts()["__version__"])


def torch_cuda() -> str | None:
    """The CUDA that torch is built with, in the same way; None for a build without."""
    cuda = _torch_facts().get("cuda")
    return None if cuda is None else str(cuda)


def _torch_facts() -> dict[str, Any]:
    found = find_spec("torch")
    assert found is not None and found.submodule_search_locations, "torch is a dependency of this package"
    return runpy.run_path(str(Path(found.submodule_search_locations[0]) / "version.py"))


@cache
def git_commit() -> str:
    """Commit of the source tree that runs, with "+changes" if tracked files differ from it; "unknown" outside git."""
    folder = Path(levo.__file__).parent
    try:
        # The package of a virtual environment may lie below somebody's repository: it must be tracked there.
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(folder, "rev-parse", "HEAD").strip()
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".").strip()
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{commit}+changes" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def driver_version() -> str:
    """Version of the NVIDIA kernel driver."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return UNKNOWN
    numbers = [word for word in first.split() if word[:1].isdigit() and "." in word]
    return numbers[0] if numbers else UNKNOWN


def cublas_version(cuda_version: str) -> str:
    """Version of the cuBLAS that torch has loaded."""
    numbers = []
    try:
        library = ctypes.CDLL(f"libcublas.so.{cuda_version.partition('.')[0]}")
        for part in range(3):  # libraryPropertyType: major, minor, patch
            number = ctypes.c_int()
            if library.cublasGetProperty(part, ctypes.byref(number)):
                return UNKNOWN
            numbers.append(str(number.value))
    except (OSError, AttributeError):
        return UNKNOWN
    return ".".join(numbers)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def peak_memory_bytes(device: str) -> int | None:
    """Most device memory that this process has held so far; null on a CPU."""
    if not device.startswith("cuda"):
        return None
    import torch

    return torch.cuda.max_memory_allocated()


def best_device() -> str:
    """cuda where torch can use a GPU, else cpu: for what runs in this one process."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
