"""Songs through the whole language model in steady state: x realtime, slot occupancy, share of prefill."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from levo.bench.baselines import StepTime, time_recipe, time_upstream
from levo.bench.card import show
from levo.bench.decode import GEMM_ROWS
from levo.bench.device import forget
from levo.bench.sizes import PAD_ID, random_lm, v2_large
from levo.bench.steady import Songs, fill
from levo.engine.build import build_decoder
from levo.engine.decoder import Decoder
from levo.engine.pages import PAGE
from levo.engine.request import Sampling
from levo.model.lm import LM

RECIPE_BATCHES = (8, 16, 24, 32, 48, 64)


@dataclass
class Clock:
    """Books wall time by stage. Every booking waits for the device."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    last: float = field(default_factory=time.perf_counter)

    def restart(self) -> None:
        """Forget what was booked."""
        self.seconds.clear()
        self.last = time.perf_counter()

    def __call__(self, stage: str, keys: Sequence[int]) -> None:
        torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds[stage] += now - self.last
        self.last = now


@dataclass(frozen=True)
class Load:
    """What is run: slots, lengths in frames, uniform between two numbers, and how long it is timed."""

    slots: int
    shortest: int
    longest: int
    seconds: float
    memory_gib: float | None
    sync_ticks: int
    cold: bool


def run(load: Load, *, baselines: bool) -> None:
    """`levo bench lm`: ours in steady state, then the recipe at each batch and upstream's loop, in one run."""
    device = torch.device("cuda")
    with torch.inference_mode():
        lm = random_lm(v2_large(), device, torch.float16, endless=True)
        ours = time_ours(lm, load)
        speeds = [Speed("ours", ours.slots, ours.x_realtime, ours.main_ms + ours.sub_ms)]
        if baselines:
            speeds += time_baselines(lm, load.longest)
    result: dict[str, Any] = {"load": asdict(load), "ours": asdict(ours)}
    if baselines:
        result["ours_over_recipe"] = ours.x_realtime / max(s.x_realtime for s in speeds if s.what == "recipe")
    show("lm", [asdict(speed) for speed in speeds], result)


@dataclass(frozen=True)
class Speed:
    """One line of the table. us_a_dispatch: of an eager way, which hangs on the host."""

    what: str
    batch: int
    x_realtime: float
    step_ms: float
    us_a_dispatch: float | None = None


def time_ours(lm: LM, load: Load) -> "LMResult":
    """A decoder of our own, its pools filled with random numbers."""
    clock = Clock()
    decoder = build_decoder(lm, PAD_ID, load.slots, GEMM_ROWS, Sampling(), load.memory_gib, clock)
    decoder.sync_ticks = load.sync_ticks
    decoder.setup.kv.data.normal_()
    decoder.setup.hidden.data.normal_()
    return run_steady(decoder, Songs(load.shortest, load.longest), clock, load.seconds, cold=load.cold)


def time_baselines(lm: LM, frames: int) -> list[Speed]:
    """Songs of `frames`: the recipe at every batch that fits, and upstream's loop in the middle of a song."""
    forget()
    config = lm.config
    length = -(-(config.prefix_len + frames + config.max_delay) // PAGE) * PAGE
    found = [("recipe", time) for time in (try_recipe(lm, batch, length) for batch in RECIPE_BATCHES) if time]
    found.append(("upstream", time_upstream(lm, config.prefix_len + frames // 2)))
    return [
        Speed(
            name,
            time.batch,
            time.x_realtime(frames, config.max_delay, config.frame_rate),
            1e3 * (time.transformers + time.sampling),
            time.us_a_dispatch,
        )
        for name, time in found
    ]


def try_recipe(lm: LM, batch: int, length: int) -> StepTime | None:
    """The recipe at one batch, or None where its buffer does not fit."""
    try:
        return time_recipe(lm, batch, length)
    except torch.OutOfMemoryError:
        return None
    finally:
        forget()


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
    clock.restart()
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
