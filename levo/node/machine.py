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

import levo
from levo.errors import NodeError

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
    slurm_job_id: str | None


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
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
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
        "gpu_uuid": str(gpu.uuid),
    }


def torch_version() -> str:
    """torch.__version__ with its build ("+cpu"), from torch's own file, without the seconds that importing it takes."""
    found = find_spec("torch")
    assert found is not None and found.submodule_search_locations, "torch is a dependency of this package"
    facts = runpy.run_path(str(Path(found.submodule_search_locations[0]) / "version.py"))
    return str(facts["__version__"])


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


def choose_devices(device: str, ranks: int | None) -> list[str | None]:
    """One entry a rank: the GPU it may see (a value for CUDA_VISIBLE_DEVICES), or None for a CPU rank.

    Raises NodeError when the GPUs asked for are not here.
    """
    visible = [] if device == "cpu" else _visible_gpus()
    if device == "cuda" and not visible:
        raise NodeError(
            "setting node.device is cuda, but no GPU is visible here",
            where=socket.gethostname(),
            fix="ask Slurm for GPUs (gres) and check nvidia-smi, or set node.device to auto or cpu",
        )
    if not visible:
        return [None] * (ranks or 1)
    if ranks is not None and ranks > len(visible):
        raise NodeError(
            f"setting node.ranks is {ranks}, but {len(visible)} GPUs are visible here",
            where=socket.gethostname(),
            fix="one rank needs one GPU of its own: lower node.ranks (null: one a GPU), or ask for more GPUs",
        )
    return list(visible[: ranks or len(visible)])


def _visible_gpus() -> list[str]:
    import torch

    n_gpus = torch.cuda.device_count()
    listed = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if entry.strip()]
    return listed[:n_gpus] if listed else [str(number) for number in range(n_gpus)]
