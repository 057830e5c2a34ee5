"""What Slurm knows of the job that this process runs in: its end, its restarts, what it was given. Decides nothing.

Snakemake's jobstep strips a rule's environment of all SLURM_ variables but the job's number and a few others
(SLURM_RESTART_COUNT and SLURM_JOB_END_TIME are gone), so scontrol is asked, once and not for long.
"""

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from levo.node import slurm
from levo.node.binding import expand

_GPU = re.compile(r"\d+|(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class SlurmJob:
    """Null is what Slurm did not say. limit_s: time limit, null without one.  end_s: when it is reached, on this
    machine's monotonic clock.  restarts: how often Slurm has requeued the job.  gpus: numbers of its GPUs on the node.
    """

    job_id: str
    restarts: int | None = None
    limit_s: float | None = None
    end_s: float | None = None
    tasks: int | None = None
    cores: int | None = None
    gpus: tuple[int, ...] = ()


def this_job(say: Callable[[str], None]) -> SlurmJob | None:
    """The job around this process; None outside Slurm. What cannot be learned is said, once."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    shown: slurm.Shown = {}
    why = "Slurm names none"
    try:
        found = slurm.job(job_id)
        if found.get("JobState") in ("RUNNING", "COMPLETING"):
            shown = found
        else:
            why = f"scontrol calls the job {found.get('JobState')}"
    except slurm.NoAnswer as error:
        why = str(error)
    job = parse_job(job_id, shown)
    if job.limit_s is None:
        say(f"job {job_id}: no time limit is known ({why}); only a signal stops this shard early")
    return job


def parse_job(job_id: str, shown: Mapping[str, str]) -> SlurmJob:
    """A job as scontrol shows it; nothing shown is a job unknown."""
    limit_s, run_s = (slurm.duration_s(shown.get(name, "")) for name in ("TimeLimit", "RunTime"))
    gpus: list[int] = []
    for numbers in re.findall(r"\bgpu(?::[^\s(,]+)?\(IDX:([\d,-]+)\)", shown.get("GRES", "")):
        gpus += expand(numbers)
    return SlurmJob(
        job_id,
        restarts=_number(shown, "Restarts"),
        limit_s=limit_s,
        # From durations, not from EndTime: that is a wall clock's, of another machine and in its time zone.
        end_s=None if limit_s is None or run_s is None else time.monotonic() + limit_s - run_s,
        tasks=_number(shown, "NumTasks"),
        cores=_number(shown, "NumCPUs"),
        gpus=tuple(gpus),
    )


def given_gpus(environment: Mapping[str, str], job: SlurmJob | None) -> list[str]:
    """What names the GPUs given to this process: numbers, or UUIDs; empty when nothing was given.

    CUDA_VISIBLE_DEVICES comes first, because a step may have fewer GPUs than its job. What follows an entry that names
    no GPU (-1, or Slurm's NoDevFiles) does not count, as for CUDA.
    """
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return list(takewhile(_GPU.fullmatch, (entry.strip() for entry in listed.split(","))))
    return slurms_gpus(environment, job)


def slurms_gpus(environment: Mapping[str, str], job: SlurmJob | None) -> list[str]:
    """Numbers of the GPUs that Slurm gave, whatever CUDA_VISIBLE_DEVICES says."""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if re.fullmatch(r"[\d,-]+", environment.get(name, "")):
            return [str(number) for number in expand(environment[name])]
    if job is not None and job.gpus:
        return [str(number) for number in job.gpus]
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    return [str(number) for number in range(int(count))] if count.isdigit() else []


def _number(shown: Mapping[str, str], name: str) -> int | None:
    text = shown.get(name, "")
    return int(text) if text.isdigit() else None
