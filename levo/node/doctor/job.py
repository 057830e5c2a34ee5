"""Doctor inside a Slurm job: what the job was given, against what this process may use of it."""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from levo.node import slurm
from levo.node.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding, good
from levo.node.slurm_job import parse_job, slurms_gpus

WHAT = "Slurm job"


def check_job(job: str) -> Iterator[Finding]:
    """GPUs, cores, node, end. job: its number."""
    try:
        shown = slurm.job(job)
    except slurm.NoAnswer as error:
        yield Finding(WARNING, WHAT, f"job {job}: {error}", "ask the admins why")
        shown = {}
    yield judge_job_gpus(os.environ, _visible_gpus(), shown)
    if shown:
        yield judge_place(shown, len(os.sched_getaffinity(0)), os.cpu_count() or 1)
        yield judge_end(shown, datetime.now())


def judge_job_gpus(environment: Mapping[str, str], visible: int, shown: Mapping[str, str]) -> Finding:
    """The GPUs that Slurm gave against those that torch sees. shown: what scontrol says of the job."""
    job, given = environment["SLURM_JOB_ID"], _given_gpus(environment, shown)
    found = f"job {job}: {visible} GPUs visible, {'unknown' if given is None else given} given by Slurm"
    if given is None and not visible:
        return Finding(WARNING, WHAT, found, "ask for GPUs, e.g. --gpus-per-node=4 (profiles/README.md)")
    if given is not None and given != visible:
        fix = "do not set CUDA_VISIBLE_DEVICES by hand; ask the admins about gres and ConstrainDevices"
        return Finding(PROBLEM, WHAT, found, fix)
    return good(WHAT, found)


def _given_gpus(environment: Mapping[str, str], shown: Mapping[str, str]) -> int | None:
    found = slurms_gpus(environment, parse_job(environment["SLURM_JOB_ID"], shown))
    if found:
        return len(found)
    # Where gres is a mere count, GPUs have no numbers.
    match = re.search(r"gres/gpu=(\d+)", shown.get("AllocTRES") or shown.get("TRES", ""))
    return int(match[1]) // _n_nodes(shown) if match else None


def _n_nodes(shown: Mapping[str, str]) -> int:
    return int(shown.get("NumNodes", "1").partition("-")[0])


def judge_place(shown: Mapping[str, str], usable: int, machine: int) -> Finding:
    """The job's node and cores. usable: cores that this process may use; machine: cores of the node."""
    n_nodes = _n_nodes(shown)
    given = min(int(shown.get("NumCPUs", "0")) // n_nodes, machine)
    is_shared = shown.get("OverSubscribe") != "NO"
    alone = "shared with other jobs" if is_shared else "exclusive"
    found = f"{shown.get('NodeList', 'node unknown')}, {alone}, partition {shown.get('Partition', 'unknown')}: "
    found += f"{usable} of {machine} cores usable, {given} given"
    if n_nodes > 1:
        return Finding(WARNING, WHAT, f"{n_nodes} nodes, {found}", "a shard runs on one node: --nodes=1")
    if usable < given:
        fix = "give srun --cpus-per-task too: since Slurm 22.05 it does not take it from sbatch"
        return Finding(WARNING, WHAT, found, fix)
    if is_shared:
        return Finding(NOTE, WHAT, found, "for whole nodes: --exclusive (slurm_extra of the profile)")
    return good(WHAT, found)


def judge_end(shown: Mapping[str, str], now: datetime) -> Finding:
    """When the job ends, and whether Slurm would start it again after the loss of its node."""
    end, limit = shown.get("EndTime", "unknown"), shown.get("TimeLimit", "unknown")
    try:
        left = f", in {(datetime.fromisoformat(end) - now).total_seconds() / 60:.0f} minutes"
    except ValueError:
        left = ""
    found = f"limit {limit}, ends {end}{left}; {shown.get('Restarts', '0')} restarts"
    if shown.get("Requeue") == "0":
        fix = "`slurm-requeue: true` in the profile (sbatch --requeue)"
        return Finding(WARNING, WHAT, f"{found}; not requeued after the loss of its node", fix)
    return Finding(OK, WHAT, found)


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()
