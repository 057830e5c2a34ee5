"""Slurm's view of a RUN in words: its lines, and plain text for a terminal. Knows no files."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from levo.reports.accounting import least_efficient_first, try_words
from levo.reports.words import NONE, count, duration, figure, share

MOST_SHARDS = 40


def text_of(slurm: Mapping[str, Any]) -> str:
    """slurm: what cost.json says under that name."""
    return "\n".join([*_head(slurm), *_shards(slurm["shards"])])


def _head(slurm: Mapping[str, Any]) -> Iterator[str]:
    when_s = slurm["gathered_unix_s"]
    when = f"asked {datetime.fromtimestamp(when_s):%Y-%m-%d %H:%M:%S}" if when_s else "not heard yet"
    states = ", ".join(f"{n:,} {state}" for state, n in slurm["states"].items())
    yield f"Slurm, {when}: {count(slurm['n_jobs'], 'job')}, {count(slurm['n_tries'], 'try', 'tries')}: {states or NONE}"
    yield from (f"  problem: {problem}" for problem in slurm["problems"])
    if not slurm["n_tries"]:
        return
    for what, value, unit, note in lines(slurm):
        yield f"  {what:<16} {value:>12} {unit:<6}  {note}"


def lines(slurm: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """(what, value, unit, note) a line, for the page too. slurm: with a try at least."""
    lost, waited, others = slurm["lost_gpu_hours"], slurm["queue_s"], slurm["other_jobs"]
    died = count(slurm["n_tries_before_levo"], "try", "tries")
    hours = {
        "allocated": (slurm["allocated_gpu_hours"], "elapsed time of every try, times its GPUs"),
        "attributed": (slurm["attributed_gpu_hours"], "wall time of the ranks, by their ledgers"),
        "difference": (slurm["difference_gpu_hours"], f"{share(slurm['difference_share'])} of what was allocated"),
        "useful": (slurm["useful_gpu_hours"], f"went into songs: {share(slurm['efficiency'])} of what was allocated"),
        "lost in levo": (lost["in_levo"], "songs begun again or made twice"),
        "lost before levo": (lost["before_levo"], f"{died} that died before levo started"),
    }
    for what, (value, note) in hours.items():
        yield what, figure(value), "GPU-h", note
    if waited["median"] is not None:
        spread = f"median {duration(waited['median'])}, longest {duration(waited['max'])}"
        yield "queue time", duration(waited["total"]), "", spread
    tries = count(others["n_tries"], "try", "tries")
    yield "other jobs", figure(others["core_hours"]), "core-h", f"{tries}: QA, report and so on"


def _shards(shards: list[dict[str, Any]]) -> Iterator[str]:
    """The least efficient first."""
    if not shards:
        return
    yield ""
    yield "  shard  allocated  attributed  lost GPU-s  efficient   queued  tries"
    for shard in least_efficient_first(shards)[:MOST_SHARDS]:
        numbers = (shard["allocated_gpu_s"], shard["attributed_gpu_s"], shard["lost_gpu_s"])
        told = "".join(f"{value:>{width},.0f}" for value, width in zip(numbers, (11, 12, 12), strict=True))
        tries = ", ".join(try_words(each) for each in shard["tries"])
        yield f"  {shard['shard']:05d}{told}{share(shard['efficiency']):>11}{duration(shard['queue_s']):>9}  {tries}"
    if len(shards) > MOST_SHARDS:
        yield f"  and {count(len(shards) - MOST_SHARDS, 'shard')} more, in cost.json after `levo report`"
