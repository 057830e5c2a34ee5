"""What a bench asks the device beside time: energy, memory, and how much of a span its kernels filled.

On a CPU the answers are None.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from levo.node.nvml import nvml

GIB = 2**30


def joules() -> float | None:
    """What the card has used since its driver was loaded, by its own counter; None where nobody counts."""
    if not torch.cuda.is_available():
        return None
    with nvml() as library:
        if isinstance(library, str):
            return None
        name = library.name(str(torch.cuda.get_device_properties(0).uuid).removeprefix("GPU-"))
        return None if name is None else library.joules(name)


@dataclass(frozen=True)
class Memory:
    """The whole device as its driver sees it, other processes included; size is the cap where there is one."""

    size_gib: float
    used_gib: float

    @property
    def free_share(self) -> float:
        """Share of the size that is free."""
        return 1 - self.used_gib / self.size_gib


def memory(cap_gib: float | None) -> Memory | None:
    """Now. torch's cache never gives back, so what is used now is also the peak so far."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    size = total / GIB if cap_gib is None else min(total / GIB, cap_gib)
    return Memory(size, (total - free) / GIB)


def kernel_share(work: Callable[[], None]) -> tuple[float, float] | None:
    """Share of the device's wall time in which a kernel or a copy ran while `work` did, and that time in seconds.

    From the first event to the last; the profiler slows the host a little, so the truth is not below this share.
    """
    if not torch.cuda.is_available():
        return None
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    results = profiler.profiler.kineto_results
    on_device = (event for event in results.events() if event.device_type() == DeviceType.CUDA)
    spans = [(event.start_ns(), event.duration_ns()) for event in on_device]
    if not spans:
        print("the profiler saw no kernel: this driver does not let it, so there is no idle share", flush=True)
        return None
    return covered(np.array(spans, dtype=np.int64))


def covered(spans: np.ndarray) -> tuple[float, float]:
    """Spans [n, 2] of start and duration in ns -> share of the whole that at least one covers, and the whole in s."""
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    begins, ends = spans[:, 0], np.maximum.accumulate(spans[:, 0] + spans[:, 1])
    gaps = np.maximum(begins[1:] - ends[:-1], 0).sum()
    whole = ends[-1] - begins[0]
    return float(1 - gaps / whole), float(whole / 1e9)


def forget() -> None:
    """Give back what a former engine held: it is a cycle through its graphs."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
