"""Which ranks a shard starts, and where: one a GPU that the job was given, each with cores of its own. And refusals."""

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from levo.errors import NodeError
from levo.node import driver
from levo.node.binding import memory_node, share_cores
from levo.node.machine import torch_cuda
from levo.node.nvml import Nvml, Usage, nvml
from levo.node.slurm_job import SlurmJob, given_gpus
from levo.settings import Settings

GIB, MIB = 2**30, 2**20
BUSY_BYTES = 400 * MIB
"""More than this on an idle GPU is somebody's: a context alone takes about 500 MiB."""
FREE_WAIT_S = 20.0
"""So long the memory of a process that has just ended may take to be given back."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs. gpu: its GPU's UUID, as CUDA_VISIBLE_DEVICES takes it; None for a CPU rank.

    device_index: number of its GPU on the node; a CPU rank has one, too, where the job was given GPUs that are none of
    CUDA's.  cores: all when empty.  memory_node: NUMA node of its memory.  memory_gib: of the GPU; None: all.
    """

    gpu: str | None = None
    device_index: int | None = None
    cores: tuple[int, ...] = ()
    memory_node: int | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class _Gpu:
    """What several ranks may share. near: the cores beside it."""

    name: str | None
    index: int
    memory_bytes: int = 0
    near: frozenset[int] = frozenset()


def choose_places(settings: Settings, job: SlurmJob | None, say: Callable[[str], None]) -> list[Place]:
    """One place a rank. Raises NodeError when GPUs are too few, doubled, unusable or busy."""
    node = settings.node
    given, sight = ([], driver.Sight()) if node.device == "cpu" else (given_gpus(os.environ, job), driver.look())
    _refuse_doubled(given)
    gpus = _cuda_gpus(sight, given, say) if sight.gpus else _other_gpus(sight, given, settings, say)
    if not gpus:
        return [Place()] * (node.ranks or 1)
    ranks = node.ranks or len(gpus) * node.ranks_per_gpu
    if ranks > len(gpus) * node.ranks_per_gpu:
        raise _error(
            f"setting node.ranks is {ranks}, but there are {len(gpus)} GPUs for {node.ranks_per_gpu} each",
            "ask for more GPUs (gres), or lower node.ranks (null: one a GPU); ranks that shall share a GPU: "
            "node.ranks_per_gpu",
        )
    if sight.gpus:
        _refuse_busy([gpu.name for gpu in gpus[:ranks] if gpu.name])
    return _places([gpus[rank % len(gpus)] for rank in range(ranks)], settings)


def _cuda_gpus(sight: driver.Sight, given: Sequence[str], say: Callable[[str], None]) -> list[_Gpu]:
    if torch_cuda() is None:
        raise _error("there are GPUs here, but this torch is built without CUDA", "install torch with CUDA: make setup")
    if len(sight.gpus) < len(given):
        raise _error(
            f"the job was given {len(given)} GPUs ({', '.join(given)}), but CUDA sees {len(sight.gpus)}",
            "look at nvidia-smi on this node and tell the admins; --exclude it meanwhile",
        )
    with nvml() as library:
        if isinstance(library, str):
            say(f"no NVML ({library}): cores are shared evenly, and a busy GPU is not noticed")
            return [_Gpu(f"GPU-{gpu.uuid}", number, gpu.memory_bytes) for number, gpu in enumerate(sight.gpus)]
        return [_known(library, gpu, number) for number, gpu in enumerate(sight.gpus)]


def _known(library: Nvml, gpu: driver.Visible, number: int) -> _Gpu:
    name = library.name(gpu.uuid) or f"GPU-{gpu.uuid}"
    index = library.index(name)
    return _Gpu(name, number if index is None else index, gpu.memory_bytes, library.cores(name))


def _other_gpus(
    sight: driver.Sight, given: Sequence[str], settings: Settings, say: Callable[[str], None]
) -> list[_Gpu]:
    """Without CUDA: a rank for each GPU given, computing on the CPU."""
    trouble = sight.trouble or "no CUDA driver is installed"
    if settings.node.device == "cuda":
        raise _error(
            f"setting node.device is cuda, but no GPU is to be had: {trouble}",
            "ask Slurm for GPUs (gres) and check nvidia-smi, or set node.device to auto or cpu",
        )
    if given and sight.trouble:
        raise _error(
            f"the job was given GPUs {', '.join(given)}, but {sight.trouble}",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or set node.device to cpu",
        )
    if given:
        say(f"the job was given GPUs {', '.join(given)}, but {trouble}: their ranks compute on the CPU")
    return [_Gpu(None, int(entry) if entry.isdigit() else number) for number, entry in enumerate(given)]


def _refuse_doubled(given: Sequence[str]) -> None:
    doubled = [name for name, count in Counter(given).items() if count > 1]
    if doubled:
        raise _error(
            f"GPU {doubled[0]} is named twice among those given: {', '.join(given)}",
            "mend CUDA_VISIBLE_DEVICES; ranks that shall share a GPU: node.ranks_per_gpu",
        )


def _refuse_busy(names: Sequence[str]) -> None:
    until_s = time.monotonic() + FREE_WAIT_S
    with nvml() as library:
        while isinstance(library, Nvml):
            busy = {name: usage for name in names if _is_busy(usage := library.usage(name))}
            if not busy:
                return
            if time.monotonic() >= until_s:
                name, usage = next(iter(busy.items()))
                pids = f"processes {', '.join(map(str, usage.pids))}" if usage.pids else "processes not visible here"
                raise _error(
                    f"GPU {name} is busy: {usage.used_bytes / MIB:.0f} MiB are used, by {pids}",
                    "end what runs there (nvidia-smi; a zombie of a former job?), or ask Slurm for --exclusive nodes",
                )
            time.sleep(1)


def _is_busy(usage: Usage) -> bool:
    return bool(usage.pids) or usage.used_bytes > BUSY_BYTES


def _places(gpus: Sequence[_Gpu], settings: Settings) -> list[Place]:
    shares = share_cores([gpu.near for gpu in gpus], frozenset(os.sched_getaffinity(0)))
    company = Counter(gpu.name for gpu in gpus)
    return [
        Place(
            gpu=gpu.name,
            device_index=gpu.index,
            cores=cores,
            memory_node=memory_node(cores),
            memory_gib=_memory_gib(gpu, company[gpu.name], settings),
        )
        for gpu, cores in zip(gpus, shares, strict=True)
    ]


def _memory_gib(gpu: _Gpu, n_ranks: int, settings: Settings) -> float | None:
    if settings.engine.memory_gib is not None or gpu.name is None or n_ranks == 1:
        return settings.engine.memory_gib
    return gpu.memory_bytes / n_ranks / GIB


def _error(what: str, fix: str) -> NodeError:
    return NodeError(what, where=socket.gethostname(), fix=fix)
