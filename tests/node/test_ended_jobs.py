"""States that sacct names, as Snakemake's Slurm plugin gets to see them."""

import asyncio
from typing import Any

import pytest
import snakemake_executor_plugin_slurm as plugin

from levo.node import slurm
from levo.node.ended_jobs import mend_status_answers

INVALID = "squeue ended with 1: slurm_load_jobs error: Invalid job id specified"


@pytest.fixture(autouse=True)
def sacct(monkeypatch: pytest.MonkeyPatch) -> None:
    async def says(command: str, logger: Any) -> tuple[dict[str, str] | None, float | None]:
        said = {"1": "CANCELLED by 1000", "2": "PREEMPTED", "3": "RUNNING", "4": "COMPLETED"}
        return (said, 0.1) if command == "sacct" else (None, None)

    monkeypatch.setattr(plugin, "query_job_status", says)
    mend_status_answers()


def squeue_says(monkeypatch: pytest.MonkeyPatch, answer: str | slurm.NoAnswer) -> None:
    def ask(*command: str) -> str:
        if isinstance(answer, slurm.NoAnswer):
            raise answer
        return answer

    monkeypatch.setattr(slurm, "ask", ask)


@pytest.mark.parametrize("answer", ["", slurm.NoAnswer(INVALID)], ids=["empty", "invalid"])
def test_jobs_that_will_not_come_back_count_as_cancelled(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """The plugin alone would wait for ever for jobs 1 and 2."""
    squeue_says(monkeypatch, answer)
    states, seconds = asyncio.run(plugin.query_job_status("sacct", None))
    assert states == {"1": "CANCELLED", "2": "CANCELLED", "3": "RUNNING", "4": "COMPLETED"} and seconds == 0.1


@pytest.mark.parametrize("answer", ["PENDING\n", slurm.NoAnswer("squeue did not answer within 20 s")], ids=str)
def test_a_preempted_job_that_may_come_back_is_left_to_slurm(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    squeue_says(monkeypatch, answer)
    states, _ = asyncio.run(plugin.query_job_status("sacct", None))
    assert states["2"] == "PREEMPTED"


def test_no_answer_stays_no_answer() -> None:
    assert asyncio.run(plugin.query_job_status("hangs", None)) == (None, None)
