"""Songs through the whole language model in steady state: x realtime, slot occupancy, share of prefill."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from levo.bench.steady import Songs, fill
from levo.engine.decoder import Decoder


@dataclass
class Clock:
    """Books wall time by stage, and what was alive. Every booking waits for the device."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    slot_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, keys: Sequence[int]) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[stage] += now - self.last
        self.slot_seconds[stage] += (now - self.last) * len(keys)
        self.last = now


@dataclass(frozen=True)
class LMResult:
    """x_realtime: a frame counts half when the main phase made it and half when the sub phase did.

    main_live, sub_live: frames a tick, that is slots whose work was of use.
    """

    slots: int
    seconds: float
    x_realtime: float
    songs: int
    main_live: float
    sub_live: float
    prefill_share: float
    preempted: int
    main_ms: float
    sub_ms: float


def run_steady(decoder: Decoder, songs: Songs, clock: Clock, seconds: float, *, cold: bool = False) -> LMResult:
    """Fill, then run for `seconds`, feeding a new song for every one that ends."""
    if not cold:
        fill(decoder, songs)
    step(decoder, songs)
    torch.cuda.synchronize()
    clock.__init__()
    phases = decoder.main, decoder.sub
    before = [phase.n_frames for phase in phases]
    begin, ticks, done = time.perf_counter(), 0, 0
    while time.perf_counter() - begin < seconds:
        done += step(decoder, songs)
        ticks += decoder.sync_ticks
    torch.cuda.synchronize()
    wall = time.perf_counter() - begin
    frames = [phase.n_frames - start for phase, start in zip(phases, before, strict=True)]
    return LMResult(
        slots=decoder.sub.slots.n_used,
        seconds=wall,
        x_realtime=sum(frames) / 2 / 25 / wall,
        songs=done,
        main_live=frames[0] / ticks,
        sub_live=frames[1] / ticks,
        prefill_share=clock.seconds["prefill"] / wall,
        preempted=decoder.n_preempted,
        main_ms=1e3 * clock.seconds["main"] / ticks,
        sub_ms=1e3 * clock.seconds["sub"] / ticks,
    )


def step(decoder: Decoder, songs: Songs) -> int:
    """One step of the decoder with its queue kept full; the number of songs that ended."""
    while decoder.room:
        decoder.queue.append(songs.next())
    return len(decoder.step())
