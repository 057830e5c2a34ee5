"""The journal survives kills, and numbers attempts so that no two are the same."""

import json
import subprocess
import sys
from pathlib import Path

from fakes.made import shard

from levo.node.journal import History, Journal, claim_attempt


def test_what_is_written_is_read(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    first, second = Journal(paths, 1), Journal(paths, 2)
    first.write("commit", rank=0, songs=["a/é", "b"])
    first.write("lost", rank=1, songs=["c", "d"], how="killed by SIGKILL")
    second.write("lost", rank=0, songs=["d"])
    history = History.read(paths)
    assert [(event.attempt, event.name) for event in history.events] == [(1, "commit"), (1, "lost"), (2, "lost")]
    assert history.events[0].fields == {"rank": 0, "songs": ["a/é", "b"]}
    assert history.commits == {1: 2, 2: 0}
    assert history.losses == {"c": 1, "d": 2} and history.losses["a/é"] == 0
    assert history.next_attempt == 3 and not history.unreadable


def test_nothing_written_is_an_empty_history(tmp_path: Path) -> None:
    history = History.read(shard(tmp_path))
    assert history.next_attempt == 1 and not history.events and not history.commits


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    Journal(paths, 1).write("commit", songs=["a"])
    Journal(paths, 1).write("commit", songs=["b", "é"])
    path = paths.journal(1)
    whole = path.read_bytes()
    for size in range(len(whole.splitlines()[0]) + 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        history = History.read(paths)
        assert history.commits == {1: 1} and len(history.unreadable) == 1
    Journal(paths, 1).write("commit", songs=["c"])
    history = History.read(paths)
    assert [event.fields["songs"] for event in history.events] == [["a"], ["c"]]
    assert history.unreadable == [f"{path}:2"]


def test_a_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    for number in range(3):
        Journal(paths, 1).write("commit", songs=[str(number)])
    lines = paths.journal(1).read_bytes().split(b"\n")
    for damage in (b"\xff\x00", b"[1, 2]", b'{"event": "commit"}', b'"text"'):
        lines[1] = damage
        paths.journal(1).write_bytes(b"\n".join(lines))
        history = History.read(paths)
        assert history.commits == {1: 2} and history.unreadable == [f"{paths.journal(1)}:2"]


def test_an_event_is_on_disk_before_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from levo.node.journal import Journal; "
        "from levo.node.paths import RunPaths; j = Journal(RunPaths(Path(sys.argv[1])).shard(0), 1); "
        "j.write('commit', songs=['a']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    assert History.read(shard(tmp_path)).commits == {1: 1}


def test_processes_that_claim_at_once_get_different_numbers(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from levo.node.journal import claim_attempt; "
        "from levo.node.paths import RunPaths; p = RunPaths(Path(sys.argv[1])).shard(0); "
        "print([claim_attempt(p) for _ in range(30)])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    claimed = [number for process in running for number in json.loads(process.communicate()[0])]
    assert sorted(claimed) == list(range(1, 91))


def test_a_number_that_any_file_carries_is_not_given_again(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    paths.work.mkdir(parents=True)
    paths.part(7, 0, 0).touch()
    assert claim_attempt(paths) == 8
    paths.ledger(11, 0).touch()
    assert History.read(paths).next_attempt == 12
    assert claim_attempt(paths) == 12
    assert claim_attempt(paths) == 13
