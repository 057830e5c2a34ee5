"""A file is there whole or not at all, whatever happens while it is written."""

import json
import os
from pathlib import Path

import pytest

from levo import disk
from levo.errors import NodeError


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), disk.whole_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_until_it_is_whole_it_has_a_name_that_does_not_count(tmp_path: Path) -> None:
    with disk.whole_file(tmp_path / "new/rows.json") as file:
        (only,) = (tmp_path / "new").iterdir()
        assert disk.is_temporary(only) and not disk.is_temporary(tmp_path / "new/rows.json")
        file.write(b"all of it")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.json"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    with disk.whole_file(path) as one, disk.whole_file(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_text() == "one" and list(tmp_path.iterdir()) == [path]


def test_content_is_on_disk_before_its_name_and_the_name_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def watch_sync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def watch_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"all of it"
        done.append(f"name {target.name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watch_sync)
    monkeypatch.setattr(os, "replace", watch_replace)
    disk.write_bytes(tmp_path / "rows.json", b"all of it")
    assert done[0].startswith("sync .rows.json.") and done[1:] == ["name rows.json", f"sync {tmp_path.name}"]


def test_what_the_file_system_refuses_is_said_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where a folder should be")
    with pytest.raises(NodeError) as caught:
        disk.write_json(tmp_path / "results/config.json", {"seed": 1})
    assert caught.value.what == "cannot write: File exists"
    assert caught.value.where.endswith("results/config.json") and "quota" in caught.value.fix


def test_json_is_what_any_reader_takes(tmp_path: Path) -> None:
    disk.write_json(tmp_path / "a.json", {"song": "é"})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"song": "é"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        disk.write_json(tmp_path / "b.json", {"seconds": float("nan")})
    assert not (tmp_path / "b.json").exists()
