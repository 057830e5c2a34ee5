"""Where a tick's time goes: every kernel of one replay, summed by name."""

from dataclasses import asdict, dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from levo.bench.card import show
from levo.bench.decode import bytes_of_position, copy_bandwidth, setup_for, stand, weight_bytes
from levo.engine.main_phase import MainPhase
from levo.engine.sub_phase import SubPhase

REPLAYS = 5


@dataclass(frozen=True)
class KernelTime:
    """One kernel: launches and microseconds of a tick, and its share of the kernels' time."""

    phase: str
    kernel: str
    launches: int
    us: float
    share: float


def run(slots: int, positions: int) -> None:
    """`levo bench profile`: both phases' ticks with `slots` songs at `positions`."""
    with torch.inference_mode():
        setup = setup_for([(slots, positions)])
        copy = copy_bandwidth(torch.device("cuda"))
        rows, result = [], {}
        for kind in (MainPhase, SubPhase):
            phase = kind(setup, slots)
            stand(phase, slots, positions)
            found = kernels_of(phase)
            total = sum(kernel.us for kernel in found)
            rows += [asdict(kernel) for kernel in found]
            n_bytes = weight_bytes(phase) + slots * positions * bytes_of_position(phase)
            result[found[0].phase] = {"kernel_us": total, "floor_us": 1e6 * n_bytes / copy}
            for slot in range(slots):
                phase.empty(slot)
    show("profile", rows, {"slots": slots, "positions": positions, "copy_tb_s": copy / 1e12, "ticks": result})


def kernels_of(phase: MainPhase | SubPhase) -> list[KernelTime]:
    """Kernels of one tick, the longest first."""
    phase.graph.run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS):
            phase.graph.run()
        torch.cuda.synchronize()
    events = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    total = sum(event.self_device_time_total for event in events)
    name = "main" if isinstance(phase, MainPhase) else "sub"
    times = [
        KernelTime(
            name,
            event.key[:70],
            event.count // REPLAYS,
            event.self_device_time_total / REPLAYS,
            event.self_device_time_total / total,
        )
        for event in events
    ]
    return sorted(times, key=lambda kernel: -kernel.us)
