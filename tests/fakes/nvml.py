"""A stand-in for the module pynvml: a node's GPUs as planned, in the library's own words, faults included."""

from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

WORD = 64


@dataclass
class FakeGpu:
    """uuid: without prefix. cores: beside it; None: the driver does not say. instance_of: a MIG instance's GPU.

    node: NUMA node that its memory is, where it is one.
    """

    uuid: str
    index: int = 0
    cores: set[int] | None = field(default_factory=set)
    used_bytes: int = 0
    pids: list[int] = field(default_factory=list)
    instance_of: int | None = None
    node: int | None = None

    @property
    def name(self) -> str:
        return f"{'GPU' if self.instance_of is None else 'MIG'}-{self.uuid}"


class NVMLError(Exception):
    """As pynvml's."""


class NVMLLibraryMismatchError(Exception):
    """As pynvml's; no NVMLError."""


def fake_pynvml(*gpus: FakeGpu, init_fails: str = "") -> ModuleType:
    """What `import pynvml` shall give."""
    module = ModuleType("pynvml")
    module.opened = 0  # type: ignore[attr-defined]

    def start() -> None:
        if init_fails:
            raise NVMLError(init_fails)
        module.opened += 1  # type: ignore[attr-defined]

    def stop() -> None:
        module.opened -= 1  # type: ignore[attr-defined]

    def by_name(name: str) -> FakeGpu:
        for gpu in gpus:
            if gpu.name == name:
                return gpu
        raise NVMLError("Not Found")

    def index(gpu: FakeGpu) -> int:
        if gpu.instance_of is not None:
            raise NVMLError("Invalid Argument")
        return gpu.index

    def affinity(gpu: FakeGpu, n_words: int, scope: int) -> list[int]:
        if gpu.cores is None:
            raise NVMLLibraryMismatchError("too old")
        assert scope == 0, "of the NUMA node, not of the socket"
        return [sum(1 << core - WORD * n for core in gpu.cores if core // WORD == n) for n in range(n_words)]

    def numa_node(gpu: FakeGpu) -> int:
        if gpu.node is None:
            raise NVMLError("Not Supported")
        return gpu.node

    def memory(gpu: FakeGpu, version: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(used=gpu.used_bytes + (0 if version == 2 else 600 * 2**20), total=140 * 2**30)

    vars(module).update(
        NVMLError=NVMLError,
        NVMLLibraryMismatchError=NVMLLibraryMismatchError,
        NVML_AFFINITY_SCOPE_NODE=0,
        nvmlMemory_v2=2,
        nvmlInit=start,
        nvmlShutdown=stop,
        nvmlDeviceGetHandleByUUID=by_name,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=lambda gpu: FakeGpu("parent", gpu.instance_of),
        nvmlDeviceGetIndex=index,
        nvmlDeviceGetCpuAffinityWithinScope=affinity,
        nvmlDeviceGetNumaNodeId=numa_node,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=lambda gpu: [SimpleNamespace(pid=pid) for pid in gpu.pids],
    )
    return module
