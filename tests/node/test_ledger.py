"""Every second of a rank is booked once: songs + load + idle + lost = wall."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fakes.made import shard

from levo.disk import whole_file
from levo.errors import NodeError
from levo.node import ledger as ledger_module
from levo.node.ledger import Bill, Ledger, process_age_s, read_ledgers, settle


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def open_ledger(tmp_path: Path, clock: Clock, attempt: int = 1, rank: int = 0) -> Ledger:
    return Ledger(shard(tmp_path), attempt, rank, age_s=0, clock=clock)


def spend(ledger: Ledger, clock: Clock, seconds: float, stage: str, *keys: int) -> None:
    clock.now += seconds
    ledger.book(stage, keys)


def assert_adds_up(bill: Bill) -> None:
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=1e-9)
    assert sum(sum(stages.values()) for stages in bill.by_song.values()) == pytest.approx(bill.songs_s)
    assert sum(bill.by_stage.values()) == pytest.approx(bill.songs_s)
    assert sum(attempt["wall_s"] for attempt in bill.attempts) == pytest.approx(bill.wall_s)


def test_a_lap_is_shared_equally_and_nobodys_time_is_load_or_idle(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    spend(ledger, clock, 10, "load")
    ledger.name(1, "a")
    ledger.name(2, "b")
    spend(ledger, clock, 2, "prefill", 1)
    spend(ledger, clock, 4, "main", 1, 2)
    spend(ledger, clock, 1, "write")
    spend(ledger, clock, 3, "main", 2)
    spend(ledger, clock, 5, "idle")
    ledger.close()
    (read,) = read_ledgers(shard(tmp_path))
    assert read.nobody == {"load": 10, "idle": 6}
    assert read.by_song == {"a": {"prefill": 2, "main": 2}, "b": {"main": 5}}
    assert read.by_stage == {"load": 10, "idle": 6, "prefill": 2, "main": 7}
    assert (read.wall_s, read.open_s) == (25, 0)


def test_songs_of_the_copy_that_counts_are_charged_and_the_rest_is_lost(tmp_path: Path, clock: Clock) -> None:
    for attempt, rank, seconds in ((1, 0, 7), (1, 1, 5), (2, 0, 3)):
        ledger = open_ledger(tmp_path, clock, attempt, rank)
        spend(ledger, clock, 1, "load")
        ledger.name(1, "twice")
        ledger.name(2, f"only {attempt}.{rank}")
        spend(ledger, clock, seconds, "main", 1)
        spend(ledger, clock, 2, "main", 2)
        spend(ledger, clock, 4, "flow", 1, 2)
        ledger.close()
    bill = settle(shard(tmp_path), {"twice": (1, 1), "only 1.0": (1, 0), "only 2.0": (2, 0)})
    assert bill.by_song == {
        "twice": {"main": 5, "flow": 2},
        "only 1.0": {"main": 2, "flow": 2},
        "only 2.0": {"main": 2, "flow": 2},
    }
    assert bill.lost_s == (7 + 2) + (2 + 2) + (3 + 2)
    assert bill.attempts == [
        {"attempt": 1, "ranks": 2, "wall_s": 26, "longest_s": 14},
        {"attempt": 2, "ranks": 1, "wall_s": 10, "longest_s": 10},
    ]
    assert_adds_up(bill)


def test_bookings_after_the_commit_are_the_songs(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    ledger.name(1, "a")
    spend(ledger, clock, 2, "main", 1)
    spend(ledger, clock, 3, "write", 1)
    ledger.close()
    assert settle(shard(tmp_path), {"a": (1, 0)}).by_song["a"] == {"main": 2, "write": 3}


def test_what_a_lost_engine_held_is_lost_work_though_its_songs_are_made_later(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    ledger.name(1, "a")
    spend(ledger, clock, 9, "main", 1)
    ledger.lose([1])
    spend(ledger, clock, 1, "load")
    ledger.name(2, "a")
    spend(ledger, clock, 4, "main", 2)
    ledger.close()
    bill = settle(shard(tmp_path), {"a": (1, 0)})
    assert bill.by_song["a"] == {"main": 4} and bill.lost_s == 9
    assert_adds_up(bill)


def test_what_follows_the_last_booking_of_a_rank_that_ends_well_was_idle(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    spend(ledger, clock, 10, "load")
    clock.now += 3
    ledger.close()
    bill = settle(shard(tmp_path), {})
    assert (bill.load_s, bill.idle_s, bill.lost_s) == (10, 3, 0)


def test_a_lap_that_nobody_ended_is_lost_work(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    ledger.name(1, "a")
    spend(ledger, clock, 2, "main", 1)
    clock.now += 30
    ledger.sync()  # the last before a kill
    ledger.ended.set()
    bill = settle(shard(tmp_path), {"a": (1, 0)})
    assert (bill.wall_s, bill.lost_s, bill.songs_s) == (32, 30, 2)
    assert_adds_up(bill)


def test_a_song_that_cost_nothing_is_in_the_bill(tmp_path: Path) -> None:
    bill = settle(shard(tmp_path), {"a": (1, 0)})
    assert bill.by_song == {"a": {}} and bill.wall_s == 0


def test_a_bill_survives_its_file_form(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    ledger.name(1, "a")
    spend(ledger, clock, 1 / 3, "main", 1)
    ledger.close()
    bill = settle(shard(tmp_path), {"a": (1, 0)})
    read = Bill.from_json(bill.as_json())
    assert read.by_song == {} and read.as_json() == bill.as_json() and read.songs_s == bill.songs_s


def test_a_key_without_a_name_is_a_fault(tmp_path: Path, clock: Clock) -> None:
    ledger = open_ledger(tmp_path, clock)
    with pytest.raises(KeyError):
        ledger.book("main", [7])
    ledger.close()


def test_a_killed_rank_has_all_but_its_last_seconds_booked(tmp_path: Path) -> None:
    code = """
import os, signal, sys, time
from pathlib import Path
from levo.node.ledger import Ledger
from levo.node.paths import RunPaths
ledger = Ledger(RunPaths(Path(sys.argv[1])).shard(0), 1, 0)
ledger.book("load", [])
ledger.name(1, "a")
for _ in range(25):
    time.sleep(0.1)
    ledger.book("main", [1])
os.kill(os.getpid(), signal.SIGKILL)
"""
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    wall_s = time.monotonic() - began
    bill = settle(shard(tmp_path), {"a": (1, 0)})
    assert wall_s - 2 < bill.wall_s < wall_s
    assert 1 < bill.songs_s < 2.6
    assert_adds_up(bill)


def test_the_first_lap_begins_with_the_process(tmp_path: Path) -> None:
    age_s = process_age_s()
    time.sleep(0.2)
    assert 0.15 < process_age_s() - age_s < 2
    ledger = Ledger(shard(tmp_path), 1, 0)
    ledger.book("load", [])
    ledger.close()
    (read,) = read_ledgers(shard(tmp_path))
    assert read.nobody["load"] == pytest.approx(process_age_s(), abs=1)


def test_a_full_disk_does_not_end_the_rank(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ledger_module, "SYNC_S", 0.02)
    ledger = open_ledger(tmp_path, clock)
    tries: list[int] = []

    def full(path: Path) -> object:
        if path != ledger.path:  # the thread of another test's ledger
            return whole_file(path)
        tries.append(1)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(ledger_module, "whole_file", full)
        while len(tries) < 4:
            time.sleep(0.02)
    spend(ledger, clock, 5, "load")
    ledger.close()
    assert read_ledgers(shard(tmp_path))[0].nobody["load"] == 5
    assert capsys.readouterr().out.count("No space") == 1


def test_a_damaged_ledger_is_an_error_in_words(tmp_path: Path, clock: Clock) -> None:
    open_ledger(tmp_path, clock).close()
    path = shard(tmp_path).ledger(1, 0)
    for content in (b"", path.read_bytes()[:-5], b"[]", json.dumps({"attempt": 1}).encode()):
        path.write_bytes(content)
        with pytest.raises(NodeError, match="ledger not readable"):
            read_ledgers(shard(tmp_path))


def test_what_is_written_is_all_that_is_booked_however_often(tmp_path):
    """Each writing puts only what has changed into words: a finished song is still there, and a lost one is emptied."""
    clock = Clock()
    ledger = Ledger(shard(tmp_path), 1, 0, age_s=0, clock=clock)
    for key in (1, 2, 3):
        ledger.name(key, f'song "{key}" é')
        clock.now += key
        ledger.book("main", [key])
        ledger.sync()
    ledger.lose([2])
    clock.now += 1
    ledger.book("sub", [1, 3])
    ledger.sync()
    ledger.sync()
    (read,) = read_ledgers(shard(tmp_path))
    assert read == ledger.state()
    assert read.by_song == {
        'song "1" é': {"main": 1, "sub": 0.5},
        'song "2" é': {},
        'song "3" é': {"main": 3, "sub": 0.5},
    }
    assert read.lost == {"main": 2}
    ledger.close()
