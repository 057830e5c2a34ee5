"""Doctor: Slurm's commands, Snakemake and its Slurm plugin, and what this cluster does to jobs."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from levo.errors import ConfigError
from levo.node import slurm
from levo.node.doctor.finding import NOTE, PROBLEM, WARNING, Finding, good
from levo.node.doctor.job import check_job
from levo.node.profile import Profile, read_profile
from levo.node.site import Order, check_site

COMMANDS = ("sbatch", "srun", "squeue", "scancel", "sacct", "scontrol", "sinfo")
NEEDED = ("sbatch", "squeue", "scancel")
PLUGIN = "snakemake-executor-plugin-slurm"


def check_slurm(profile: str | None = None) -> Iterator[Finding]:
    """What is there to start node jobs with. profile: the one that will be used."""
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
    if found["scontrol"]:
        yield from check_policy(profile)
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        fix = "run `srun --gpus-per-node=4 python -m levo doctor` to look at a GPU node"
        yield Finding(NOTE, "Slurm job", "this is not inside a job", fix)
    else:
        yield from check_job(job)


def judge_commands(missing: list[str], release: str) -> Finding:
    """Which commands are needed, and what is lost without the others."""
    lost = ", ".join(missing)
    if any(name in missing for name in NEEDED):
        return Finding(PROBLEM, "Slurm", f"{release}; not found: {lost}", "load Slurm's module, or mend PATH")
    if missing:
        return Finding(
            WARNING, "Slurm", f"{release}; not found: {lost}", "without sacct the bill has no second opinion"
        )
    return good("Slurm", f"{release}: {', '.join(COMMANDS)}")


def check_policy(name: str | None) -> Iterator[Finding]:
    """What this cluster does to jobs: preemption, requeue, accounting; and whether it has what the profile asks for."""
    profile = None
    if name is not None:
        try:
            profile = read_profile(name)
        except ConfigError as error:
            yield Finding(PROBLEM, "profile", f"{error.what} ({error.where})", error.fix)
    try:
        config, partitions = slurm.config(), slurm.partitions()
    except slurm.NoAnswer as error:
        yield Finding(WARNING, "controller", f"no answer: {error}", "look again later, or ask the admins")
        return
    if profile is not None and "SLURM_JOB_ID" not in os.environ:  # in a job Slurm has taken what the profile asks for
        yield judge_site(profile)
    used = str(profile.options.get("partition", "")).split(",") if profile else []
    chosen = [shown for shown in partitions if shown.get("PartitionName") in used]
    yield judge_preemption(config, chosen or partitions)
    yield judge_requeue(config, profile)
    yield judge_accounting(config)


def judge_site(profile: Profile) -> Finding:
    """Account, QOS, partition, features, GPUs, cores, memory and time of the profile against this cluster's."""
    orders = [Order(rule, asked) for rule, asked in profile.rules.items()]
    try:
        warnings = check_site(orders, [profile.path], None)
    except ConfigError as error:
        return Finding(PROBLEM, "profile", f"{error.what} ({error.where})", error.fix)
    if warnings:
        return Finding(WARNING, "profile", "; ".join(warnings), f"mend {profile.path}, or go on knowing it")
    return good("profile", f"{profile.path}: this cluster has what it asks for")


def judge_preemption(config: Mapping[str, str], partitions: Sequence[Mapping[str, str]]) -> Finding:
    """Whether a preempted job comes back."""
    kind = config.get("PreemptType", "preempt/none")
    if kind == "preempt/none":
        return good("preemption", "none on this cluster")
    modes = {shown["PartitionName"]: _preempt_mode(config, shown) for shown in partitions}
    found = f"{kind}: " + ", ".join(f"{name} {mode}" for name, mode in modes.items())
    if any("CANCEL" in mode for mode in modes.values()):
        fix = (
            "a preempted job is cancelled, not requeued: a lost try of `retries` (Snakemake's Slurm plugin alone waits "
            "for it for ever); use a partition or QOS with PreemptMode=REQUEUE or OFF"
        )
        return Finding(WARNING, "preemption", found, fix)
    return good("preemption", found)


def _preempt_mode(config: Mapping[str, str], partition: Mapping[str, str]) -> str:
    """A partition's own mode counts where partitions preempt each other; else the cluster's."""
    by_partition = config.get("PreemptType") == "preempt/partition_prio"
    own = partition.get("PreemptMode") if by_partition else None
    return own or config.get("PreemptMode", "unknown")


def judge_requeue(config: Mapping[str, str], profile: Profile | None) -> Finding:
    """Whether Slurm starts a job again whose node was lost."""
    found = f"JobRequeue={config.get('JobRequeue', 'unknown')}"
    if config.get("JobRequeue") != "0":
        return good("requeue", found)
    if profile is not None and profile.is_requeued:
        return good("requeue", f"{found}, but the profile asks for it job by job")
    fix = "`slurm-requeue: true` in the profile, or a job whose node is lost counts as failed and costs a retry"
    return Finding(WARNING, "requeue", found, fix)


def judge_accounting(config: Mapping[str, str]) -> Finding:
    """Whether sacct has answers: Snakemake and submitit learn from it what became of a job."""
    kind = config.get("AccountingStorageType", "")
    if kind.endswith("/slurmdbd"):
        return good("accounting", kind)
    found = f"sacct has nothing to read (AccountingStorageType={kind or 'unset'})"
    fix = "`slurm-status-command: squeue` in the profile; the bill then has no second opinion"
    return Finding(WARNING, "accounting", found, fix)


def _slurm_version() -> str:
    try:
        return slurm.ask("sbatch", "--version").strip() or "version unknown"
    except slurm.NoAnswer:
        return "version unknown"


def _package(what: str, package: str) -> Finding:
    try:
        return good(what, f"{package} {version(package)}")
    except PackageNotFoundError:
        return Finding(PROBLEM, what, f"{package} is not installed", "make setup")
