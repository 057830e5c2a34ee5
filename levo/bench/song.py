"""`levo bench song`: songs end to end, from lyrics to FLAC on disk, in steady state; speed, memory, energy, cost.

x realtime is put together from the stages: seconds of each stage for a second of its own audio, added up. Song ends
are few and come in lumps, so counting them in a short span would be off by a song or two; that count stands beside.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from levo.bench.card import show
from levo.bench.device import Memory, forget, joules, kernel_share, memory
from levo.bench.song_line import Line, Load, get_model
from levo.bench.song_publics import Publics, time_publics
from levo.bench.song_soak import Soak
from levo.errors import ConfigError
from levo.reports.formulas import MILLION_SONGS_S, gpu_hours
from levo.songs.song import FRAME_RATE

STAGES = ("prefill", "main", "sub", "flow", "vae", "encode", "write")
"""In the engine's thread; encode and write there are handing over, and waiting when the threads are behind."""

SCRATCH = "levo-bench-"


@dataclass(frozen=True)
class Mark:
    """Counters at one moment. stages: seconds by stage, idle among them."""

    at_s: float
    stages: dict[str, float]
    main_frames: int
    sub_frames: int
    prefills: int
    frames_done: int
    n_done: int
    n_ticks: int
    preempted: int
    encode_s: float
    write_s: float
    joules: float | None

    @classmethod
    def now(cls, line: Line) -> "Mark":
        decoder = line.decoder
        return cls(
            at_s=time.perf_counter(),
            stages=line.ledger.state().by_stage,
            main_frames=decoder.main.n_frames,
            sub_frames=decoder.sub.n_frames,
            prefills=decoder.n_admitted,
            frames_done=line.frames_done,
            n_done=line.n_done,
            n_ticks=line.n_ticks,
            preempted=decoder.n_preempted,
            encode_s=sum(line.encode_s),
            write_s=line.parts.seconds,
            joules=joules(),
        )


@dataclass(frozen=True)
class Stage:
    """One line of the table. seconds: of the span.  a_second: for a second of audio.  x_realtime: were it alone."""

    stage: str
    seconds: float
    share: float
    a_second: float
    x_realtime: float | None


@dataclass(frozen=True)
class Speed:
    """What a span of steady state says. See the top for x_realtime; x_realtime_counted counts finished songs."""

    wall_s: float
    n_songs: int
    song_s: float
    x_realtime: float
    x_realtime_counted: float
    host_idle_share: float
    preempted: int
    joules_a_second: float | None
    stages: tuple[Stage, ...]

    @property
    def stage_s(self) -> dict[str, float]:
        """Seconds of the rank's time for a second of audio, by stage; the idle ones spread over all. Adds up."""
        return {line.stage: line.a_second / (1 - self.host_idle_share) for line in self.stages}


def speed_between(begin: Mark, end: Mark) -> Speed:
    """Raises ConfigError when no song ended between the two."""
    wall, n_songs = end.at_s - begin.at_s, end.n_done - begin.n_done
    if not n_songs:
        raise ConfigError(
            f"no song ended in {wall:.0f} s", where="--seconds", fix="give more seconds, or shorter songs"
        )
    spent = {stage: end.stages.get(stage, 0.0) - begin.stages.get(stage, 0.0) for stage in (*STAGES, "idle")}
    counted_s = (end.frames_done - begin.frames_done) / FRAME_RATE
    song_s = counted_s / n_songs
    made_s = {
        "prefill": (end.prefills - begin.prefills) / 2 * song_s,  # one into each phase
        "main": (end.main_frames - begin.main_frames) / FRAME_RATE,
        "sub": (end.sub_frames - begin.sub_frames) / FRAME_RATE,
    }
    lines = []
    for stage in STAGES:
        a_second = spent[stage] / max(made_s.get(stage, counted_s), 1e-9)
        alone = 1 / a_second if a_second > 0 else None
        lines.append(Stage(stage, spent[stage], spent[stage] / wall, a_second, alone))
    idle = spent["idle"] / wall
    energy = None if begin.joules is None or end.joules is None else end.joules - begin.joules
    speed = (1 - idle) / sum(line.a_second for line in lines)
    return Speed(
        wall_s=wall,
        n_songs=n_songs,
        song_s=song_s,
        x_realtime=speed,
        x_realtime_counted=counted_s / wall,
        host_idle_share=idle,
        preempted=end.preempted - begin.preempted,
        joules_a_second=None if energy is None else energy / (speed * wall),
        stages=tuple(lines),
    )


@dataclass(frozen=True)
class Found:
    """What one load gave."""

    load_s: float
    engine_s: float
    speed: Speed
    live: tuple[float, float]
    encode_thread_s: float
    write_thread_s: float
    memory: Memory | None
    peak_allocated_gib: float | None
    kernels: tuple[float, float] | None
    soak: dict[str, Any] | None


@dataclass(frozen=True)
class Extras:
    """How long, and what is measured beside. profile_s: seconds under the profiler."""

    seconds: float
    profile_s: float = 0
    baselines: bool = False


def run(load: Load, extras: Extras) -> None:
    """`levo bench song`."""
    check(load)
    begin = time.perf_counter()
    model, encoder = get_model(load)
    load_s = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder, Line(load, model, encoder, Path(folder)) as line:
        found = measure(line, extras, load_s)
    del line
    forget()
    publics = None
    if extras.baselines:
        print(json.dumps(as_result(load, found, None)), flush=True)  # kept, should the others not fit
        publics = time_publics(model, load, found.encode_thread_s)
    result = as_result(load, found, publics)
    title = f"song: {load.shortest}-{load.longest} frames, {load.slots} slots, {load.steps} steps"
    show(title, table(found, publics), result)


def check(load: Load) -> None:
    """Raise ConfigError for lengths that no model makes."""
    if not 1 <= load.shortest <= load.longest:
        raise ConfigError(
            f"lengths from {load.shortest} to {load.longest} frames",
            where="SHORTEST LONGEST",
            fix="give 1 <= SHORTEST <= LONGEST",
        )


def measure(line: Line, extras: Extras, load_s: float) -> Found:
    """Warm up, then time `seconds` of steady state, then the profile's seconds."""
    line.warm_up()
    soak = Soak(line)
    begin = Mark.now(line)
    run_for(line, extras.seconds, soak.look)
    end = Mark.now(line)
    speed = speed_between(begin, end)
    ticks = end.n_ticks - begin.n_ticks
    live = (end.main_frames - begin.main_frames) / ticks, (end.sub_frames - begin.sub_frames) / ticks
    used = memory(line.load.memory_gib)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    kernels = kernel_share(lambda: run_for(line, extras.profile_s)) if extras.profile_s else None
    return Found(
        load_s=load_s,
        engine_s=line.engine_s,
        speed=speed,
        live=live,
        encode_thread_s=(end.encode_s - begin.encode_s) / speed.n_songs,
        write_thread_s=(end.write_s - begin.write_s) / speed.n_songs,
        memory=used,
        peak_allocated_gib=peak,
        kernels=kernels,
        soak=soak.verdict(),
    )


def run_for(line: Line, seconds: float, look: Callable[[], None] | None = None) -> None:
    """Steps of the line for so long; look is called between them."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        line.step()
        if look is not None:
            look()


def as_result(load: Load, found: Found, publics: Publics | None) -> dict[str, Any]:
    """The JSON's own keys; those of the issue are flat."""
    speed = found.speed
    energy = speed.joules_a_second
    used = found.memory
    result: dict[str, Any] = {
        "load": {**asdict(load), "model": None if load.model is None else str(load.model)},
        "seconds": speed.wall_s,
        "x_realtime": speed.x_realtime,
        "x_realtime_counted": speed.x_realtime_counted,
        "s_per_song": speed.song_s / speed.x_realtime,
        "songs_per_hour": 3600 * speed.x_realtime / speed.song_s,
        "songs_counted": speed.n_songs,
        "seconds_of_a_song": speed.song_s,
        "gpu_hours_per_million_3min": gpu_hours(MILLION_SONGS_S, speed.x_realtime),
        "peak_memory_gib": used.used_gib if used else None,
        "free_share": used.free_share if used else None,
        "peak_allocated_gib": found.peak_allocated_gib,
        "joules_per_song": None if energy is None else energy * speed.song_s,
        "watts": None if energy is None else energy * speed.x_realtime,
        "idle_share": None if found.kernels is None else 1 - found.kernels[0],
        "profiled_s": None if found.kernels is None else found.kernels[1],
        "host_idle_share": speed.host_idle_share,
        "stage_s_per_audio_s": speed.stage_s,
        "stage_share": {line.stage: line.share for line in speed.stages},
        "encode_thread_s_per_song": found.encode_thread_s,
        "write_thread_s_per_song": found.write_thread_s,
        "main_live": found.live[0],
        "sub_live": found.live[1],
        "preempted": speed.preempted,
        "load_s": found.load_s,
        "engine_s": found.engine_s,
        "soak": found.soak,
    }
    if publics is not None:
        result["baselines"] = asdict(publics)
        result["ours_over_recipe"] = speed.x_realtime / publics.recipe.x_realtime
        result["ours_over_upstream"] = speed.x_realtime / publics.upstream.x_realtime
    return result


def table(found: Found, publics: Publics | None) -> list[dict[str, Any]]:
    """A line a stage, then all of it, then the public ways."""
    speed = found.speed
    rows = [asdict(line) for line in speed.stages]
    rows.append(
        dict(stage="between steps", seconds=speed.host_idle_share * speed.wall_s, share=speed.host_idle_share,
             a_second=speed.host_idle_share / speed.x_realtime, x_realtime=None)
    )  # fmt: skip
    rows.append(_whole("all", speed.x_realtime, speed.wall_s))
    if publics is not None:
        rows += [_whole(f"{way.name}, batch {way.batch}", way.x_realtime) for way in (publics.recipe, publics.upstream)]
    return rows


def _whole(name: str, x_realtime: float, seconds: float | None = None) -> dict[str, Any]:
    return dict(stage=name, seconds=seconds, share=1.0, a_second=1 / x_realtime, x_realtime=x_realtime)
