"""What a shard learns of its Slurm job, from what scontrol really prints, and when it prints something else."""

import time
from pathlib import Path

import pytest
from fakes import scontrol as fake
from fakes.commands import put_commands

from levo.node import slurm
from levo.node.slurm_job import SlurmJob, given_gpus, parse_job, this_job


def parsed(**fields: str | int) -> SlurmJob:
    return parse_job("77", *slurm.entries(fake.one_line(fake.job_text(**fields))))


def test_a_running_job_is_read() -> None:
    job = parsed(restarts=2)
    assert (job.job_id, job.restarts, job.tasks, job.cores, job.gpus) == ("77", 2, 1, 288, (0, 1, 2, 3))
    assert job.limit_s == 86400
    assert job.end_s is not None and 86389 < job.end_s - time.monotonic() <= 86390


@pytest.mark.parametrize(
    ("limit", "run_time", "seconds", "left_s"),
    [
        ("00:10:00", "00:00:30", 600, 570),
        ("2-03:04:05", "1-00:00:00", 183845, 97445),
        ("30:00", "00:31:00", 1800, -60),
        ("UNLIMITED", "00:00:30", None, None),
        ("Partition_Limit", "INVALID", None, None),
    ],
)
def test_durations_are_read_as_slurm_writes_them(
    limit: str, run_time: str, seconds: float | None, left_s: float | None
) -> None:
    job = parsed(limit=limit, run_time=run_time)
    assert job.limit_s == seconds
    assert (job.end_s is None) == (left_s is None)
    assert job.end_s is None or left_s is None or job.end_s - time.monotonic() == pytest.approx(left_s, abs=1)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("gpu:gh200:4(IDX:0-3)", (0, 1, 2, 3)),
        ("gpu:2(IDX:1,3)", (1, 3)),
        ("nvme:1(IDX:5),gpu:a:1(IDX:0),gpu:b:2(IDX:2-3)", (0, 2, 3)),
        ("", ()),
        ("(null)", ()),
    ],
)
def test_numbers_of_gpus_are_read_and_no_other_resource(gres: str, gpus: tuple[int, ...]) -> None:
    assert parsed(gres=gres).gpus == gpus


def test_outside_slurm_nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    said: list[str] = []
    assert this_job(said.append) is None and not said


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("exit 3", "ended with 3"),
        ("exec sleep 5", "did not answer within 0.3 s"),
        ("echo no job here", "does not know job 77"),
        (fake.printing(fake.job_text(state="COMPLETED")), "calls the job COMPLETED"),
        (fake.printing(fake.job_text(limit="UNLIMITED")), "Slurm names none"),
        (None, "scontrol is not on PATH"),
    ],
)
def test_without_an_answer_the_job_has_no_limit_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.3)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("PATH", "" if script is None else put_commands(tmp_path, scontrol=script))
    said: list[str] = []
    job = this_job(said.append)
    assert job is not None and job.job_id == "77" and job.end_s is None
    assert len(said) == 1 and "no time limit is known" in said[0] and why in said[0]


def test_a_job_that_slurm_knows_needs_no_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    script = f'[ "$*" = "--details --oneliner show job 77" ] || exit 9\n{fake.printing(fake.job_text(restarts=1))}'
    monkeypatch.setenv("PATH", put_commands(tmp_path, scontrol=script))
    said: list[str] = []
    job = this_job(said.append)
    assert not said
    assert job is not None and job.restarts == 1 and job.limit_s == 86400


@pytest.mark.parametrize(
    ("environment", "given"),
    [
        ({}, ["4", "5"]),
        ({"CUDA_VISIBLE_DEVICES": "0, 1,2"}, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-ab,MIG-cd"}, ["GPU-ab", "MIG-cd"]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, ["0"]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, []),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "0-3"}, ["1"]),
        ({"SLURM_JOB_GPUS": "0-1,3"}, ["0", "1", "3"]),
        ({"SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "2"}, ["2"]),
    ],
)
def test_the_narrowest_word_on_gpus_counts(environment: dict[str, str], given: list[str]) -> None:
    assert given_gpus(environment, parsed(gres="gpu:2(IDX:4-5)")) == given


def test_without_numbers_a_count_will_do() -> None:
    assert given_gpus({"SLURM_GPUS_ON_NODE": "3"}, None) == ["0", "1", "2"]
    assert given_gpus({}, None) == []
