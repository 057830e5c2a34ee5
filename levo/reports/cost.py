"""cost.json: what a RUN cost, by the ranks' own clocks, beside what was estimated. The formulas are in formulas.py.

The bill of a shard was settled when it was sealed: songs of every outcome + load + idle + lost work = wall time of its
ranks. On a CPU a rank takes the place of a GPU, and hours are rank-hours; they say nothing about a GPU.
"""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from levo.node.ledger import Bill
from levo.node.provenance import OUTCOMES, STAGES
from levo.reports.estimate import node_of
from levo.reports.formulas import HOUR_S, MILLION_SONGS_S, Hours, ratio, x_realtime
from levo.reports.gather import Run, counts, numbers

FORMAT = 1
LANGUAGE_STAGES, CODEC_STAGES, DISK_STAGES = ("prefill", "main", "sub"), ("flow", "vae"), ("encode", "write")
GROUPS: dict[str, tuple[str, ...]] = {
    "language model": LANGUAGE_STAGES,
    "codec": CODEC_STAGES,
    "encode and write": DISK_STAGES,
}
"""Stages as the estimate knows them; the last is none of its own there."""
PARTS = ("songs", "load", "idle", "lost")


def account(run: Run, estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that cost.json says. estimate: RUN/plan/estimate.json."""
    node = node_of(run.settings)
    total = _total(run.bills)
    audio_s = made_seconds(run.ok)
    hours = Hours.of_gpu_seconds(total.wall_s, node)
    speed = x_realtime(audio_s, total.wall_s)
    made = {
        "format": FORMAT,
        "run": run.settings.run,
        "unit": unit_of(run.songs),
        "n_shards_finished": len(run.shards.sealed),
        "n_shards": run.shards.n_planned,
        "gpus_per_node": node.gpus,
        "cores_per_node": node.cores,
        "n_songs": counts(run.songs["outcome"]),
        "audio_hours": audio_s / HOUR_S,
        **hours.as_dict(),
        "x_realtime": speed,
        "x_realtime_songs_only": x_realtime(audio_s, total.songs_s),
        "gpu_seconds": {f"{part}_s": getattr(total, f"{part}_s") for part in (*PARTS, "wall")},
        "closure_error": closure_error(total),
        "gpu_seconds_by_stage": by_stage(total),
        "gpu_seconds_by_outcome": _by_outcome(run.songs),
        "attempts": [
            {"shard": paths.number, **attempt}
            for paths, bill in zip(run.shards.sealed, run.bills, strict=True)
            for attempt in bill.attempts
        ],
        "per_million_3_minute_songs": Hours.of_audio(MILLION_SONGS_S, speed, node).as_dict() if speed else None,
    }
    return {**made, "planned_and_actual": _compare(estimate, made, total, run.bills)}


def made_seconds(ok: pa.Table) -> float:
    """Seconds of audio of these songs, every rendition counted and stems not."""
    return float((numbers(ok, "seconds") * numbers(ok, "renditions")).sum())


def unit_of(songs: pa.Table) -> dict[str, str]:
    """What an hour is an hour of."""
    if set(counts(songs["device"])) == {"cuda"}:
        return {"name": "GPU", "note": "GPU-hours are hours of one GPU, as its rank's own clock counts them."}
    note = "This run used CPU ranks: each takes the place of a GPU here, so these hours say nothing about a GPU."
    return {"name": "rank", "note": note}


def closure_error(bill: Bill) -> float | None:
    """(songs + load + idle + lost - wall) / wall: 0 when every second is accounted for."""
    if not bill.wall_s:
        return None
    return (bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s - bill.wall_s) / bill.wall_s


def by_stage(bill: Bill) -> dict[str, float]:
    """Seconds of the ranks by what they were spent on; adds up to their wall time."""
    songs = {stage: bill.by_stage.get(stage, 0.0) for stage in STAGES}
    return {**songs, "load": bill.load_s, "idle": bill.idle_s, "lost": bill.lost_s}


def _total(bills: tuple[Bill, ...]) -> Bill:
    stages: dict[str, float] = {}
    for bill in bills:
        for stage, seconds in bill.by_stage.items():
            stages[stage] = stages.get(stage, 0.0) + seconds
    sums = {f"{part}_s": sum(getattr(bill, f"{part}_s") for bill in bills) for part in (*PARTS, "wall")}
    return Bill(**sums, by_stage=stages)


def _by_outcome(songs: pa.Table) -> dict[str, float]:
    """What songs of each outcome were charged with; adds up to songs_s."""
    return {
        outcome: float(pc.sum(songs.filter(pc.equal(songs["outcome"], outcome))["gpu_seconds"]).as_py() or 0.0)
        for outcome in OUTCOMES
    }


def _held_s(bill: Bill) -> float:
    """How long a shard held its node: its attempts one after the other, each as long as its longest rank."""
    return sum(attempt["longest_s"] for attempt in bill.attempts)


def _compare(
    estimate: Mapping[str, Any], made: Mapping[str, Any], total: Bill, bills: tuple[Bill, ...]
) -> list[dict[str, Any]]:
    """A row a figure: what, unit, planned, actual, and actual over planned."""
    planned_stages = estimate["gpu_hours_by_stage"]
    spent = {name: sum(total.by_stage.get(stage, 0.0) for stage in stages) for name, stages in GROUPS.items()}
    rows: list[tuple[str, str, float | None, float | None]] = [
        ("songs", "songs", estimate["n_songs"], sum(made["n_songs"].values())),
        ("audio", "h", estimate["audio_hours"], made["audio_hours"]),
        ("all together", "GPU-h", estimate["gpu_hours"], made["gpu_hours"]),
        *((name, "GPU-h", planned_stages.get(name), seconds / HOUR_S) for name, seconds in spent.items()),
        ("load", "GPU-h", planned_stages["load"], total.load_s / HOUR_S),
        ("idle", "GPU-h", None, total.idle_s / HOUR_S),
        ("lost work", "GPU-h", None, total.lost_s / HOUR_S),
        ("nodes", "node-h", estimate["node_hours"], made["node_hours"]),
        ("cores", "core-h", estimate["core_hours"], made["core_hours"]),
        ("speed", "x realtime", estimate["x_realtime"], made["x_realtime"]),
        ("longest shard", "s", estimate["shard_wall_s"]["longest"], max(map(_held_s, bills))),
    ]
    return [
        {
            "what": what,
            "unit": unit,
            "planned": planned,
            "actual": actual,
            "actual_over_planned": ratio(actual, planned) if planned is not None and actual is not None else None,
        }
        for what, unit, planned, actual in rows
    ]
