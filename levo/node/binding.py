"""The cores and the memory of a rank: shared out by the parent, taken by the rank. Knows nothing of GPUs.

Why: a rank that a core across the node feeds waits for it in every tick, and pinned memory across the node is slow.
"""

import ctypes
import os
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

CPUS = Path("/sys/devices/system/cpu")
NODES = Path("/sys/devices/system/node")
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
MPOL_PREFERRED = 1
N_NODES = 1024


def share_cores(near: Sequence[frozenset[int]], given: frozenset[int]) -> list[tuple[int, ...]]:
    """Each rank's cores, out of those given: ranks near the same cores share them evenly, and none has another's.

    near: of each rank, the cores beside its GPU; empty if unknown. When those are not known of every rank, or overlap
    in part, ranks share all cores evenly; when there are fewer cores than ranks, each has them all.
    """
    wanted = [cores & given for cores in near]
    kinds = set(wanted)
    if not all(wanted) or len(frozenset().union(*kinds)) < sum(len(cores) for cores in kinds):
        wanted = [given] * len(near)
    shares: dict[frozenset[int], list[tuple[int, ...]]] = {}
    for cores in set(wanted):
        shares[cores] = _split(cores, wanted.count(cores))
    return [shares[cores].pop(0) for cores in wanted]


def _split(cores: frozenset[int], n: int) -> list[tuple[int, ...]]:
    if len(cores) < n:
        return [tuple(sorted(cores))] * n
    ordered = sorted(cores, key=lambda core: (_first_thread(core), core))  # threads of a core stay together
    cuts = [len(ordered) * part // n for part in range(n + 1)]
    return [tuple(sorted(ordered[first:last])) for first, last in zip(cuts, cuts[1:], strict=False)]


def _first_thread(core: int) -> int:
    try:
        siblings = (CPUS / f"cpu{core}/topology/thread_siblings_list").read_text()
    except OSError:
        return core
    return expand(siblings)[0]


def memory_node(cores: Iterable[int]) -> int | None:
    """The NUMA node of these cores; None when they lie on several, or the kernel does not say.

    Not NVML's node of the GPU: where GPUs are NUMA nodes themselves (GH200), that is the GPU's own memory.
    """
    wanted = set(cores)
    for path in NODES.glob("node[0-9]*/cpulist"):
        if wanted and wanted <= set(expand(path.read_text())):
            return int(path.parent.name.removeprefix("node"))
    return None


def bind(cores: Sequence[int], node: int | None) -> str:
    """Keep this process, and threads that it starts from now on, on these cores and its memory on this node.

    Says what came of it. What the system forbids costs speed only, so the rank goes on.
    """
    said = []
    if cores:
        try:
            os.sched_setaffinity(0, cores)
        except OSError as error:
            said.append(f"not bound to cores {compress(cores)}: {error.strerror}")
    said.append(f"cores {compress(os.sched_getaffinity(0))}")
    if node is not None:
        trouble = _prefer(node)
        said.append(f"memory of node {node}" if not trouble else f"memory not bound to node {node}: {trouble}")
    return ", ".join(said)


def _prefer(node: int) -> str:
    """Ask for memory of a NUMA node first, of the others when it is full. Returns why not, or an empty text."""
    call = SET_MEMPOLICY.get(platform.machine())
    if call is None:
        return f"unknown on {platform.machine()}"
    mask = (ctypes.c_ulong * (N_NODES // 64))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(call, MPOL_PREFERRED, ctypes.byref(mask), ctypes.c_ulong(N_NODES + 1))
    return os.strerror(ctypes.get_errno()) if done else ""


def expand(numbers: str) -> list[int]:
    """0-2,5 -> 0, 1, 2, 5: the kernel's and Slurm's way to list numbers."""
    found: list[int] = []
    for part in filter(None, numbers.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def compress(numbers: Iterable[int]) -> str:
    """The reverse of expand."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
