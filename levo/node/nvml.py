"""What NVIDIA's management library knows of a GPU: its number, the cores beside it, who uses it. Decides nothing."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORD = 64
NODES = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Usage:
    """used_bytes: by all processes; what the driver takes, and the system's cache of files, left out.

    pids: of processes that compute on it. A container may hide processes, but not the memory that they use.
    """

    used_bytes: int
    pids: tuple[int, ...]


class Nvml:
    """An open library. A question that a GPU or a driver does not answer is None, or empty."""

    def __init__(self, pynvml: Any) -> None:
        self.pynvml = pynvml

    def name(self, uuid: str) -> str | None:
        """The UUID with its prefix, as nvidia-smi prints it and CUDA_VISIBLE_DEVICES takes it: GPU-... or MIG-..."""
        for prefix in ("GPU", "MIG"):
            if self._ask("nvmlDeviceGetHandleByUUID", f"{prefix}-{uuid}") is not None:
                return f"{prefix}-{uuid}"
        return None

    def index(self, name: str) -> int | None:
        """Number of the GPU among those of the node that this process may use; of an instance, that of its GPU."""
        handle = self._handle(name)
        if name.startswith("MIG-"):
            handle = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        return self._ask("nvmlDeviceGetIndex", handle)

    def cores(self, name: str) -> frozenset[int]:
        """Cores of the NUMA node that the GPU hangs on."""
        n_words = -(-max(os.sysconf("SC_NPROCESSORS_CONF"), 1 + max(os.sched_getaffinity(0))) // WORD)
        scope = self.pynvml.NVML_AFFINITY_SCOPE_NODE
        words = self._ask("nvmlDeviceGetCpuAffinityWithinScope", self._handle(name), n_words, scope) or ()
        return frozenset(WORD * n + bit for n, word in enumerate(words) for bit in range(WORD) if word >> bit & 1)

    def usage(self, name: str) -> Usage:
        """Who uses it now."""
        handle = self._handle(name)
        # The second version tells the driver's own part apart: hundreds of MiB on a large GPU that is idle.
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle, version=self.pynvml.nvmlMemory_v2)
        running = self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
        # Where the GPU's memory is a NUMA node of the system's (GH200), Linux may keep files in it, until it is wanted.
        cached = _file_bytes(self._ask("nvmlDeviceGetNumaNodeId", handle))
        return Usage(max(0, memory.used - cached) if memory else 0, tuple(process.pid for process in running))

    def joules(self, name: str) -> float | None:
        """Energy that it has used since the driver was loaded."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption", self._handle(name))
        return None if millijoules is None else millijoules / 1000

    def _handle(self, name: str) -> Any:
        return self._ask("nvmlDeviceGetHandleByUUID", name)

    def _ask(self, function: str, *arguments: Any, **named: Any) -> Any:
        if arguments[0] is None:  # what it is about is not known
            return None
        try:
            return getattr(self.pynvml, function)(*arguments, **named)
        except (self.pynvml.NVMLError, self.pynvml.NVMLLibraryMismatchError):
            return None


def _file_bytes(node: int | None) -> int:
    try:
        found = re.search(r"FilePages:\s*(\d+) kB", (NODES / f"node{node}/meminfo").read_text())
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


@contextmanager
def nvml() -> Iterator[Nvml | str]:
    """The library, opened; or why it is not to be had."""
    try:
        import pynvml  # late: needed on GPUs only
    except ImportError as error:
        yield str(error)
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield str(error)
        return
    try:
        yield Nvml(pynvml)
    finally:
        pynvml.nvmlShutdown()
