"""Slurm's commands as scripts on PATH, and what scontrol of Slurm 22.05 prints of a running job."""

import os
from pathlib import Path

JOB = """\
JobId={job_id} JobName=9702b6b9-8aa2-46e0-8a4a-58fd0478a630
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901748 Nice=0 Account=lab QOS=normal
   JobState={state} Reason=None Dependency=(null)
   Requeue=1 Restarts={restarts} BatchFlag=1 Reboot=0 ExitCode=0:0
   DerivedExitCode=0:0
   RunTime={run_time} TimeLimit={limit} TimeMin=N/A
   SubmitTime=2026-11-29T19:46:48 EligibleTime=2026-11-29T19:46:48
   StartTime=2026-11-29T19:46:51 EndTime=2026-11-29T20:46:51 Deadline=N/A
   NumNodes=1 NumCPUs=288 NumTasks=1 CPUs/Task=288 ReqB:S:C:T=0:0:*:*
   TRES=cpu=288,mem=800000M,node=1,billing=288,gres/gpu=4
   JOB_GRES=gpu:gh200:4
     Nodes=nid001 CPU_IDs=0-287 Mem=800000 GRES={gres}
   Features=(null) DelayBoot=00:00:00
   Comment=rule_generate_wildcards_00000
   TresPerNode=gres:gpu:4
"""


def job_text(  # noqa: PLR0913
    job_id: str = "77",
    state: str = "RUNNING",
    restarts: int = 0,
    run_time: str = "00:00:10",
    limit: str = "1-00:00:00",
    gres: str = "gpu:gh200:4(IDX:0-3)",
) -> str:
    """`scontrol --details show job`."""
    fields = locals()
    return JOB.format(**fields)


def commands(folder: Path, **scripts: str) -> str:
    """Put these shell scripts into a folder; returns a PATH on which they come first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def printing(text: str) -> str:
    """A script that prints it on one line, as --oneliner does."""
    return f"cat <<'END'\n{' '.join(line.strip() for line in text.splitlines())}\nEND"
