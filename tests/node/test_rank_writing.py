"""How a rank gets finished songs to disk beside its engine."""

import threading
import time

import pytest

from levo.errors import NodeError
from levo.node import writing
from levo.node.writing import Encoded, Limits, Writing


class FakeParts:
    """Counts what is added and committed; fails as often as told."""

    def __init__(self, failures=0):
        self.failures, self.added, self.parts = failures, [], []

    def add(self, row, files):
        self.added.append(row["song"])

    def commit(self):
        if self.failures:
            self.failures -= 1
            raise OSError("no space left on device")
        self.parts.append(self.added)
        self.added = []
        return len(self.parts[-1])


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch):
    monkeypatch.setattr(writing, "RETRY_AFTER_S", 0.01)


def make(parts, part_songs=2, part_seconds=60.0, retries=2):
    reported = []
    return Writing(parts, Limits(part_songs, part_seconds, retries), reported.extend), reported


def song(number):
    return lambda: Encoded(f"song {number}", {"song": number}, [], 1.0)


def test_parts_hold_part_songs_songs_and_the_rest_is_committed_at_the_end():
    parts = FakeParts()
    writer, reported = make(parts)
    for number in range(5):
        writer.put(number, song(number))
    writer.close()
    assert parts.parts == [[0, 1], [2, 3], [4]]
    assert [encoded.song_id for encoded in reported] == [f"song {n}" for n in range(5)]
    assert writer.uncommitted == []


def test_a_part_is_committed_after_part_seconds():
    parts = FakeParts()
    writer, reported = make(parts, part_songs=100, part_seconds=0.1)
    writer.put(0, song(0))
    _wait_for(lambda: reported)
    assert parts.parts == [[0]]
    writer.close()


def test_flush_commits_what_is_there():
    parts = FakeParts()
    writer, reported = make(parts, part_songs=100)
    writer.put(7, song(0))
    assert writer.uncommitted == [7]
    _wait_for(lambda: writer.flush() or reported)  # as an idle rank does, again and again
    assert writer.uncommitted == []
    writer.close()


def test_io_errors_are_met_with_another_try():
    parts = FakeParts(failures=2)
    writer, reported = make(parts)
    writer.put(0, song(0))
    writer.close()
    assert parts.parts == [[0]] and len(reported) == 1


def test_a_song_that_cannot_be_written_is_never_reported_and_says_what_to_do():
    writer, reported = make(FakeParts(failures=3))
    writer.put(0, song(0))
    with pytest.raises(NodeError, match="no space left") as raised:
        writer.close()
    assert "quota" in raised.value.fix and not reported


def test_the_engine_waits_when_too_many_songs_are_on_their_way():
    go = threading.Event()
    writer, _ = make(FakeParts())

    def slow():
        go.wait(10)
        return song(0)()

    pushed = []

    def push():
        for number in range(writing.ROOM + 5):
            writer.put(number, slow)
            pushed.append(number)

    thread = threading.Thread(target=push)
    thread.start()
    time.sleep(0.3)
    assert len(pushed) <= writing.ROOM + 1
    go.set()
    thread.join()
    writer.close()


def _wait_for(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen within 4 s")
