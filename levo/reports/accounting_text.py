"""Slurm's view of a RUN as plain text for a terminal. Knows no files."""

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
    lost, waited = slurm["lost_gpu_hours"], slurm["queue_s"]
    yield f"  allocated    {figure(slurm['allocated_gpu_hours'])} GPU-hours"
    yield f"  attributed   {figure(slurm['attributed_gpu_hours'])} GPU-hours, by the ranks' ledgers"
    difference = f"{figure(slurm['difference_gpu_hours'])} GPU-hours"
    yield f"  difference   {difference}, {share(slurm['difference_share'])} of what was allocated"
    yield f"  useful       {figure(slurm['useful_gpu_hours'])} GPU-hours went into songs: {share(slurm['efficiency'])}"
    n_died = count(slurm["n_tries_before_levo"], "try", "tries")
    before = f"{figure(lost['before_levo'])} in {n_died} that died before levo started"
    yield f"  lost work    {figure(lost['in_levo'])} GPU-hours in levo, {before}"
    if waited["median"] is not None:
        spread = f"median {duration(waited['median'])}, longest {duration(waited['max'])}"
        yield f"  queue time   {spread}, all together {duration(waited['total'])}"
    others = slurm["other_jobs"]
    if others["n_tries"]:
        yield f"  other jobs   {count(others['n_tries'], 'try', 'tries')}, {figure(others['core_hours'])} core-hours"


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
