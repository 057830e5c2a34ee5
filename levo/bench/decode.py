"""Ticks in steady state: milliseconds, bytes a second, and the share of what a copy reaches in the same run.

Slots stand at given positions with their pages filled, so what is timed is what a long run spends its time on.
"""

from dataclasses import dataclass

import torch

from levo.engine import kernels
from levo.engine.pages import PAGE, Pool, pages_for, unit_shape
from levo.engine.phases import MainPhase, Phase, Setup, SubPhase, rows_of
from levo.engine.request import Sampling
from levo.model.lm import LM

GIB = 2**30


def copy_bandwidth(device: torch.device, n_bytes: int = 4 * GIB) -> float:
    """Bytes a second, read plus written, of a large copy on the device; median of ten."""
    source = torch.empty(n_bytes, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * n_bytes / median_seconds(lambda: target.copy_(source), 10)


def median_seconds(call, repeats: int) -> float:
    """Median time of a call on the device, by events."""
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return sorted(times)[len(times) // 2]


@dataclass(frozen=True)
class TickTime:
    """One line of the table. n_bytes: weights and filled positions, each once."""

    phase: str
    slots: int
    positions: int
    ms: float
    n_bytes: int
    share_of_copy: float


def time_ticks(setup: Setup, phase_class: type[MainPhase] | type[SubPhase], slots: int, positions: int, copy: float):
    """A tick of `slots` songs that all stand at `positions`."""
    phase = phase_class(setup, slots)
    stand(phase, slots, positions)
    ticks = 20
    phase.graph.run()
    seconds = median_seconds(lambda: [phase.graph.run() for _ in range(ticks)], 5) / ticks
    n_bytes = bytes_of_tick(phase, slots, positions)
    for slot in range(slots):
        for row in rows_of(slot):
            phase.kv.drop(row)
            phase.hidden.drop(row)
    name = "main" if phase_class is MainPhase else "sub"
    return TickTime(name, slots, positions, seconds * 1e3, n_bytes, n_bytes / seconds / copy)


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


def bytes_of_tick(phase: Phase, slots: int, positions: int) -> int:
    """Weights of layers and heads once, and every filled position of both rows."""
    lm = phase.setup.lm
    heads = [lm.transformer.lm_head] if isinstance(phase, MainPhase) else [*lm.linears, lm.mlp]
    weights = sum(p.nbytes for module in (phase.transformer, *heads) for p in module.parameters())
    config = phase.config
    row = 2 * config.dim * len(phase.transformer.layers) * lm.transformer.lm_head.weight.element_size()
    return weights + 2 * slots * positions * row


def make_setup(lm: LM, sampling: Sampling, pad_id: int, gemm_rows: int, n_units: int) -> Setup:
    """Pools with random content, so that attention reads real numbers."""
    like = lm.transformer.lm_head.weight
    kv, hidden = Pool(n_units, unit_shape(lm.config), like), Pool(n_units, (PAGE, lm.config.dim), like)
    kv.data.normal_()
    hidden.data.normal_()
    return Setup(lm, pad_id, gemm_rows, sampling, kv, hidden, kernels, captured=True)
