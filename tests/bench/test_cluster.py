"""Commands run here and as Slurm jobs: every one ends as a record, and none that succeeded is run again."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.sbatch import FakeSlurm

from levo.bench import cluster
from levo.bench.cluster import run_here, run_on_slurm, runner
from levo.bench.cluster_task import FAILED, OK, OUT_OF_MEMORY, OUT_OF_TIME, Task
from levo.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
COUNTS = "open('ran.txt', 'a').write('x'); "
GOOD = "print('a table'); print('{\"x_realtime\": 2.5}')"
KINDS = {
    "good": (GOOD, OK, ""),
    "error": (
        "import sys; print('no such model\\n  where: m\\n  fix: f', file=sys.stderr); sys.exit(3)",
        FAILED,
        "3: no",
    ),
    "traceback": ("raise ValueError('broken')", FAILED, "exit code 1: ValueError: broken"),
    "gpu memory": ("raise RuntimeError('CUDA out of memory. Tried')", OUT_OF_MEMORY, "CUDA out of memory"),
    "killed": ("import os; os.kill(os.getpid(), 9)", FAILED, "killed by SIGKILL: it said nothing"),
    "no json": ("print('done')", FAILED, "its last line is no JSON"),
    "report": ("print('verdict: NOT ready'); print('{}'); raise SystemExit(4)", FAILED, "exit code 4: verdict: NOT"),
    "nothing": ("pass", FAILED, "its last line is no JSON"),
    "a list": ("print('[1]')", FAILED, "its last line is no JSON"),
}


def task(code: str, minutes: float = 1, **labels: object) -> Task:
    return Task(labels or {"n": 1}, (sys.executable, "-c", code), minutes)


def say(line: str) -> None:
    print(line)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cluster, "POLL_S", 0.2)
    monkeypatch.setattr(cluster, "GRACE_S", 1.0)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_every_command_ends_as_a_record_with_its_reason(tmp_path: Path) -> None:
    tasks = [task(code, kind=kind) for kind, (code, _, _) in KINDS.items()]
    records = run_here(tasks, tmp_path / "out", say)
    assert [record["labels"]["kind"] for record in records] == list(KINDS)
    for record, (_, outcome, reason) in zip(records, KINDS.values(), strict=True):
        assert record["outcome"] == outcome and reason in record["reason"], record
        assert (record["result"] == {"x_realtime": 2.5}) is (outcome == OK)


def test_what_succeeded_is_not_run_again_and_what_failed_is(tmp_path: Path) -> None:
    good, bad = task(COUNTS + GOOD), task(COUNTS + "raise SystemExit(1)")
    first = run_here([good, bad], tmp_path / "out", say)
    again = run_here([good, bad], tmp_path / "out", say)
    assert Path("ran.txt").read_text() == "xxx"
    assert again[0] == first[0] and again[1]["outcome"] == FAILED


def test_results_of_other_code_are_kept_but_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here([task(GOOD)], tmp_path, say)
    monkeypatch.setattr(cluster, "git_commit", lambda: "another")
    run_here([task(GOOD)], tmp_path, say)
    assert "1 of 1 are there already, 1 of them by other code" in capsys.readouterr().out


def test_another_command_does_not_take_the_result_of_a_former_one(tmp_path: Path) -> None:
    run_here([task(GOOD)], tmp_path, say)
    (record,) = run_here([task(GOOD.replace("2.5", "3.5"))], tmp_path, say)
    assert record["result"] == {"x_realtime": 3.5}


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    child = "import subprocess, time; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); time.sleep(60)"
    (record,) = run_here([task(child, minutes=0.02)], tmp_path, say)
    assert record["outcome"] == OUT_OF_TIME and "ended after 0.02 minutes" in record["reason"]
    assert _has_ended(_number_in(tmp_path)), "a process is left behind"


def test_a_command_ends_with_who_runs_it(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from levo.bench.cluster import run_here; "
        "from levo.bench.cluster_task import Task; "
        "command = (sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'); "
        "run_here([Task({'n': 1}, command, 1)], Path('out'), print)"
    )
    sweep = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    pid = _number_in(tmp_path / "out")
    sweep.kill()
    sweep.wait()
    assert _has_ended(pid), f"process {pid} is left behind"


def _number_in(folder: Path) -> int:
    """What the one command there has printed, as soon as it has."""
    for _ in range(300):
        said = [path.read_text() for path in folder.glob("*.out")]
        if said and said[0].endswith("\n"):
            return int(said[0])
        time.sleep(0.1)
    raise AssertionError("the command says nothing")


def _has_ended(pid: int) -> bool:
    for _ in range(50):
        stat = Path(f"/proc/{pid}/stat")
        if not stat.exists() or " Z " in stat.read_text():
            return True
        time.sleep(0.1)
    return False


def test_a_damaged_record_is_named_and_not_taken_for_a_result(tmp_path: Path) -> None:
    run_here([task(GOOD)], tmp_path, say)
    next(tmp_path.glob("*.json")).write_text("{")
    with pytest.raises(ConfigError, match="damaged record"):
        run_here([task(GOOD)], tmp_path, say)


def test_each_command_is_a_job_of_its_own_that_says_what_it_needs_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)
    profile = tmp_path / "profiles" / "site" / "config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(
        "default-resources: {slurm_account: music, slurm_partition: cpu}\n"
        "set-resources:\n  generate: {slurm_partition: gpu, gres: \"'gpu:4'\", cpus_per_task: 288, mem_mb: 800000,"
        " runtime: 1440, slurm_extra: \"'--exclusive --signal=TERM@300'\"}\n"
    )
    tasks = [task(code, minutes=20, kind=kind) for kind, (code, _, _) in KINDS.items() if kind in ("good", "traceback")]
    records = runner("slurm", "site", [])(tasks, tmp_path / "out", say)
    assert [record["outcome"] for record in records] == [OK, FAILED]
    assert [record["slurm_job_id"] for record in records] == ["1", "2"]
    log = tmp_path / "out/slurm/%j_0_log.out"
    assert slurm.options() == {
        "account": "music", "partition": "gpu", "gres": "gpu:4", "cpus-per-task": "288", "mem": "800000M",
        "exclusive": "", "job-name": f"levo-{tasks[0].name}", "nodes": "1", "time": "25", "open-mode": "append",
        "output": str(log), "signal": "USR2@90",
    }  # fmt: skip
    assert "srun" not in slurm.submitted()[0]


def test_without_a_profile_a_job_asks_for_what_was_given_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)
    runner("slurm", None, ["partition=debug", "gres=gpu:1"])([task(GOOD)], tmp_path / "out", say)
    assert slurm.options().keys() - {"job-name", "nodes", "time", "open-mode", "output", "signal"} == {
        "partition",
        "gres",
    }


def test_a_job_runs_this_checkout_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    code = "import json, levo; print(json.dumps({'file': levo.__file__}))"
    (record,) = run_on_slurm([task(code)], tmp_path / "out", {}, say)
    assert record["result"] == {"file": str(root / "levo/__init__.py")}


def test_a_refused_job_is_a_row_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("FAKE_SBATCH", "refuse")
    records = run_on_slurm([task(GOOD, n=1), task(GOOD, n=2)], tmp_path / "out", {}, say)
    assert [record["outcome"] for record in records] == [FAILED] * 2
    assert "Invalid account" in records[0]["reason"]


def test_a_job_that_vanishes_is_a_row_with_what_slurm_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.setenv("FAKE_SBATCH", "lose")
    (record,) = run_on_slurm([task(GOOD)], tmp_path / "out", {}, say)
    assert (record["outcome"], record["reason"]) == (FAILED, "job 1 ended as CANCELLED by 0")
    monkeypatch.delenv("FAKE_SBATCH")
    (record,) = run_on_slurm([task(GOOD)], tmp_path / "out", {}, say)
    assert (record["outcome"], record["slurm_job_id"]) == (OK, "2")


def test_after_a_kill_the_job_in_the_queue_is_waited_for_and_not_doubled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)
    slow = task("import time; time.sleep(4); " + GOOD)

    def killed(*arguments: object) -> None:
        raise SystemError("kill -9")

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "_wait", killed)
        with pytest.raises(SystemError):
            run_on_slurm([slow], tmp_path / "out", {}, say)
    (record,) = run_on_slurm([slow], tmp_path / "out", {}, say)
    assert (record["outcome"], len(slurm.submitted())) == (OK, 1)


def test_while_slurm_is_silent_no_job_is_taken_for_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)
    squeue = slurm.jobs.parent / "bin/squeue"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(cluster, "GRACE_S", 0.0)
    slow = task("import time; time.sleep(3); " + GOOD)
    (record,) = run_on_slurm([slow], tmp_path / "out", {}, say)
    assert record["outcome"] == OK
    assert capsys.readouterr().out.count("squeue does not answer: waiting") == 1


def test_ctrl_c_cancels_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on_slurm([task("import time; time.sleep(60)")], tmp_path / "out", {}, say)
    assert (slurm.jobs / "1.state").read_text() == "CANCELLED by 0"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("local", "gh200", []), "for jobs"),
        (("pbs", None, []), "no cluster 'pbs'"),
        (("slurm", "nowhere", []), "no profile"),
        (("slurm", None, ["time=5"]), "an option of its own"),
    ],
)
def test_a_wrong_way_to_run_is_said_in_words(arguments: tuple[str, str | None, list[str]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runner(*arguments)


def test_without_slurm_the_missing_commands_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="not found: sbatch, squeue"):
        run_on_slurm([task(GOOD)], tmp_path, {}, say)


def test_records_are_json_for_others_to_read(tmp_path: Path) -> None:
    run_here([task(GOOD, slots=4)], tmp_path, say)
    record = json.loads(next(tmp_path.glob("slots4-*.json")).read_text())
    assert record["labels"] == {"slots": 4} and record["wall_s"] > 0 and record["host"]
