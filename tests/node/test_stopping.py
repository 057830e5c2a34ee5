"""Stop signals in any order, at any moment, to any process of a shard."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes import scontrol as fake
from fakes.commands import put_commands
from fakes.shards import SONGS, lasting, make_run, plan, run, settings, start

from levo.node import shard
from levo.node.journal import History
from levo.node.retry import retry_run
from levo.node.seal import seal
from levo.node.standing import read_standing
from levo.node.stopping import STOP_SIGNALS

TERM, INT, USR1, USR2, CONT = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT


def wait_for(condition, seconds=20.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"it did not happen within {seconds:g} s"
        time.sleep(0.02)


def wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never said: {process.stderr.read()}")


def ranks_of(pid):
    return [child for child in family(pid)[1:] if "spawn_main" in command(child)]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # it has just ended
        return ""


def family(pid):
    """The shard's process and all its children, as Slurm signals a step."""
    return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]


@pytest.mark.parametrize("order", [(TERM, CONT), (CONT, TERM), (USR2, CONT, TERM), (USR1, USR1, USR2), (CONT, INT)])
def test_signals_to_every_process_of_a_shard_at_work_commit_what_is_finished(tmp_path, undisturbed, order):
    paths = make_run(tmp_path, SONGS, settings(node={"part_songs": 100, "part_seconds": 1000}))
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=0.05))
    wait_for(lambda: paths.journal(1).exists() and '"give"' in paths.journal(1).read_text())
    time.sleep(1.4)  # the first songs take 0.9 s at most, the others are not finished
    for number in order:
        for pid in family(process.pid):
            os.kill(pid, number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 75, out + err
    committed = sum(pq.read_metadata(path).num_rows for path in paths.work.glob("part-*.parquet"))
    assert 1 <= committed < 6, out
    code, said = run(tmp_path)
    assert code == 0 and f"resuming: {committed} songs done" in said, said
    assert lasting(paths) == undisturbed


def test_cont_alone_means_nothing(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings())
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=0.02))
    wait_for_line(process, "resuming")
    for pid in family(process.pid):
        os.kill(pid, CONT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, out + err
    assert lasting(paths) == undisturbed


def test_ranks_that_are_being_started_survive_what_every_process_of_the_step_gets(tmp_path, undisturbed):
    """Only the ranks are hit, from their first moment on: the parent decides, and decides nothing."""
    paths = make_run(tmp_path, SONGS, settings(ranks=2))
    process = start(tmp_path)
    hit = set()

    def hit_new_ranks():
        for pid in ranks_of(process.pid):
            for number in STOP_SIGNALS:
                os.kill(pid, number)
            hit.add(pid)
        return len(hit) == 2

    wait_for(hit_new_ranks)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0 and "lost its engine" not in out, out + err
    assert lasting(paths) == undisturbed


def test_a_signal_while_ranks_load_ends_the_attempt_at_once(tmp_path):
    make_run(tmp_path, SONGS, settings())
    process = start(tmp_path, FAKE_PLAN=plan(load_s=60))
    wait_for(lambda: process.poll() is not None or ranks_of(process.pid))
    began = time.monotonic()
    for number in (TERM, CONT, TERM):
        process.send_signal(number)
    assert process.wait(20) == 75 and time.monotonic() - began < 5
    process.communicate()


def test_signals_during_sealing_do_not_spoil_it(tmp_path, monkeypatch):
    paths = make_run(tmp_path, SONGS[:2], settings())
    code, said = run(tmp_path, LEVO_FAULT="seal.before_done:1:kill-shard")
    assert code == -9 and not paths.provenance.exists(), said

    def hit_and_seal(*arguments):
        for number in (TERM, CONT, USR1, TERM):
            os.kill(os.getpid(), number)
        return seal(*arguments)

    monkeypatch.setattr(shard, "seal", hit_and_seal)
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    try:
        assert shard.run_shard(tmp_path, 0) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert paths.provenance.exists()


LAST_WAY = """
import os, signal, sys, time
from levo.node.stopping import Stopped, StopSignals
try:
    with StopSignals():
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(5)
except Stopped as stopped:
    assert str(stopped) == "SIGUSR1"
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
sys.exit(75)
"""


def test_a_signal_to_a_process_on_its_last_way_does_not_change_its_exit_code(root):
    assert subprocess.run([sys.executable, "-c", LAST_WAY], cwd=root).returncode == 75


HELD = """
import signal, subprocess, sys, time
from levo.node.stopping import held_back
signal.signal(signal.SIGUSR2, lambda *_: print("parent", flush=True))
child = "import time; time.sleep(0.3); from levo.node import stopping; stopping.ignore_stops(); print('child')"
with held_back():
    process = subprocess.Popen([sys.executable, "-c", child])
    for target in (process.pid, __import__("os").getpid()):
        __import__("os").kill(target, signal.SIGUSR2)
    print("held", flush=True)
process.wait()
"""


def test_a_signal_that_is_held_back_is_lost_by_the_child_and_not_by_the_parent(root):
    done = subprocess.run([sys.executable, "-c", HELD], cwd=root, capture_output=True, text=True)
    assert done.stdout.split() == ["held", "parent", "child"], done.stderr


def _with_job(tmp_path, **fields):
    return put_commands(tmp_path / "bin", scontrol=fake.printing(fake.job_text(**fields)))


def test_a_job_that_ends_commits_and_says_so_and_the_next_one_goes_on(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings(node={"part_songs": 100, "part_seconds": 1000}))
    path = _with_job(tmp_path, limit="00:00:20", run_time="00:00:10", restarts=3)
    code, said = run(tmp_path, PATH=path, SLURM_JOB_ID="77", FAKE_PLAN=plan(tick_s=0.3))
    assert code == 75, said
    assert "time limit: no new songs" in said and "songs are left; run the shard again" in said
    events = {event.name: event.fields for event in History.read(paths).events}
    assert events["start"]["slurm_restarts"] == 3
    assert events["stop"] == {"signal": "time limit", "early": False}
    code, said = run(tmp_path, PATH=_with_job(tmp_path), SLURM_JOB_ID="78")
    assert code == 0, said
    assert lasting(paths) == undisturbed
    rows = pq.read_table(paths.provenance).to_pylist()
    assert {(row["slurm_job_id"], row["slurm_restarts"]) for row in rows if row["attempt"] == 2} == {("78", 0)}
    assert {(row["slurm_tasks"], row["slurm_cores"]) for row in rows} == {(1, 288)}


def test_no_song_is_begun_that_does_not_fit(tmp_path):
    """The first songs take 5 s each and tell the pace; 14 s are too short for three rounds of two."""
    paths = make_run(tmp_path, SONGS, settings())
    path = _with_job(tmp_path, limit="00:01:00", run_time="00:00:40")
    code, said = run(tmp_path, PATH=path, SLURM_JOB_ID="77", FAKE_PLAN=plan(tick_s=0.35))
    assert code == 75, said
    assert "no song takes less than" in said
    events = History.read(paths).events
    given = {event.fields["song"] for event in events if event.name == "give"}
    made = {song_id for event in events if event.name == "commit" for song_id in event.fields["songs"]}
    assert given == made and 0 < len(made) < 6, "what was begun was finished"


def test_a_job_given_four_gpus_starts_four_ranks_with_four_indices(tmp_path):
    """As in a lab without GPUs: Slurm's numbers, one rank each, and the cores of the job beside them."""
    songs = [*SONGS, *(SONGS[n].__class__(**{**vars(SONGS[n]), "song_id": f"more {n}"}) for n in range(6))]
    paths = make_run(tmp_path, songs, settings(ranks=None, slots=1, node={"device": "auto"}))
    given = {"PATH": _with_job(tmp_path), "SLURM_JOB_ID": "77", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    code, said = run(tmp_path, FAKE_PLAN=plan(tick_s=0.05), **given)
    assert code == 0 and "given GPUs 0, 1, 2, 3" in said, said
    rows = pq.read_table(paths.provenance).to_pylist()
    assert {(row["rank"], row["device_index"]) for row in rows} == {(n, n) for n in range(4)}
    assert {(row["slurm_tasks"], row["slurm_cores"], row["gpu_uuid"]) for row in rows} == {(1, 288, None)}
    log = paths.log(1, 0).read_text()
    assert "rank 0 of process" in log and ", cores " in log


def test_preemption_while_loading_does_not_end_a_shard_for_good(tmp_path):
    """Twice sent away long before the job's end, before any song was made; a third attempt is let in."""
    paths = make_run(tmp_path, SONGS[:2], settings())
    path = _with_job(tmp_path)
    for _ in range(2):
        process = start(tmp_path, PATH=path, SLURM_JOB_ID="77", FAKE_PLAN=plan(load_s=60))
        wait_for(lambda process=process: process.poll() is not None or ranks_of(process.pid))
        process.send_signal(TERM)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 75, out + err
    assert read_standing(paths, SONGS[:2], print).fruitless == 0
    assert run(tmp_path, PATH=path, SLURM_JOB_ID="77")[0] == 0


def test_a_node_that_is_refused_is_no_attempt_of_the_shard(tmp_path):
    paths = make_run(tmp_path, SONGS[:2], settings(ranks=5, node={"device": "auto"}))
    for _ in range(3):
        code, said = run(tmp_path, CUDA_VISIBLE_DEVICES="0,1,2,3")
        assert code == 4 and "node.ranks is 5, but there are 4 GPUs" in said, said
    assert read_standing(paths, SONGS[:2], print).fruitless == 0
    assert retry_run(tmp_path) == 0
    assert run(tmp_path, CUDA_VISIBLE_DEVICES="0,1,2,3,4")[0] == 0
