"""`levo bench ablation`: from upstream's loop to ours, one change a row, in seconds of a song and x realtime.

"measured" rows ran as they stand. "composed" rows are sums of parts that were each measured in this run, since the
engine keeps no slow path for a table's sake: the time of a tick (times how many a song takes, over the songs in it), of
a song's passes, of a window's flow and VAE, and of its file. Up to the recipe prefill is left out, in its favour.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from levo.bench.baselines import StepTime, time_recipe, time_upstream
from levo.bench.card import show
from levo.bench.decode import median_seconds, stand
from levo.bench.device import forget
from levo.bench.song import SCRATCH, Extras, Found, measure
from levo.bench.song_line import Line, Load, get_model
from levo.bench.song_publics import RECIPE_BATCH, buffer_length, recipe_frames, time_eager_codec
from levo.engine.build import make_setup
from levo.engine.main_phase import MainPhase
from levo.engine.memory import MemoryPlan
from levo.engine.pages import PAGE, layers_per_unit, pages_for
from levo.engine.phases import Phase, Setup, rows_of
from levo.engine.request import Sampling
from levo.engine.sub_phase import SubPhase
from levo.model.checkpoint import Model
from levo.model.codec import window_starts
from levo.model.lm import LM
from levo.songs.song import FRAME_RATE

MEASURED, COMPOSED = "measured", "composed"
OLD_STEPS = 50
TICKS = 10


@dataclass(frozen=True)
class Cost:
    """Seconds of a song of the mean length, by what they go to."""

    tokens_s: float
    passes_s: float
    flow_s: float
    vae_s: float
    file_s: float

    @property
    def song_s(self) -> float:
        """All together."""
        return self.tokens_s + self.passes_s + self.flow_s + self.vae_s + self.file_s


@dataclass(frozen=True)
class Row:
    """One line of the table. gain: over the row before it; in the last rows, over ours without that one thing."""

    change: str
    batch: float
    how: str
    song_s: float
    x_realtime: float
    gain: float | None
    total_gain: float | None


@dataclass(frozen=True)
class Ticks:
    """Seconds of our ticks. fixed: both phases at the recipe's batch.  main, sub: at the songs that were live."""

    fixed: float
    fixed_main: float
    fixed_sub: float
    main_own: float
    sub_own: float
    main: float
    sub: float
    main_eager: float
    sub_eager: float


@dataclass(frozen=True)
class Parts:
    """All that was measured. longest: frames after which a fixed batch ends.  flow_50: at 50 steps."""

    mean: float
    longest: float
    delay: int
    codec_steps: int
    n_windows: int
    upstream: StepTime
    batched: StepTime
    static: StepTime
    recipe: StepTime
    flow_s: float
    flow_50: float
    vae_s: float
    ticks: Ticks
    ours: Found


def run(load: Load, seconds: float) -> None:
    """Measure, then print both tables."""
    model, encoder = get_model(load)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as folder, Line(load, model, encoder, Path(folder)) as line:
        ours = measure(line, Extras(seconds), 0.0)
    del line
    forget()
    parts = measure_parts(model, load, ours)
    rows = [*cumulative(parts), *without_one(parts)]
    show("ablation", [asdict(row) for row in rows], {"load": _plain(load), "parts": _plain(parts)})


def measure_parts(model: Model, load: Load, ours: Found) -> Parts:
    """Everything but ours, which must be gone from the device by now."""
    assert model.lm is not None
    lm, config = model.lm, model.lm.config
    mean, longest = load.mean, recipe_frames(load)
    middle = config.prefix_len + int(mean + config.max_delay) // 2
    length = buffer_length(config, load)
    with torch.inference_mode():
        ticks = time_ticks(lm, model.pad_id, int(mean), ours.live)
        flow_s, vae_s = time_eager_codec(model, load.steps)
        flow_50, _ = time_eager_codec(model, OLD_STEPS)
        steps = []
        for measure_step in (
            lambda: time_upstream(lm, middle),
            lambda: time_upstream(lm, middle, steps=8, batch=RECIPE_BATCH),
            lambda: time_recipe(lm, RECIPE_BATCH, length, steps=8, captured=False),
            lambda: time_recipe(lm, RECIPE_BATCH, length),
        ):
            forget()
            steps.append(measure_step())
    n_windows = len(window_starts(max(1, int(mean)), model.config.codec.window))
    upstream, batched, static, recipe = steps
    return Parts(
        mean, longest, config.max_delay, load.steps, n_windows, upstream, batched, static, recipe,
        flow_s, flow_50, vae_s, ticks, ours,
    )  # fmt: skip


def time_ticks(lm: LM, pad_id: int, mean: int, live: tuple[float, float]) -> Ticks:
    """Our ticks in the middle of songs of the mean length: at the recipe's batch, and at the songs that were live."""
    middle = lm.config.prefix_len + mean // 2
    delayed = middle + lm.config.max_delay
    n_main, n_sub = (max(1, round(n)) for n in live)
    one_loop = lm.config.prefix_len + (mean + lm.config.max_delay) // 2
    at = _TickClock(lm, pad_id)
    return Ticks(
        fixed=at(MainPhase, RECIPE_BATCH, one_loop) + at(SubPhase, RECIPE_BATCH, one_loop),
        fixed_main=at(MainPhase, RECIPE_BATCH, middle),
        fixed_sub=at(SubPhase, RECIPE_BATCH, delayed),
        main_own=at(MainPhase, n_main, middle),
        sub_own=at(SubPhase, n_sub, delayed),
        main=at(MainPhase, n_main, middle, shared=True),
        sub=at(SubPhase, n_sub, delayed, shared=True),
        main_eager=at(MainPhase, n_main, middle, shared=True, captured=False),
        sub_eager=at(SubPhase, n_sub, delayed, shared=True, captured=False),
    )


class _TickClock:
    def __init__(self, lm: LM, pad_id: int) -> None:
        self.lm, self.pad_id = lm, pad_id

    def __call__(
        self,
        kind: type[MainPhase | SubPhase],
        slots: int,
        positions: int,
        *,
        shared: bool = False,
        captured: bool = True,
    ) -> float:
        """Seconds of a tick of so many songs that all stand at `positions`."""
        forget()
        setup = self._setup(slots, positions)
        phase = kind(replace(setup, captured=setup.captured and captured), slots)
        stand(phase, slots, positions)
        if shared:
            share_prefix(phase, slots)
        phase.graph.run()
        return median_seconds(lambda: [phase.graph.run() for _ in range(TICKS)], 3) / TICKS

    def _setup(self, slots: int, positions: int) -> Setup:
        config = self.lm.config
        n_pages = 2 * slots * pages_for(positions + 2 * PAGE) + 8
        parts = config.num_layers // layers_per_unit(config)
        rows = 128 if self.lm.transformer.lm_head.weight.is_cuda else max(16, 2 * slots)
        setup = make_setup(self.lm, self.pad_id, rows, Sampling(), MemoryPlan(parts * n_pages, n_pages))
        setup.kv.data.normal_()
        setup.hidden.data.normal_()
        return setup


def share_prefix(phase: Phase, slots: int) -> None:
    """Let all unconditional rows read the first one's full pages of the prefix, as the engine does."""
    n_full = phase.config.prefix_len // PAGE
    for table in (phase.kv, phase.hidden):
        first = rows_of(0)[1]
        for slot in range(1, slots):
            table.host[rows_of(slot)[1], :n_full] = table.host[first, :n_full]
        table.is_stale = True
        table.upload()


def cumulative(parts: Parts) -> Iterator[Row]:
    """From upstream's loop to ours, each row on top of the one before."""
    before: float | None = None
    first: float | None = None
    for change, batch, how, cost in _steps(parts):
        speed = parts.mean / FRAME_RATE / cost.song_s
        gain = None if before is None else speed / before
        yield Row(change, batch, how, cost.song_s, speed, gain, None if first is None else speed / first)
        before, first = speed, first or speed
    speed, seconds = parts.ours.speed.x_realtime, parts.mean / FRAME_RATE
    assert before is not None and first is not None
    n_main, _ = parts.ours.live
    yield Row("ours, all of it end to end", n_main, MEASURED, seconds / speed, speed, speed / before, speed / first)


def _steps(p: Parts) -> Iterator[tuple[str, float, str, Cost]]:
    song_s, stage, t = p.mean / FRAME_RATE, p.ours.speed.stage_s, p.ticks
    file_s = p.ours.encode_thread_s + p.ours.write_thread_s
    windows = p.n_windows
    old = Cost((p.mean + p.delay) * _step_s(p.upstream), 0, windows * p.flow_50, windows * p.vae_s, file_s)
    yield "upstream: batch 1, eager, growing cache, 50 flow steps", 1, COMPOSED, old
    in_batch = (p.longest + p.delay) / RECIPE_BATCH
    for change, step in (
        ("+ batch, which ends with its longest song", p.batched),
        ("+ static cache, SDPA over the whole buffer", p.static),
        ("+ CUDA graph", p.recipe),
    ):
        old = replace(old, tokens_s=in_batch * _step_s(step))
        yield change, RECIPE_BATCH, COMPOSED, old
    old = replace(old, flow_s=windows * p.flow_s)
    yield "+ 10 flow steps: the brief's recipe", RECIPE_BATCH, COMPOSED, old
    old = replace(old, tokens_s=in_batch * t.fixed)
    yield "+ length-aware attention, fused kernels, sampling in the graph", RECIPE_BATCH, COMPOSED, old
    two = p.longest / RECIPE_BATCH * (t.fixed_main + t.fixed_sub)
    old = replace(old, tokens_s=two, passes_s=stage["prefill"] * song_s)
    yield "+ two phases: no ticks for the delay (prefill counted from here)", RECIPE_BATCH, COMPOSED, old
    old = replace(old, tokens_s=two * p.mean / p.longest)
    yield "+ rolling admission: a slot is refilled when its song ends", RECIPE_BATCH, COMPOSED, old
    n_main, n_sub = p.ours.live
    old = replace(old, tokens_s=p.mean * (t.main_own / n_main + t.sub_own / n_sub))
    yield "+ pages, staggered starts: as many songs as fit", n_main, COMPOSED, old
    old = replace(old, tokens_s=p.mean * (t.main / n_main + t.sub / n_sub))
    yield "+ shared unconditional prefix", n_main, COMPOSED, old
    old = replace(old, flow_s=stage["flow"] * song_s)
    yield "+ flow: padded heads, SDPA, graph", n_main, COMPOSED, old
    old = replace(old, vae_s=stage["vae"] * song_s)
    yield "+ VAE in fp16", n_main, COMPOSED, old
    old = replace(old, file_s=(stage["encode"] + stage["write"]) * song_s)
    yield "+ FLAC, hashes and disk on CPU threads", n_main, COMPOSED, old


def without_one(parts: Parts) -> Iterator[Row]:
    """Ours without one thing each, from measured parts: what it is worth at the end."""
    speed, t = parts.ours.speed, parts.ticks
    song_s = parts.mean / FRAME_RATE
    whole = song_s / speed.x_realtime
    n_main, n_sub = parts.ours.live
    eager = parts.mean * ((t.main_eager - t.main) / n_main + (t.sub_eager - t.sub) / n_sub)
    own = parts.mean * ((t.main_own - t.main) / n_main + (t.sub_own - t.sub) / n_sub)
    flow = (OLD_STEPS / parts.codec_steps - 1) * speed.stage_s["flow"] * song_s
    stages = speed.stage_s["encode"] + speed.stage_s["write"]
    file = parts.ours.encode_thread_s + parts.ours.write_thread_s - stages * song_s
    for change, more in (
        ("ours without graphs of the ticks", eager),
        ("ours without the shared prefix", own),
        ("ours at 50 flow steps", flow),
        ("ours without CPU threads", file),
    ):
        seconds = whole + more
        yield Row(change, n_main, COMPOSED, seconds, song_s / seconds, seconds / whole, None)


def _step_s(step: StepTime) -> float:
    return step.transformers + step.sampling


def _plain(value: Any) -> Any:
    """Dataclasses and paths for JSON."""
    content = asdict(value)
    return {name: inner if not hasattr(inner, "as_posix") else str(inner) for name, inner in content.items()}
