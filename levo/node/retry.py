"""Give failed songs, and shards that ended for good, another chance (`levo retry RUN`).

Nothing is deleted but the done marks of those shards: a mark in the work folder says from which attempt on the failed
rows count. The next run of a shard makes these songs under a new attempt, and seals it again.
"""

from pathlib import Path

import pyarrow.parquet as pq

from levo.disk import sync_folder
from levo.errors import NodeError
from levo.node.journal import History
from levo.node.lease import Lease
from levo.node.paths import RunPaths, ShardPaths
from levo.node.standing import mark_retry, read_standing
from levo.settings import of_run
from levo.songs.plan import read_shard

ENOUGH = 2
"""Attempts in a row without a committed song that end a shard for good."""


def retry_run(run_dir: Path) -> int:
    """Mark every failed song of a RUN to be made again; returns how many. Raises NodeError while a shard is at work."""
    of_run(run_dir)  # says so if this is no RUN
    paths = RunPaths(run_dir)
    numbers = sorted(int(folder.name) for folder in (run_dir / "work").glob("[0-9]*") if folder.name.isdigit())
    return sum(_retry_shard(paths, number) for number in numbers)


def _retry_shard(run: RunPaths, number: int) -> int:
    paths = run.shard(number)
    if is_sealed(paths) and not _has_failed(paths):
        return 0
    lease = Lease(paths, History.read(paths).next_attempt, wait_s=0)
    lease.acquire()
    try:
        standing = read_standing(paths, read_shard(run.plan, number), say=print)
        if standing.failed or standing.fruitless >= ENOUGH:
            mark_retry(paths, standing.failed)
        if standing.failed:
            _unseal(paths)
        return len(standing.failed)
    finally:
        lease.release()


def is_sealed(paths: ShardPaths) -> bool:
    """All that Snakemake knows of the shard is there."""
    return all(path.exists() for path in (paths.tokens, paths.audio, paths.provenance))


def _has_failed(paths: ShardPaths) -> bool:
    try:
        outcomes = pq.read_table(paths.provenance, columns=["outcome"])["outcome"].to_pylist()
    except (OSError, ValueError) as error:
        raise NodeError(
            f"provenance not readable: {error}",
            where=str(paths.provenance),
            fix=f"delete it; the shard's next run writes it again from {paths.work}",
        ) from None
    return "failed" in outcomes


def _unseal(paths: ShardPaths) -> None:
    for path in (paths.provenance, paths.audio, paths.tokens):  # the done mark first
        path.unlink(missing_ok=True)
    if paths.out.is_dir():
        sync_folder(paths.out)
