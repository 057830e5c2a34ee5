"""Jobs that Slurm has ended for good, where Snakemake's plugin does not see it. Knows that plugin, and no shard."""

from typing import Any

from levo.node import slurm


def mend_status_answers() -> None:
    """Two answers of sacct, on which Snakemake's Slurm plugin (2.8.0) would wait for a job for ever, become CANCELLED.

    "CANCELLED by UID", which it does not know, and PREEMPTED of a job that Slurm does not requeue (PreemptMode=CANCEL):
    it leaves all preempted jobs to Slurm. One that is requeued stands in squeue; the other does not.
    """
    import snakemake_executor_plugin_slurm as plugin

    ask_plugin = plugin.query_job_status

    async def query(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        states, seconds = await ask_plugin(command, logger)
        if states is None:
            return None, seconds
        return {job: _plain(job, state) for job, state in states.items()}, seconds

    plugin.query_job_status = query


def _plain(job: str, state: str) -> str:
    state = state.partition(" ")[0]
    return "CANCELLED" if state == "PREEMPTED" and not _is_queued(job) else state


def _is_queued(job: str) -> bool:
    """squeue knows it as waiting or running; also said when squeue gives no answer."""
    try:
        return bool(slurm.ask("squeue", "--noheader", "--format=%T", f"--jobs={job}").strip())
    except slurm.NoAnswer as error:
        return "invalid job id" not in str(error).lower()
