"""Which Slurm jobs a RUN's shards had, and keeping what Slurm's accounting says of them. Knows no money.

Job ids come from the leases, where every attempt left its own. The job names that these ids have in Slurm (Snakemake
gives all jobs of one start the same name) lead to the jobs that died before levo started, and to those of other rules;
the comment says which rule and shard. Slurm forgets jobs, so rows once gathered are kept.
"""

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from levo.errors import NodeError
from levo.node.journal import first_event
from levo.node.lease import all_holders
from levo.node.paths import RunPaths
from levo.node.tables import metadata, read_table, with_metadata, write_table
from levo.reports.sacct import JobTry, Sacct

RULE = "generate"
MARGIN_S = 30 * 86400.0
"""Slurm is asked from so long before the RUN's first file on: the jobs are younger, and a bound spares its database."""

TEXT, INT, REAL = pa.string(), pa.int32(), pa.float64()
SLURM_SCHEMA = pa.schema(
    [
        pa.field("shards", pa.list_(INT), nullable=False),
        pa.field("rule", TEXT),
        pa.field("job_id", TEXT, nullable=False),
        pa.field("job_name", TEXT, nullable=False),
        pa.field("comment", TEXT, nullable=False),
        pa.field("partition", TEXT, nullable=False),
        pa.field("state", TEXT, nullable=False),
        pa.field("state_text", TEXT, nullable=False),
        pa.field("exit_code", INT),
        pa.field("signal", INT),
        pa.field("submit_s", REAL),
        pa.field("eligible_s", REAL),
        pa.field("start_s", REAL),
        pa.field("end_s", REAL),
        pa.field("elapsed_s", REAL, nullable=False),
        pa.field("cpus", INT, nullable=False),
        pa.field("nodes", INT, nullable=False),
        pa.field("gpus", INT),
        pa.field("node_list", TEXT, nullable=False),
        pa.field("levo_started", pa.bool_(), nullable=False),
    ],
    metadata={"levo.schema": "slurm", "levo.schema_version": "1"},
)
"""A row a try of a job. rule: Snakemake's; null where neither an attempt nor the comment tells.  shards: that ran in
the job, mostly one; none for another rule.  levo_started: whether an attempt of ours ran in it.  The rest as in JobTry.
"""
GATHERED_KEY = "levo.gathered"

_UUID = re.compile(r"(?:.+_)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_COMMENT = re.compile(r"rule_(.+?)(?:_wildcards_(.*))?")
_SLACK_S = 60.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Gathered:
    """rows: SLURM_SCHEMA.  when_s: when Slurm was last asked with success, since 1970; null if never.  problems: what
    was odd, in words.
    """

    rows: list[Row]
    when_s: float | None
    problems: list[str]


@dataclass(frozen=True)
class _Attempt:
    shard: int
    job_id: str
    began_s: float | None


def slurm_table(run_dir: Path) -> Path:
    """RUN/reports/slurm.parquet."""
    return RunPaths(run_dir).reports / "slurm.parquet"


def gather(run_dir: Path, n_shards: int) -> Gathered | None:
    """Ask Slurm of the RUN's jobs and keep the rows. None when no attempt was a Slurm job. Never raises for Slurm."""
    attempts, kept = _attempts(run_dir, n_shards), _read_kept(run_dir)
    if not attempts:  # or the work folders are gone: what was kept still stands
        return kept if kept.rows else None
    sacct = Sacct(_since_s(run_dir, attempts))
    by_job: dict[str, list[_Attempt]] = {}
    for attempt in attempts:
        by_job.setdefault(attempt.job_id, []).append(attempt)
    ids = sorted(by_job, key=lambda job_id: (len(job_id), job_id))
    own = os.environ.get("SLURM_JOB_ID")  # a report as a job of Snakemake's has the name that is looked for
    first = sacct.ask("jobs", [*ids, own] if own and own not in ids else ids)
    names = sorted({each.job_name for each in first if _UUID.fullmatch(each.job_name)})
    ours = {(each.job_id, each.submit_s): each for each in first if each.job_id in ids or each.job_name in names}
    ours |= {(each.job_id, each.submit_s): each for each in sacct.ask("name", names)}
    rows = {(row["job_id"], row["submit_s"]): row for row in kept.rows}
    rows |= {key: _row(each, by_job.get(each.job_id, [])) for key, each in ours.items()}
    problems = [*kept.problems, *sacct.problems]
    known = {job_id for job_id, _ in rows}
    unknown = [job_id for job_id in ids if job_id not in known]
    if unknown and not problems:
        problems.append(f"sacct knows {len(ids) - len(unknown)} of {len(ids)} jobs; the first other is {unknown[0]}")
    when_s = time.time() if ours else kept.when_s
    gathered = Gathered(sorted(rows.values(), key=_order), when_s, problems)
    if ours:
        _keep(run_dir, gathered)
    return gathered


def _order(row: Row) -> tuple[Any, ...]:
    return not row["shards"], row["shards"], len(row["job_id"]), row["job_id"], row["submit_s"] or 0.0


def _attempts(run_dir: Path, n_shards: int) -> list[_Attempt]:
    """Attempts that were Slurm jobs."""
    found = []
    for number in range(n_shards):
        paths = RunPaths(run_dir).shard(number)
        for holder in all_holders(paths):
            if holder.slurm_job_id:
                event = first_event(paths, holder.attempt)
                found.append(_Attempt(number, holder.slurm_job_id, event.time_s if event else None))
    return found


def _since_s(run_dir: Path, attempts: Sequence[_Attempt]) -> float:
    began = [attempt.began_s for attempt in attempts if attempt.began_s is not None]
    return max(0.0, min([*began, RunPaths(run_dir).config.stat().st_mtime]) - MARGIN_S)


def _row(each: JobTry, mine: Sequence[_Attempt]) -> Row:
    """mine: attempts that ran under the job's id."""
    shards = {attempt.shard for attempt in mine}
    match = _COMMENT.fullmatch(each.comment)
    rule = match[1] if match else RULE if mine else None
    if not shards and rule == RULE and match and (match[2] or "").isdigit():
        shards = {int(match[2])}
    return {
        "shards": sorted(shards),
        "rule": rule,
        **asdict(each),
        "levo_started": any(_is_within(each, attempt.began_s) for attempt in mine),
    }


def _is_within(each: JobTry, began_s: float | None) -> bool:
    """Whether an attempt belongs to this try of its job, and not to one before or after a requeue."""
    if began_s is None or each.start_s is None:
        return False
    end_s = each.start_s + each.elapsed_s if each.end_s is None else each.end_s
    return each.start_s - _SLACK_S <= began_s <= end_s + _SLACK_S


def _keep(run_dir: Path, gathered: Gathered) -> None:
    said = json.dumps({"when_s": gathered.when_s, "problems": gathered.problems})
    try:
        write_table(gathered.rows, with_metadata(SLURM_SCHEMA, {GATHERED_KEY: said}), slurm_table(run_dir))
    except OSError as error:
        gathered.problems.append(f"{slurm_table(run_dir)} cannot be written: {error.strerror}")


def _read_kept(run_dir: Path) -> Gathered:
    path = slurm_table(run_dir)
    if not path.exists():
        return Gathered([], None, [])
    try:
        table = read_table(path, SLURM_SCHEMA)
        said = json.loads(metadata(table.schema)[GATHERED_KEY])
        return Gathered(table.to_pylist(), said["when_s"], [])
    except (NodeError, ValueError, KeyError) as error:
        return Gathered([], None, [f"{path} is not readable and is made anew: {error}"])
