"""One writer a shard: who may take over, when, and that the former one notices."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.commands import put_commands
from fakes.made import shard

from levo.errors import NodeError
from levo.node import lease as lease_module
from levo.node.lease import Lease, _ask_squeue, _Watch
from levo.node.paths import ShardPaths

HOLD = """
import sys, time
from pathlib import Path
from levo.node.lease import Lease
from levo.node.paths import RunPaths
Lease(RunPaths(Path(sys.argv[1])).shard(0), 1, 0).acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShardPaths:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(lease_module, "POLL_S", 0.02)
    return shard(tmp_path)


@pytest.fixture
def holder(paths: ShardPaths) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the lease."""
    command = [sys.executable, "-c", HOLD, str(paths.run_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def new(paths: ShardPaths, wait_s: float = 60, attempt: int = 2, said: list[str] | None = None) -> Lease:
    return Lease(paths, attempt, wait_s, (said if said is not None else []).append)


def held(paths: ShardPaths, quiet_s: float = 0, **changes: object) -> Path:
    """A lease of a process elsewhere that renewed it for the last time so long ago."""
    paths.lease.mkdir(parents=True, exist_ok=True)
    number = 1 + len(list(paths.lease.glob("*.json")))
    path = paths.lease / f"{number:06d}.json"
    content = {"machine": "m", "host": "far", "pid": 1, "started": "1", "attempt": 1, "slurm_job_id": None, **changes}
    path.write_text(json.dumps(content))
    os.utime(path, (time.time() - quiet_s,) * 2)
    return path


def look(paths: ShardPaths, wait_s: float = 120) -> str | None:
    """What a newcomer sees at its first look."""
    return _Watch(paths.lease, new(paths).me, wait_s).look()[1]


def fake_squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setenv("PATH", put_commands(tmp_path / "bin", squeue=f"echo asked >> {tmp_path}/asked\n{script}"))


def test_the_first_writer_need_not_wait(paths: ShardPaths) -> None:
    said: list[str] = []
    lease = new(paths, said=said)
    lease.acquire()
    assert json.loads(lease.path.read_text())["pid"] == os.getpid()
    lease.release()
    assert not said and not lease.lost.is_set()


def test_a_released_lease_is_free_at_once(paths: ShardPaths) -> None:
    said: list[str] = []
    for _ in range(3):
        lease = new(paths, said=said)
        lease.acquire()
        lease.release()
        lease.release()
    assert not said


def test_a_writer_at_work_is_waited_for_and_then_named(paths: ShardPaths, holder: subprocess.Popen[bytes]) -> None:
    said: list[str] = []
    began = time.monotonic()
    with pytest.raises(NodeError, match=f"process {holder.pid} on ") as raised:
        new(paths, 0.4, said=said).acquire()
    assert 0.4 <= time.monotonic() - began < 5
    assert "scancel" in raised.value.fix
    assert len(said) == 1 and "waiting up to 0.4 s" in said[0]


def test_a_newcomer_goes_on_when_the_first_is_done(paths: ShardPaths) -> None:
    first, second = new(paths), new(paths)
    first.acquire()
    timer = threading.Timer(0.2, first.release)
    timer.start()
    second.acquire()
    assert not first.lost.is_set()
    timer.join()
    second.release()


def test_a_killed_writer_of_this_machine_is_known_to_be_dead(
    paths: ShardPaths, holder: subprocess.Popen[bytes]
) -> None:
    said: list[str] = []
    holder.send_signal(signal.SIGKILL)  # not waited for: its process table entry is still there
    began = time.monotonic()
    lease = new(paths, said=said)
    lease.acquire()
    lease.release()
    assert time.monotonic() - began < 5
    assert "is dead" in said[-1] and str(holder.pid) in said[-1]


def test_a_reused_pid_is_not_taken_for_the_writer(paths: ShardPaths) -> None:
    held(paths, machine=new(paths).me.machine, pid=os.getpid(), started="1")
    assert "is dead" in (look(paths) or "")


def test_the_same_pid_on_another_machine_means_nothing(paths: ShardPaths) -> None:
    held(paths, machine="another", pid=1 << 22)
    assert look(paths) is None


@pytest.mark.parametrize(("quiet_s", "is_free"), [(0, False), (20, False), (110, False), (130, True), (1e6, True)])
def test_without_renewal_for_the_wait_it_is_free(paths: ShardPaths, quiet_s: float, is_free: bool) -> None:
    held(paths, quiet_s)
    found = look(paths)
    assert (found is not None) == is_free
    assert not is_free or "has not renewed its lease" in str(found)


def test_a_short_wait_still_grants_two_missed_renewals(paths: ShardPaths) -> None:
    held(paths, 20)
    with pytest.raises(NodeError, match="20 s ago"):
        look(paths, wait_s=0)
    held(paths, 30)
    assert look(paths, wait_s=0)


def test_a_holder_whose_clock_is_ahead_is_judged_by_its_silence(
    paths: ShardPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "MISSED_S", 0.2)
    held(paths, -3600)
    lease = new(paths, 0.3)
    lease.acquire()
    lease.release()


def test_a_damaged_lease_is_judged_by_its_time(paths: ShardPaths) -> None:
    held(paths).write_text("{")
    assert look(paths) is None
    path = held(paths)
    path.write_text('{"pid": 1}')
    os.utime(path, (time.time() - 200,) * 2)
    assert "unreadable" in str(look(paths))


def test_the_former_writer_notices_and_leaves_the_new_one_alone(
    paths: ShardPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.3)
    monkeypatch.setattr(lease_module, "MISSED_S", 1.0)
    former, newcomer = new(paths, attempt=1), new(paths, 0)
    former.acquire()
    os.utime(former.path, (time.time() - 500,) * 2)
    newcomer.acquire()
    assert former.lost.wait(5)
    former.release()
    assert not newcomer.lost.wait(0.7)
    assert not json.loads(newcomer.path.read_text())["is_released"]
    newcomer.release()


def test_a_lease_is_renewed(paths: ShardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.05)
    lease = new(paths)
    lease.acquire()
    os.utime(lease.path, (1, 1))
    for _ in range(100):
        if lease.path.stat().st_mtime > time.time() - 100:
            break
        time.sleep(0.02)
    else:
        raise AssertionError("it was not renewed")
    lease.release()


def test_a_lease_that_was_deleted_is_lost(paths: ShardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "RENEW_S", 0.05)
    lease = new(paths)
    lease.acquire()
    lease.path.unlink()
    assert lease.lost.wait(5)
    lease.release()


def test_a_writer_that_cannot_renew_gives_up(paths: ShardPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(lease_module, "RENEW_S", 0.05)
    lease = new(paths, 0.3, said=said)
    lease.acquire()

    def stale(_: Path) -> int:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(lease_module, "_highest", stale)
    assert lease.lost.wait(5)
    assert "Stale file handle" in said[0] and len(said) > 2
    lease.release()


def test_of_many_newcomers_one_takes_over(paths: ShardPaths) -> None:
    for round_ in range(5):
        held(paths, 500)
        leases = [new(paths, 0) for _ in range(8)]
        start, won = threading.Barrier(8), []

        def compete(lease: Lease, start: threading.Barrier = start, won: list[Lease] = won) -> None:
            start.wait()
            try:
                lease.acquire()
                won.append(lease)
            except NodeError:
                return

        threads = [threading.Thread(target=compete, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, round_
        won[0].release()


@pytest.mark.parametrize(
    ("script", "is_gone"),
    [
        ("exit 0", True),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", True),
        ("echo CANCELLED", True),
        ("echo RUNNING", False),
        ("echo PENDING", False),
        ("echo COMPLETING", False),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1", False),
        ("exec sleep 5", False),
    ],
)
def test_slurm_is_believed_only_when_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, is_gone: bool
) -> None:
    monkeypatch.setattr(lease_module, "SQUEUE_TIMEOUT_S", 0.5)
    fake_squeue(tmp_path, monkeypatch, script)
    assert _ask_squeue("77", 0) is is_gone


@pytest.mark.parametrize(
    ("shown", "restarts", "is_gone"),
    [("RUNNING 1", 0, True), ("PENDING 1", 0, True), ("RUNNING 1", 1, False), ("RUNNING 1", None, False)],
)
def test_a_run_of_a_job_is_over_when_slurm_has_requeued_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str, restarts: int | None, is_gone: bool
) -> None:
    fake_squeue(tmp_path, monkeypatch, f"echo '{shown}'")
    assert _ask_squeue("77", restarts) is is_gone


@pytest.mark.parametrize(
    ("quiet_s", "wait_s", "holders", "is_free"),
    [
        (30, 120, 0, True),  # the node was lost: its last run has not been renewed since
        (0, 0, 0, True),  # a zombie still renews: Slurm has ended it all the same
        (0, 120, 0, False),  # it may be just ending
        (30, 120, 1, False),  # two processes of this very run
        (30, 120, None, False),  # not known
    ],
)
def test_a_requeued_job_takes_over_from_its_own_last_run(
    paths: ShardPaths,
    monkeypatch: pytest.MonkeyPatch,
    quiet_s: float,
    wait_s: float,
    holders: int | None,
    is_free: bool,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    held(paths, quiet_s, slurm_job_id="78", slurm_restarts=holders)
    me = Lease(paths, 2, wait_s, slurm_restarts=1).me
    assert (_Watch(paths.lease, me, wait_s).look()[1] is not None) == is_free


def test_a_dead_last_run_of_this_job_is_not_waited_for_for_ever(
    paths: ShardPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even when Slurm has not told how often it was requeued."""
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    held(paths, 130, slurm_job_id="78")
    assert "has not renewed" in str(look(paths))


def test_without_squeue_nobody_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert not _ask_squeue("77", 0)


def test_a_job_that_slurm_has_ended_frees_the_shard_before_the_wait_is_over(
    paths: ShardPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, "exit 0")
    held(paths, 30, slurm_job_id="77")
    assert "says Slurm" in str(look(paths))


def test_slurm_is_not_asked_about_a_holder_that_renews_or_is_this_very_job(
    paths: ShardPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, "exit 0")
    held(paths, 10, slurm_job_id="77")
    assert look(paths) is None
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    held(paths, 30, slurm_job_id="78")
    assert look(paths) is None
    assert not (tmp_path / "asked").exists()


def test_a_zombie_of_an_ended_job_loses_the_shard_after_the_wait(
    paths: ShardPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_squeue(tmp_path, monkeypatch, "exit 0")
    held(paths, 0, slurm_job_id="77")
    assert "says Slurm" in str(look(paths, wait_s=0))


def test_slurm_is_asked_rarely(paths: ShardPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_squeue(tmp_path, monkeypatch, "echo RUNNING")
    held(paths, 30, slurm_job_id="77")
    watch = _Watch(paths.lease, new(paths).me, 120)
    assert [watch.look()[1] for _ in range(20)] == [None] * 20
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_a_file_system_without_hard_links_is_an_error_in_words(
    paths: ShardPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(NodeError, match="Operation not permitted") as raised:
        new(paths).acquire()
    assert "hard links" in raised.value.fix
    assert not list(paths.lease.iterdir())


def test_a_link_that_was_made_though_nfs_says_it_failed_counts(
    paths: ShardPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost_answer(*names: Path) -> None:
        link(*names)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", lost_answer)
    lease = new(paths)
    lease.acquire()
    lease.release()
