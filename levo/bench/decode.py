"""Ticks in steady state: milliseconds, bytes a second, and the share of what a copy reaches in the same run.

Slots stand at given positions with their pages filled, so what is timed is what a long run spends its time on.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from levo.bench.card import show
from levo.bench.sizes import PAD_ID, random_lm, v2_large
from levo.engine.build import make_setup
from levo.engine.main_phase import MainPhase
from levo.engine.memory import MemoryPlan
from levo.engine.pages import PAGE, pages_for
from levo.engine.phases import Phase, Setup, rows_of
from levo.engine.request import Sampling
from levo.engine.sub_phase import SubPhase

GIB = 2**30
GEMM_ROWS = 128


def copy_bandwidth(device: torch.device, n_bytes: int = 4 * GIB) -> float:
    """Bytes a second, read plus written, of a large copy on the device; median of ten."""
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * n_bytes / median_seconds(lambda: target.copy_(source), 10)


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """Median time of a call on the device, by events; by the wall on a CPU."""
    times = []
    for _ in range(repeats):
        if not torch.cuda.is_available():
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
            continue
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return sorted(times)[len(times) // 2]


@dataclass(frozen=True)
class TickTime:
    """One line of the table. n_bytes: weights and filled positions, each once; a frame of `slots` songs a tick."""

    phase: str
    slots: int
    positions: int
    ms: float
    n_bytes: int
    tb_s: float
    share_of_copy: float


def run(sizes: list[tuple[int, int]]) -> None:
    """`levo bench decode`: a tick of both phases at each (slots, positions), random weights of v2-large, fp16."""
    with torch.inference_mode():
        setup = setup_for(sizes)
        copy = copy_bandwidth(torch.device("cuda"))
        rows = [asdict(time_ticks(setup, kind, *size, copy)) for kind in (MainPhase, SubPhase) for size in sizes]
    show("decode", rows, {"copy_tb_s": copy / 1e12, "gemm_rows": GEMM_ROWS})


def setup_for(sizes: list[tuple[int, int]]) -> Setup:
    """Random weights, and pools of random numbers that hold the largest of the sizes."""
    lm = random_lm(v2_large(), torch.device("cuda"), torch.float16, endless=True)
    per_size = max(slots * 2 * pages_for(positions + 2 * PAGE) for slots, positions in sizes)
    setup = make_setup(lm, PAD_ID, GEMM_ROWS, Sampling(), MemoryPlan(3 * per_size + 100, per_size + 100))
    setup.kv.data.normal_()
    setup.hidden.data.normal_()
    return setup


def time_ticks(
    setup: Setup, phase_class: type[MainPhase] | type[SubPhase], slots: int, positions: int, copy: float
) -> TickTime:
    """A tick of `slots` songs that all stand at `positions`."""
    phase = phase_class(setup, slots)
    stand(phase, slots, positions)
    ticks = 20
    phase.graph.run()
    seconds = median_seconds(lambda: [phase.graph.run() for _ in range(ticks)], 5) / ticks
    n_bytes = weight_bytes(phase) + slots * positions * bytes_of_position(phase)
    for slot in range(slots):
        phase.empty(slot)
    name = "main" if phase_class is MainPhase else "sub"
    return TickTime(name, slots, positions, seconds * 1e3, n_bytes, n_bytes / seconds / 1e12, n_bytes / seconds / copy)


def stand(phase: Phase, slots: int, positions: int) -> None:
    """Put songs that never end into the first slots, at `positions` filled positions with whatever the pool holds."""
    state = phase.slots
    for slot in range(slots):
        for row in rows_of(slot):
            phase.kv.grow(row, positions + 2 * PAGE)
            phase.hidden.grow(row, positions + 2 * PAGE)
    phase.kv.upload()
    phase.hidden.upload()
    state.count[:slots] = positions - state.base
    state.cap[:slots] = phase.config.max_frames
    state.banned[:, -1] = 1
    state.inputs[:] = 1
    state.live[:slots] = 1


def weight_bytes(phase: Phase) -> int:
    """Weights of layers and heads, which a tick reads once."""
    lm = phase.setup.lm
    heads = [lm.transformer.lm_head] if isinstance(phase, MainPhase) else [*lm.linears, lm.mlp]
    return sum(p.nbytes for module in (phase.transformer, *heads) for p in module.parameters())


def bytes_of_position(phase: Phase) -> int:
    """Keys and values of one filled position of a song, in both of its rows."""
    config, weight = phase.config, phase.setup.lm.transformer.lm_head.weight
    return 2 * 2 * config.dim * len(phase.transformer.layers) * weight.element_size()
