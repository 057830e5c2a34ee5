"""A shard's outcomes, signals and writers, with an engine that fails as planned."""

import multiprocessing
import shutil
import signal
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes.shards import SONGS, lasting, make_run, plan, run, settings, start

from levo.errors import NodeError
from levo.node.attempt import Attempt, Job
from levo.node.devices import Place
from levo.node.journal import Journal
from levo.node.lease import Lease
from levo.node.retry import retry_run
from levo.node.stopping import StopSignals


def outcomes(paths):
    return {row["line"] - 1: (row["outcome"], row["error"]) for row in _rows(paths)}


def _rows(paths):
    return pq.read_table(paths.provenance).to_pylist()


@pytest.fixture(scope="module")
def with_failures(tmp_path_factory):
    """A sealed shard in which songs 1 and 2 failed and song 3 was refused, on one rank."""
    run_dir = tmp_path_factory.mktemp("failures")
    paths = make_run(run_dir, SONGS, settings(failed_share=0.5))
    code, said = run(run_dir, FAKE_PLAN=plan(nan=[101], empty=[102], refuse=[103]))
    assert code == 0, said
    assert "3 songs ok, 1 rejected, 2 failed" in said
    return paths


def test_one_bad_song_costs_no_other(with_failures, undisturbed):
    assert outcomes(with_failures) == {
        0: ("ok", None),
        1: ("failed", "the audio is not finite"),
        2: ("failed", "the engine gave no frames"),
        3: ("rejected", "this song is refused"),
        4: ("ok", None),
        5: ("ok", None),
    }
    rows = lasting(with_failures)
    for number in (0, 4, 5):
        song_id = SONGS[number].song_id
        assert rows[song_id] == undisturbed[song_id]


def test_a_sealed_shard_is_left_alone_and_one_without_its_outputs_only_sealed(with_failures):
    before = [_without_hash(row) for row in _rows(with_failures)]
    code, said = run(with_failures.run_dir)
    assert code == 0 and "sealed already" in said
    for path in (with_failures.tokens, with_failures.audio, with_failures.provenance):
        path.unlink()
    code, said = run(with_failures.run_dir)
    assert code == 0 and "resuming: 6 songs done, 0 to make, 0 were in flight" in said
    assert [_without_hash(row) for row in _rows(with_failures)] == before
    assert not list(with_failures.work.glob("ledger-a002*")), "no rank was started"


def _without_hash(row):
    return {name: value for name, value in row.items() if name != "row_sha256"}


def test_retry_makes_failed_songs_again_under_a_new_attempt(with_failures, undisturbed, tmp_path):
    shutil.copytree(with_failures.run_dir, tmp_path, dirs_exist_ok=True)
    paths = type(with_failures)(tmp_path, 0)
    assert retry_run(tmp_path) == 2
    assert not paths.provenance.exists()
    code, said = run(tmp_path)
    assert code == 0 and "4 songs done, 2 to make" in said, said
    attempts = {row["line"] - 1: row["attempt"] for row in _rows(paths)}
    assert [number for number, attempt in attempts.items() if attempt > 1] == [1, 2]
    for number in (0, 1, 2, 4, 5):
        assert lasting(paths)[SONGS[number].song_id] == undisturbed[SONGS[number].song_id]
    assert retry_run(tmp_path) == 0


def test_a_shard_with_too_many_failures_is_never_sealed(tmp_path):
    paths = make_run(tmp_path, SONGS[:3], settings())
    code, said = run(tmp_path, FAKE_PLAN=plan(nan=[101]))
    assert code == 4 and "1 of 3 songs failed" in said and "levo retry" in said
    assert not paths.provenance.exists()
    assert retry_run(tmp_path) == 1
    code, said = run(tmp_path)
    assert code == 0 and "2 songs done, 1 to make" in said


def test_out_of_memory_is_met_with_a_new_engine_and_smaller_company(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings())
    code, said = run(tmp_path, FAKE_PLAN=plan(oom_over=1))
    assert code == 0, said
    assert "out of memory" in said
    assert lasting(paths) == undisturbed


def test_a_song_that_kills_its_rank_is_given_up_and_the_others_are_made(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings(ranks=3, failed_share=0.5, node={"retries": 1}))
    code, said = run(tmp_path, FAKE_PLAN=plan(die=[104]))
    assert code == 0, said
    found = outcomes(paths)
    assert found[4][0] == "failed" and "2 times a rank died" in found[4][1]
    for number in (0, 1, 2, 3, 5):
        assert lasting(paths)[SONGS[number].song_id] == undisturbed[SONGS[number].song_id]


def test_an_io_error_of_a_part_is_met_with_another_try(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings())
    code, said = run(tmp_path, LEVO_FAULT="part.write:2:raise")
    assert code == 0, said
    assert "writing a part failed" in paths.log(1, 0).read_text()
    assert lasting(paths) == undisturbed


def test_two_attempts_without_a_song_end_the_shard_until_retry(tmp_path):
    """An attempt between them that a person interrupted does not count."""
    paths = make_run(tmp_path, SONGS[:2], settings())
    assert run(tmp_path, maker="fakes.engine:absent")[0] == 4
    process = start(tmp_path, FAKE_PLAN=plan(load_s=60))
    _wait_for_line(process, "resuming")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 75, "a rank that is still loading is not waited for"
    _close(process)
    code, said = run(tmp_path, maker="fakes.engine:absent")
    assert code == 4 and "every rank is lost" in said
    assert "has no attribute 'absent'" in paths.log(3, 0).read_text()
    code, said = run(tmp_path)
    assert code == 4 and "failed for good: 2 attempts in a row" in said and f"levo retry {tmp_path}" in said
    assert retry_run(tmp_path) == 0
    assert run(tmp_path)[0] == 0


def test_signals_in_any_order_commit_what_is_finished(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings(node={"part_songs": 100, "part_seconds": 1000}))
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=0.1))
    log = paths.work / "log-a001-r0.txt"
    _wait_for(lambda: log.exists() and "is ready" in log.read_text())
    time.sleep(2.5)  # the first two songs take 1.7 s at most; the others are not finished
    for number in (signal.SIGUSR2, signal.SIGUSR1, signal.SIGTERM):
        process.send_signal(number)
    said = process.communicate(timeout=20)[0]
    assert process.returncode == 75, said
    assert "no new songs; what is finished is committed" in said
    committed = sum(pq.read_metadata(path).num_rows for path in paths.work.glob("part-*.parquet"))
    assert 1 <= committed < 6
    code, said = run(tmp_path)
    assert code == 0 and f"resuming: {committed} songs done" in said, said
    assert lasting(paths) == undisturbed


def test_a_second_writer_is_refused_and_the_first_goes_on(tmp_path):
    make_run(tmp_path, SONGS[:3], settings())
    first = start(tmp_path, FAKE_PLAN=plan(load_s=4))
    _wait_for_line(first, "resuming")
    code, said = run(tmp_path)
    assert code == 4 and "another writer holds this shard" in said
    with pytest.raises(NodeError, match="another writer"):
        retry_run(tmp_path)
    assert first.wait(20) == 0
    _close(first)


def test_a_writer_that_has_lost_its_lease_stops_at_once(tmp_path):
    chosen = settings()
    paths = make_run(tmp_path, SONGS, chosen)
    job = Job(tmp_path, 0, 1, "fakes.engine:load", chosen, SONGS, len(SONGS), {}, [Place()])
    lease = Lease(paths, 1, 0)
    lease.lost.set()
    attempt = Attempt(job, Journal(paths, 1), lease, StopSignals(), print)
    with pytest.raises(NodeError, match="another writer has taken over"):
        attempt.run()
    assert not multiprocessing.active_children()
    assert not list(paths.work.glob("part-*"))


def test_a_rank_dies_with_its_parent(tmp_path):
    paths = make_run(tmp_path, SONGS, settings())
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=30))
    _wait_for(lambda: '"give"' in paths.journal(1).read_text() if paths.journal(1).exists() else False)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(ranks) == 1
    process.kill()
    process.wait()
    _close(process)
    _wait_for(lambda: not _lives(ranks[0]))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _wait_for_line(process, text):
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"{text!r} was never said: {process.stderr.read()}")


def _wait_for(condition):
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 20 s")


def _close(process):
    process.stdout.close()
    process.stderr.close()
