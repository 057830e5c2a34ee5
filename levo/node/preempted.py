"""Jobs that Slurm has preempted for good, which Snakemake's plugin does not see. Knows that plugin, and no shard."""

from typing import Any

from levo.node import slurm


def retry_preempted_jobs() -> None:
    """A job that Slurm has preempted for good (PreemptMode=CANCEL) counts as failed, so that it is tried again.

    Snakemake's Slurm plugin (2.8.0) leaves every job in state PREEMPTED to Slurm, and would wait for this one for
    ever. One that Slurm requeues stands in squeue; the other does not.
    """
    import snakemake_executor_plugin_slurm as plugin

    ask_plugin = plugin.query_job_status

    async def query(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await ask_plugin(command, logger)
        for job in [job for job, state in (states or {}).items() if state == "PREEMPTED"]:
            if not _is_queued(job):
                states[job] = "CANCELLED"
        return states, seconds

    plugin.query_job_status = query


def _is_queued(job: str) -> bool:
    """squeue knows it as waiting or running; also said when squeue gives no answer."""
    try:
        return bool(slurm.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}").strip())
    except slurm.NoAnswer as error:
        return "invalid job id" not in str(error).lower()
