"""What Slurm knows of the job that this process runs in: its end, its restarts, what it was given. Decides nothing.

Snakemake's jobstep strips a rule's environment of all SLURM_ variables but the job's number and a few others
(SLURM_RESTART_COUNT and SLURM_JOB_END_TIME are gone), so scontrol is asked, once and not for long.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from levo.node.binding import expand

TIMEOUT_S = 20.0
_GPU = re.compile(r"\d+|(?:GPU|MIG)-.+")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


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
    text, trouble = _ask(job_id)
    job = parse_job(job_id, text)
    if trouble or job.limit_s is None:
        why = trouble or "Slurm names none"
        say(f"job {job_id}: no time limit is known ({why}); only a signal stops this shard early")
    return job


def _ask(job_id: str) -> tuple[str, str]:
    """(what scontrol says of a running job, or why it says nothing)."""
    scontrol = shutil.which("scontrol")
    if scontrol is None:
        return "", "scontrol is not on PATH"
    try:
        command = [scontrol, "--details", "--oneliner", "show", "job", job_id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "", f"scontrol did not answer within {TIMEOUT_S:g} s"
    except OSError as error:
        return "", f"scontrol could not be started: {error}"
    if done.returncode:
        return "", f"scontrol: {done.stderr.strip() or f'exit code {done.returncode}'}"
    state = _field(done.stdout, "JobState")
    if state not in ("RUNNING", "COMPLETING"):
        return "", f"scontrol calls the job {state}"
    return done.stdout, ""


def parse_job(job_id: str, text: str) -> SlurmJob:
    """A job as `scontrol --details show job` prints it, on one line or several; empty text is a job unknown."""
    limit_s, run_s = _seconds(_field(text, "TimeLimit")), _seconds(_field(text, "RunTime"))
    gpus: list[int] = []
    for numbers in re.findall(r"\bgpu(?::[^\s(,]+)?\(IDX:([\d,-]+)\)", _field(text, "GRES")):
        gpus += expand(numbers)
    return SlurmJob(
        job_id,
        restarts=_number(_field(text, "Restarts")),
        limit_s=limit_s,
        # From durations, not from EndTime: that is a wall clock's, of another machine and in its time zone.
        end_s=None if limit_s is None or run_s is None else time.monotonic() + limit_s - run_s,
        tasks=_number(_field(text, "NumTasks")),
        cores=_number(_field(text, "NumCPUs")),
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
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        if re.fullmatch(r"[\d,-]+", environment.get(name, "")):
            return [str(number) for number in expand(environment[name])]
    if job is not None and job.gpus:
        return [str(number) for number in job.gpus]
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    return [str(number) for number in range(int(count))] if count.isdigit() else []


def _field(text: str, name: str) -> str:
    found = re.search(rf"(?:^|\s){re.escape(name)}=(\S*)", text)
    return found[1] if found else ""


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _seconds(text: str) -> float | None:
    """D-HH:MM:SS, HH:MM:SS or MM:SS; None for UNLIMITED and other words."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
