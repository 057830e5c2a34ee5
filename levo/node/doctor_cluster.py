"""Doctor: Slurm's commands, Snakemake and its Slurm plugin, and whether a job's GPUs are those that it asked for."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from levo.node.finding import NOTE, PROBLEM, WARNING, Finding, good

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sacct", "scontrol", "sinfo")
NEEDED = ("sbatch", "squeue", "scancel")
PLUGIN = "snakemake-executor-plugin-slurm"
TIMEOUT_S = 20.0


def check_slurm() -> Iterator[Finding]:
    """What is there to start node jobs with."""
    yield _package("Snakemake", "snakemake")
    found = {name: shutil.which(name) for name in COMMANDS}
    missing = [name for name, path in found.items() if path is None]
    if len(missing) == len(COMMANDS):
        yield Finding(
            NOTE, "Slurm", "not here", "here use `--profile profiles/local`; on a cluster load Slurm's module"
        )
        return
    yield _package("plugin", PLUGIN)
    yield judge_commands(missing, _slurm_version())
    in_job = os.environ.get("SLURM_JOB_ID")
    if in_job is None:
        fix = "run `srun --gpus-per-node=4 python -m levo doctor` to look at a GPU node"
        yield Finding(NOTE, "Slurm job", "this is not inside a job", fix)
    else:
        yield judge_job_gpus(os.environ, _visible_gpus())


def judge_commands(missing: list[str], slurm: str) -> Finding:
    """Which commands are needed, and what is lost without the others."""
    lost = ", ".join(missing)
    if any(name in missing for name in NEEDED):
        return Finding(PROBLEM, "Slurm", f"{slurm}; not found: {lost}", "load Slurm's module, or mend PATH")
    if missing:
        return Finding(WARNING, "Slurm", f"{slurm}; not found: {lost}", "without sacct the bill has no second opinion")
    return good("Slurm", f"{slurm}: {', '.join(COMMANDS)}")


def judge_job_gpus(environment: Mapping[str, str], visible: int) -> Finding:
    """Inside a job: the GPUs that Slurm gave against those that torch sees."""
    job, given = environment["SLURM_JOB_ID"], _given_gpus(environment)
    found = f"job {job}: {visible} GPUs visible, {'unknown' if given is None else given} given by Slurm"
    if given is None and not visible:
        return Finding(WARNING, "Slurm job", found, "ask for GPUs, e.g. --gpus-per-node=4 (profiles/README.md)")
    if given is not None and given != visible:
        fix = "do not set CUDA_VISIBLE_DEVICES by hand; ask the admins about gres and ConstrainDevices"
        return Finding(PROBLEM, "Slurm job", found, fix)
    return good("Slurm job", found)


def _given_gpus(environment: Mapping[str, str]) -> int | None:
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit():
        return int(count)
    listed = environment.get("SLURM_JOB_GPUS") or environment.get("SLURM_STEP_GPUS")
    return len(listed.split(",")) if listed else None


def _visible_gpus() -> int:
    import torch

    return torch.cuda.device_count()


def _slurm_version() -> str:
    try:
        done = subprocess.run(["sbatch", "--version"], capture_output=True, text=True, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return "version unknown"
    return done.stdout.strip() or "version unknown"


def _package(what: str, package: str) -> Finding:
    try:
        return good(what, f"{package} {version(package)}")
    except PackageNotFoundError:
        return Finding(PROBLEM, what, f"{package} is not installed", "make setup")
