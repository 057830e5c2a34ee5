"""Slurm's view of a RUN beside its own: GPU-hours allocated against those that the ranks' ledgers account for.

Allocated: elapsed time of every try of a shard's jobs, times its GPUs. Attributed: wall time of the ranks. The
difference is the start of a job before its ranks, sealing after them, GPUs without a rank, and whole tries that died
before levo started. Useful: what songs of every outcome are charged with. Knows neither files nor sacct.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from levo.node.ledger import Bill
from levo.reports.formulas import HOUR_S
from levo.reports.slurm import RULE, Gathered, Row

FORMAT = 1
_TOLD = ("job_id", "state", "exit_code", "signal", "elapsed_s", "levo_started", "node_list")


@dataclass(frozen=True)
class _Jobs:
    """Tries of the jobs of one shard, or of all. gpus_per_node: for tries whose GPUs Slurm does not list."""

    rows: Sequence[Row]
    gpus_per_node: int

    @property
    def allocated_s(self) -> float:
        return sum(self.gpu_s(row) for row in self.rows)

    @property
    def died_s(self) -> float:
        """Of tries in which no attempt of ours began."""
        return sum(self.gpu_s(row) for row in self.rows if not row["levo_started"])

    def gpu_s(self, row: Row) -> float:
        gpus = row["nodes"] * self.gpus_per_node if row["gpus"] is None else row["gpus"]
        return float(row["elapsed_s"] * gpus)

    @property
    def queue_s(self) -> list[float]:
        return [waited for row in self.rows if (waited := queue_s(row)) is not None]


def queue_s(row: Row) -> float | None:
    """From when a try might have started until it did; None if it never did: a cancelled one may have a start, too."""
    if not row["cpus"]:
        return None
    since_s = row["submit_s"] if row["eligible_s"] is None else row["eligible_s"]
    return max(0.0, row["start_s"] - since_s) if row["start_s"] is not None and since_s is not None else None


def compare(gathered: Gathered, bills: Mapping[int, Bill], gpus_per_node: int) -> dict[str, Any]:
    """What cost.json says under `slurm`. bills: of every shard, unfinished ones as far as they are."""
    rows = [row for row in gathered.rows if row["rule"] == RULE]
    jobs = _Jobs(rows, gpus_per_node)
    in_slurm = {shard for row in rows for shard in row["shards"]}
    bills = {shard: bill for shard, bill in bills.items() if shard in in_slurm}
    attributed_s = sum(bill.wall_s for bill in bills.values())
    useful_s, lost_s = (sum(getattr(bill, name) for bill in bills.values()) for name in ("songs_s", "lost_s"))
    allocated_s, died_s = jobs.allocated_s, jobs.died_s
    difference_s = allocated_s - attributed_s
    others = [row for row in gathered.rows if row["rule"] != RULE]
    return {
        "format": FORMAT,
        "gathered_unix_s": gathered.when_s,
        "problems": [*gathered.problems, *_unlisted(rows, gpus_per_node)],
        "n_jobs": len({row["job_id"] for row in rows}),
        "n_tries": len(rows),
        "states": dict(Counter(row["state"] for row in rows).most_common()),
        "allocated_gpu_hours": allocated_s / HOUR_S,
        "attributed_gpu_hours": attributed_s / HOUR_S,
        "difference_gpu_hours": difference_s / HOUR_S,
        "difference_share": difference_s / allocated_s if allocated_s else None,
        "useful_gpu_hours": useful_s / HOUR_S,
        "efficiency": useful_s / allocated_s if allocated_s else None,
        "lost_gpu_hours": {"in_levo": lost_s / HOUR_S, "before_levo": died_s / HOUR_S},
        "n_tries_before_levo": sum(not row["levo_started"] and row["elapsed_s"] > 0 for row in rows),
        "queue_s": _spread(jobs.queue_s),
        "other_jobs": {"n_tries": len(others), "core_hours": sum(r["elapsed_s"] * r["cpus"] for r in others) / HOUR_S},
        "shards": _shards(rows, bills, gpus_per_node),
    }


def _unlisted(rows: Sequence[Row], gpus_per_node: int) -> list[str]:
    """Where a count of GPUs is the settings' and not Slurm's."""
    n = sum(row["gpus"] is None and row["elapsed_s"] > 0 for row in rows)
    if not n:
        return []
    return [f"Slurm lists no GPUs for {n} tries: {gpus_per_node} a node are reckoned (setting cost.gpus_per_node)"]


def _spread(waited: Sequence[float]) -> dict[str, float | None]:
    if not waited:
        return {"median": None, "p90": None, "max": None, "total": None}
    return {
        "median": float(np.median(waited)),
        "p90": float(np.quantile(waited, 0.9)),
        "max": max(waited),
        "total": sum(waited),
    }


def _shards(rows: Sequence[Row], bills: Mapping[int, Bill], gpus_per_node: int) -> list[dict[str, Any]]:
    """A row a shard that had jobs of its own, by number: what several shared cannot be split."""
    by_shard: dict[int, list[Row]] = {}
    for row in rows:
        if len(row["shards"]) == 1:
            by_shard.setdefault(row["shards"][0], []).append(row)
    return [_shard(n, _Jobs(by_shard[n], gpus_per_node), bills.get(n, Bill())) for n in sorted(by_shard)]


def _shard(number: int, jobs: _Jobs, bill: Bill) -> dict[str, Any]:
    allocated_s = jobs.allocated_s
    return {
        "shard": number,
        "allocated_gpu_s": allocated_s,
        "attributed_gpu_s": bill.wall_s,
        "useful_gpu_s": bill.songs_s,
        "lost_gpu_s": bill.lost_s + jobs.died_s,
        "efficiency": bill.songs_s / allocated_s if allocated_s else None,
        "queue_s": sum(jobs.queue_s),
        "tries": [{name: row[name] for name in _TOLD} for row in jobs.rows],
    }


def least_efficient_first(shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shards that nothing was allocated to come last."""
    return sorted(shards, key=lambda s: (s["efficiency"] is None, s["efficiency"], s["shard"]))


def try_words(each: Mapping[str, Any]) -> str:
    """4711 COMPLETED, 4712 FAILED 1, 4713 CANCELLED signal 15."""
    ended = f" {each['exit_code']}" if each["exit_code"] else ""
    killed = f" signal {each['signal']}" if each["signal"] else ""
    return f"{each['job_id']} {each['state']}{ended}{killed}"
