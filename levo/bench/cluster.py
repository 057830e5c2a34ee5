"""Runs commands one after the other here, or each as a Slurm job, and gathers their records. Knows no bench.

A command that succeeded is not run again. Here no submitit is needed: its local jobs would hide the GPUs that a user
chose with CUDA_VISIBLE_DEVICES, and the GPU is shared, so one command follows the other.
"""

import getpass
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

import levo
from levo.bench.cluster_task import FAILED, OK, OUT_OF_MEMORY, OUT_OF_TIME, Record, Task, lines_of, record_of, run_task
from levo.disk import write_json
from levo.errors import ConfigError
from levo.node import slurm
from levo.node.machine import git_commit
from levo.node.profile import Options, read_profile, with_options

if TYPE_CHECKING:
    from submitit import Job, SlurmExecutor

POLL_S = 5.0
GRACE_S = 60.0
"""How long a record may take to be seen here after its job has left the queue: NFS shows new files late."""

SPARE_MINUTES = 5
"""A job's limit over its command's: the command is ended first, and says so."""

Say = Callable[[str], None]
Run = Callable[[Sequence["Task"], Path, Say], list[Record]]


def runner(cluster: str, profile: str | None, sbatch: Sequence[str]) -> Run:
    """What runs tasks on "local" or "slurm"; there with a profile's resources, and NAME=VALUE of sbatch over them."""
    if cluster == "local":
        if profile or sbatch:
            fix = "leave them out, or add --cluster slurm"
            raise ConfigError("--profile and --sbatch are for jobs", where="--cluster local", fix=fix)
        return run_here
    if cluster != "slurm":
        raise ConfigError(f"no cluster {cluster!r}", where="--cluster", fix="local or slurm")
    options = with_options(read_profile(profile) if profile else None, sbatch)
    return lambda tasks, folder, say: run_on_slurm(tasks, folder, options, say)


def run_here(tasks: Sequence[Task], folder: Path, say: Say) -> list[Record]:
    """Run what has not succeeded yet, one after the other; a record a task."""
    folder.mkdir(parents=True, exist_ok=True)
    for task in _to_do(tasks, folder, say):
        say(f"{task.name}: running, at most {task.minutes:g} minutes")
        _tell(task, run_task(task, folder), say)
    return _records(tasks, folder)


def run_on_slurm(tasks: Sequence[Task], folder: Path, options: Options, say: Say) -> list[Record]:
    """The same, each as a job of its own, all at once. Ctrl-C cancels them; killed, this may be started again.

    options: sbatch's. Raises ConfigError where there is no Slurm.
    """
    missing = [name for name in ("sbatch", "squeue", "scancel", "srun") if shutil.which(name) is None]
    if missing:
        fix = "load Slurm's module, or use --cluster local"
        raise ConfigError(f"not found: {', '.join(missing)}", where=socket.gethostname(), fix=fix)
    folder.mkdir(parents=True, exist_ok=True)
    to_do = _to_do(tasks, folder, say)
    jobs: dict[str, tuple[Task, Job[Record]]] = {}
    try:
        for task in to_do:
            _start(task, folder, options, jobs, say)
        _wait(jobs, folder, say)
    except KeyboardInterrupt:
        for _, job in jobs.values():
            job.cancel(check=False)
        say(f"{len(jobs)} jobs cancelled; the same command goes on from here")
        raise
    return _records(tasks, folder)


def _to_do(tasks: Sequence[Task], folder: Path, say: Say) -> list[Task]:
    done = [task for task in tasks if (task.record(folder) or {}).get("outcome") == OK]
    if done:
        older = sum((task.record(folder) or {}).get("git_commit") != git_commit() for task in done)
        code = f", {older} of them by other code" if older else ""
        say(f"{len(done)} of {len(tasks)} are there already{code}: {folder}")
    return [task for task in tasks if task not in done]


def _records(tasks: Sequence[Task], folder: Path) -> list[Record]:
    records = [task.record(folder) for task in tasks]
    return [record for record in records if record is not None]


def _tell(task: Task, record: Record, say: Say) -> None:
    say(f"{task.name}: {record['outcome']}" + (f": {record['reason']}" if record["reason"] else ""))


def _start(task: Task, folder: Path, options: Options, jobs: dict[str, tuple[Task, "Job[Record]"]], say: Say) -> None:
    """Submit a task, or go on waiting for its job if a killed submitter has left one in the queue."""
    from submitit import SlurmJob
    from submitit.core.utils import FailedSubmissionError, UncompletedJobError

    mark = folder / f"{task.name}.job"
    queued = _queued()
    if mark.exists() and queued is not None and mark.read_text() in queued:
        job: Job[Record] = SlurmJob(folder / "slurm", mark.read_text())
        say(f"{task.name}: job {job.job_id} is in the queue already")
    else:
        (folder / f"{task.name}.json").unlink(missing_ok=True)  # a failure of before: the wait is for a new record
        try:
            job = _executor(task, folder, options).submit(run_task, task, folder)
        except (FailedSubmissionError, UncompletedJobError) as error:
            record = record_of(task, FAILED, f"not submitted: {str(error).strip().splitlines()[-1]}", None, None)
            write_json(folder / f"{task.name}.json", record)
            _tell(task, record, say)
            return
        mark.write_text(job.job_id)
        say(f"{task.name}: submitted as job {job.job_id}")
    jobs[task.name] = (task, job)


def _executor(task: Task, folder: Path, options: Options) -> "SlurmExecutor":
    """submitit's. Its job runs this interpreter and this checkout's code, wherever a node's shell would find others."""
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder / "slurm")
    root = str(Path(levo.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    executor.update_parameters(
        job_name=f"levo-{task.name}",
        time=ceil(task.minutes) + SPARE_MINUTES,
        nodes=1,
        wckey=None,  # submitit's default is refused where wckeys are enforced
        stderr_to_stdout=True,
        setup=[f"export PYTHONPATH={shlex.quote(path)}"],
        use_srun=False,  # srun would give its step one core, since it takes no --cpus-per-task from sbatch
        additional_parameters=options,
    )
    return executor


def _wait(jobs: dict[str, tuple[Task, "Job[Record]"]], folder: Path, say: Say) -> None:
    """Until each job has a record, its own or one that says how it was lost."""
    gone_since: dict[str, float] = {}
    is_silent = False
    while jobs:
        time.sleep(POLL_S)
        queued = _queued()
        if is_silent != (queued is None):
            is_silent = queued is None
            say("squeue does not answer: waiting" if is_silent else "squeue answers again")
        os.listdir(folder)  # has an NFS client look again
        for name, (task, job) in list(jobs.items()):
            record = task.record(folder)
            if record is None and queued is not None and job.job_id not in queued:
                if time.monotonic() - gone_since.setdefault(name, time.monotonic()) >= GRACE_S:
                    record = _lost(task, job)
                    write_json(folder / f"{name}.json", record)
            if record is not None:
                _tell(task, record, say)
                (folder / f"{name}.job").unlink(missing_ok=True)
                del jobs[name]


def _queued() -> set[str] | None:
    """This user's jobs in the queue, waiting or running; None if Slurm does not answer now."""
    try:
        shown = slurm.ask("squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}", timeout_s=60)
    except slurm.NoAnswer:
        return None
    return set(shown.split())


def _lost(task: Task, job: "Job[Record]") -> Record:
    """A job that left the queue without a record: cancelled, out of time, its node lost, preempted."""
    state = job.get_info().get("State") or "unknown to sacct"
    log = job.paths.stdout
    said = lines_of(log)[-1:] if log.exists() else []
    outcome = OUT_OF_MEMORY if state == "OUT_OF_MEMORY" else OUT_OF_TIME if state == "TIMEOUT" else FAILED
    words = f"job {job.job_id} ended as {state}" + "".join(f"; its log ends: {line[:200]}" for line in said)
    return record_of(task, outcome, words, None, None) | {"host": None, "slurm_job_id": job.job_id}
