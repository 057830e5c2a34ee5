"""Doctor: processor, Python, torch, GPUs, and whether kernels compile and run. Facts of this machine only."""

import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from levo.node.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, good

LEAST_PYTHON = (3, 11)
LEAST_CAPABILITY = (8, 0)  # what the kernels are written for: fp16 and bf16 tensor cores, asynchronous copies
TESTED_CAPABILITY = (9, 0)
LEAST_GIB = 24
PROPOSED = "torch==2.13.0"
INSTALL = f'make setup TORCH="{PROPOSED}"'
ARM_INSTALL = (
    f"{INSTALL}: PyPI's wheel for aarch64 is a CUDA 13 build (driver 580 or newer); with an older driver "
    f'TORCH="{PROPOSED} --index-url https://download.pytorch.org/whl/cu126"'
)
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")


@dataclass(frozen=True)
class TorchBuild:
    """What torch is installed, and whether this machine has NVIDIA hardware at all."""

    version: str
    cuda: str | None
    works: bool
    machine: str
    has_nvidia: bool


def has_nvidia() -> bool:
    """Whether the kernel has an NVIDIA driver, whatever torch thinks."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def check_machine() -> Iterator[Finding]:
    """Processor, cores that this process may use, memory, Python."""
    machine = platform.machine()
    known = machine in ("x86_64", "aarch64")
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = f"{machine}, {cores}, {memory:.0f} GiB memory, {platform.system()} {platform.release()}"
    yield (
        good("machine", facts)
        if known
        else Finding(WARNING, "machine", facts, "this program was made for x86_64 and aarch64; expect missing wheels")
    )
    version = platform.python_version()
    if sys.version_info < LEAST_PYTHON:
        yield Finding(PROBLEM, "Python", version, "make setup PYTHON=python3.11 (or newer)")
    else:
        yield good("Python", version)


def check_torch() -> Iterator[Finding]:
    """Version and kind of build."""
    try:
        import torch
    except ImportError as error:
        yield Finding(PROBLEM, "torch", f"cannot be imported: {error}", INSTALL)
        return
    yield judge_torch(
        TorchBuild(torch.__version__, torch.version.cuda, torch.cuda.is_available(), platform.machine(), has_nvidia())
    )


def judge_torch(build: TorchBuild) -> Finding:
    """Whether the installed torch can use the GPUs of this machine."""
    install = ARM_INSTALL if build.machine == "aarch64" else INSTALL
    if build.cuda is None:
        found = f"{build.version}, CPU only, on {build.machine}"
        if build.has_nvidia:
            return Finding(PROBLEM, "torch", f"{found}, though this machine has an NVIDIA driver", install)
        if build.machine == "aarch64":
            # Login nodes of GH200 clusters often have no GPU, and share their environment with the nodes that do.
            fix = f"for GH200 nodes: {install}; older PyPI wheels for aarch64 were CPU only"
            return Finding(WARNING, "torch", found, fix)
        return Finding(NOTE, "torch", found, f"enough for the tiny model; for GPUs: {install}")
    found = f"{build.version}, CUDA {build.cuda}, on {build.machine}"
    if build.works:
        return good("torch", found)
    if build.has_nvidia:
        fix = "compare the driver (nvidia-smi) with CUDA's needs, and check CUDA_VISIBLE_DEVICES and the job's GPUs"
        return Finding(PROBLEM, "torch", f"{found}: an NVIDIA driver is here, but torch sees no GPU", fix)
    return Finding(NOTE, "torch", f"{found}; no GPU here", "run `levo doctor` in a job with GPUs too")


def check_gpus() -> Iterator[Finding]:
    """Name, memory and compute capability of every GPU that this process sees."""
    try:
        import torch
    except ImportError:
        return
    from levo.node.machine import driver_version

    if not torch.cuda.is_available():
        yield Finding(NOTE, "GPU", "none", "on a GPU node: ask Slurm for GPUs (gres), then look again")
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        capability = (properties.major, properties.minor)
        gib = properties.total_memory / 2**30
        found = f"{properties.name}, {gib:.0f} GiB, compute capability {capability[0]}.{capability[1]}"
        yield judge_gpu(f"GPU {number}", f"{found}, driver {driver_version()}", capability, gib)


def judge_gpu(what: str, found: str, capability: tuple[int, int], gib: float) -> Finding:
    """Whether a GPU can run the model."""
    if capability < LEAST_CAPABILITY:
        return Finding(PROBLEM, what, found, f"use a GPU of capability {LEAST_CAPABILITY[0]}.0 (A100) or newer")
    if gib < LEAST_GIB:
        return Finding(WARNING, what, found, f"v2-large needs {LEAST_GIB} GiB for one song: see `levo model inspect`")
    if capability != TESTED_CAPABILITY:
        return Finding(NOTE, what, found, "tested on capability 9.0 (H200) only: run `levo model selfcheck`")
    return good(what, found)


def check_kernels() -> Iterator[Finding]:
    """One Triton kernel compiled and run, and which attention kernels of torch work."""
    try:
        import torch
    except ImportError:
        return
    if not torch.cuda.is_available():
        yield Finding(NOTE, "Triton", "not tried without a GPU", "run `levo doctor` in a job with GPUs too")
    else:
        yield _triton()
    yield _attention()


def _triton() -> Finding:
    started = time.monotonic()
    try:
        import triton

        from levo.node.doctor.kernel import adds_one

        works = adds_one()
    except Exception as error:  # a missing compiler, header or driver library, each with an exception of its own
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        fix = "install a C compiler and Python's headers (gcc, python3-dev), and make TRITON_CACHE_DIR writable"
        return Finding(PROBLEM, "Triton", f"no kernel can be compiled: {reason[:200]}", fix)
    found = f"{triton.__version__}, a kernel compiled and run in {time.monotonic() - started:.1f} s"
    return good("Triton", found) if works else Finding(PROBLEM, "Triton", "a kernel gave wrong numbers", INSTALL)


def _attention() -> Finding:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    on_gpu = torch.cuda.is_available()
    q = torch.ones(1, 2, 64, 64, device="cuda" if on_gpu else "cpu", dtype=torch.float16 if on_gpu else torch.float32)
    works = []
    for name in BACKENDS:
        try:
            with sdpa_kernel(getattr(SDPBackend, name)):
                out = scaled_dot_product_attention(q, q, q, is_causal=True)
            if bool(((out - 1).abs() < 1e-2).all()):
                works.append(name.lower())
        except (RuntimeError, AttributeError):
            continue
    found = f"torch's attention kernels: {', '.join(works) or 'none'}"
    needed = "flash_attention" if on_gpu else "math"
    return Finding(OK if needed in works else WARNING, "attention", found, "" if needed in works else INSTALL)
