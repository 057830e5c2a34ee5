"""What scontrol of Slurm 22.05 prints of a running job."""

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
   Partition=normal AllocNode:Sid=login1:4711
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=nid001
   BatchHost=nid001
   NumNodes=1 NumCPUs=288 NumTasks=1 CPUs/Task=288 ReqB:S:C:T=0:0:*:*
   TRES=cpu=288,mem=800000M,node=1,billing=288,gres/gpu=4
   JOB_GRES=gpu:gh200:4
     Nodes=nid001 CPU_IDs=0-287 Mem=800000 GRES={gres}
   MinCPUsNode=288 MinMemoryNode=800000M MinTmpDiskNode=0
   Features=(null) DelayBoot=00:00:00
   OverSubscribe={shared} Contiguous=0 Licenses=(null) Network=(null)
   Command=(null)
   WorkDir=/home/lab
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
    shared: str = "NO",
) -> str:
    """`scontrol --details show job`."""
    fields = locals()
    return JOB.format(**fields)


def printing(text: str) -> str:
    """A script that prints it on one line."""
    return f"cat <<'END'\n{one_line(text)}\nEND"


def one_line(text: str) -> str:
    """As --oneliner makes it."""
    return " ".join(line.strip() for line in text.splitlines())
