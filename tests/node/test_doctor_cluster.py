"""`levo doctor` on a cluster and in a job: what Slurm would do to a campaign is said before it."""

import json
from datetime import datetime
from pathlib import Path

import pytest
from fakes.sbatch import FakeSlurm
from fakes.scontrol import job_text, one_line

from levo.node import site
from levo.node import slurm as commands
from levo.node.doctor.cluster import (
    check_policy,
    check_slurm,
    judge_accounting,
    judge_preemption,
    judge_requeue,
)
from levo.node.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding
from levo.node.doctor.job import judge_end, judge_job_gpus, judge_place
from levo.node.profile import Profile

CONFIG = """Configuration data as of 2026-11-29T19:00:00
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStorageUser   = (null)
JobRequeue              = 1
PreemptMode             = REQUEUE
PreemptType             = preempt/partition_prio
"""
NORMAL = "PartitionName=normal AllowGroups=ALL Default=YES GraceTime=20 MaxTime=1-00:00:00 PreemptMode=REQUEUE State=UP"
URGENT = "PartitionName=urgent AllowGroups=ALL Default=NO GraceTime=0 MaxTime=UNLIMITED PreemptMode=OFF State=UP"
JOB = one_line(job_text("7", restarts=2, run_time="00:10:00", limit="00:30:00"))
STRIPPED = {"SLURM_JOB_ID": "7"}


def pairs(line: str) -> dict[str, str]:
    return commands.entries(line)[0]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster to ask; returns the file of what it says."""
    FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    profile = tmp_path / "profiles/site/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text("set-resources: {generate: {slurm_partition: normal, runtime: 720}}\n")
    nodes = "normal|288|800000|gpu:4|gh200|1-00:00:00|REQUEUE\nurgent|288|800000|gpu:4|gh200|infinite|OFF\n"
    monkeypatch.setattr(site, "_ask", lambda *command: {"sinfo": nodes, "sacctmgr": "lab|normal\n"}[command[0]])
    said = tmp_path / "slurm/scontrol.json"
    said.write_text(json.dumps({"show config": CONFIG, "show partition": f"{NORMAL}\n{URGENT}\n", "show job": JOB}))
    return said


def change(said: Path, old: str, new: str) -> None:
    text = said.read_text()
    assert old in text
    said.write_text(text.replace(old, new))


def found(profile: str | None = "site") -> dict[str, Finding]:
    return {finding.what: finding for finding in check_policy(profile)}


def test_a_good_cluster_has_nothing_to_mend(slurm: Path) -> None:
    findings = found()
    assert {finding.level for finding in findings.values()} == {OK}
    assert set(findings) == {"profile", "preemption", "requeue", "accounting"}


@pytest.mark.parametrize(
    ("old", "new", "what", "words"),
    [
        (
            "MaxTime=1-00:00:00 PreemptMode=REQUEUE",
            "MaxTime=1-00:00:00 PreemptMode=CANCEL",
            "preemption",
            "not requeued",
        ),
        ("JobRequeue              = 1", "JobRequeue              = 0", "requeue", "slurm-requeue: true"),
        ("accounting_storage/slurmdbd", "accounting_storage/none", "accounting", "slurm-status-command: squeue"),
        ("accounting_storage/slurmdbd", "(null)", "accounting", "second opinion"),
    ],
)
def test_what_would_spoil_a_campaign_is_a_warning_with_its_remedy(
    slurm: Path, old: str, new: str, what: str, words: str
) -> None:
    change(slurm, old, new)
    findings = found()
    assert [finding.what for finding in findings.values() if finding.level == WARNING] == [what]
    assert words in findings[what].fix


def test_only_the_partition_that_is_used_counts(slurm: Path) -> None:
    change(slurm, "UNLIMITED PreemptMode=OFF", "UNLIMITED PreemptMode=CANCEL")
    assert found("site")["preemption"].level == OK
    assert found(None)["preemption"].level == WARNING, "without a profile every partition may be used"


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("slurm_partition: gpus", "no partition 'gpus' on this cluster"),
        ("slurm_account: EDIT", "no account 'EDIT'"),
        ("runtime: 2d\n    slurm_partition: normal", "no node of partition normal has runtime '2d'"),
        ("gres: 'gpu:8'", "has gres 'gpu:8'"),
    ],
)
def test_a_profile_that_does_not_fit_the_cluster_is_a_problem_with_its_line(
    slurm: Path, tmp_path: Path, asked: str, words: str
) -> None:
    (tmp_path / "profiles/site/config.yaml").write_text(f"set-resources:\n  generate:\n    {asked}\n")
    finding = found()["profile"]
    assert finding.level == PROBLEM and words in finding.found and "config.yaml, line 3: " in finding.found


def test_an_account_that_could_not_be_checked_is_not_called_good(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = site._ask
    monkeypatch.setattr(site, "_ask", lambda *command: "" if command[0] == "sacctmgr" else asked(*command))
    finding = found()["profile"]
    assert finding.level == WARNING and "account and QOS are not checked" in finding.found


def test_an_expression_in_a_profile_is_left_to_snakemake(slurm: Path, tmp_path: Path) -> None:
    (tmp_path / "profiles/site/config.yaml").write_text("default-resources: [mem_mb=1000 * attempt]\n")
    assert found()["profile"].level == OK


def test_a_profile_that_is_not_there_is_a_problem(slurm: Path) -> None:
    assert found("nowhere")["profile"].level == PROBLEM


def test_a_controller_that_is_silent_hides_no_other_finding(slurm: Path) -> None:
    slurm.write_text("{}")
    (finding,) = check_policy(None)
    assert finding.level == WARNING and "no such thing" in finding.found
    assert "Slurm job" in {finding.what for finding in check_slurm()}


def test_preemption_is_judged_by_who_preempts_whom() -> None:
    cancel = {"PartitionName": "p", "PreemptMode": "CANCEL"}
    assert judge_preemption({"PreemptType": "preempt/none", "PreemptMode": "CANCEL"}, [cancel]).level == OK
    assert judge_preemption({"PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}, [cancel]).level == OK
    assert judge_preemption({"PreemptType": "preempt/qos", "PreemptMode": "GANG,CANCEL"}, [cancel]).level == WARNING
    assert judge_preemption({"PreemptType": "preempt/partition_prio"}, [cancel]).level == WARNING


def test_a_profile_that_asks_for_requeue_needs_no_default() -> None:
    assert judge_requeue({"JobRequeue": "0"}, Profile(Path(), {}, {}, is_requeued=True)).level == OK
    assert judge_requeue({"JobRequeue": "0"}, Profile(Path(), {}, {})).level == WARNING
    assert judge_accounting({}).level == WARNING


def test_a_job_is_described_by_node_cores_and_end() -> None:
    job = pairs(JOB)
    place = judge_place(job, 288, 288)
    assert place.level == OK and "nid001, exclusive, partition normal: 288 of 288 cores usable" in place.found
    end = judge_end(job, datetime(2026, 11, 29, 20, 26, 46))
    assert end.level == OK and end.found == "limit 00:30:00, ends 2026-11-29T20:46:51, in 20 minutes; 2 restarts"


def test_a_job_with_less_than_it_was_given_is_a_warning() -> None:
    job = pairs(JOB)
    assert judge_place(job, 1, 288).level == WARNING, "a step of srun without --cpus-per-task"
    assert judge_place(pairs(JOB.replace("OverSubscribe=NO", "OverSubscribe=OK")), 288, 288).level == NOTE
    assert judge_place({**job, "NumNodes": "2", "NumCPUs": "576"}, 288, 288).level == WARNING
    assert judge_end({**job, "Requeue": "0"}, datetime.now()).level == WARNING
    assert judge_end({**job, "EndTime": "Unknown"}, datetime.now()).level == OK


def test_inside_a_snakemake_job_the_gpus_are_those_that_scontrol_names() -> None:
    assert judge_job_gpus(STRIPPED, 4, pairs(JOB)).level == OK
    assert judge_job_gpus(STRIPPED, 1, pairs(JOB)).level == PROBLEM
    assert judge_job_gpus(STRIPPED, 0, {}).level == WARNING


def test_gpus_without_numbers_are_counted() -> None:
    job = pairs(JOB.replace("(IDX:0-3)", ""))
    assert judge_job_gpus(STRIPPED, 4, job).level == OK and judge_job_gpus(STRIPPED, 2, job).level == PROBLEM


def test_a_range_of_gpus_is_as_many_as_it_names() -> None:
    assert judge_job_gpus({**STRIPPED, "SLURM_JOB_GPUS": "0-3"}, 4, {}).level == OK
    assert judge_job_gpus({**STRIPPED, "SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "2"}, 1, {}).level == OK


def test_a_job_is_found_from_inside(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    findings = list(check_slurm("site"))
    assert "profile" not in {finding.what for finding in findings}, "Slurm has taken it"
    said = [finding.found for finding in findings if finding.what == "Slurm job"]
    assert len(said) == 3 and "4 given by Slurm" in said[0] and "nid001" in said[1] and "2 restarts" in said[2]
