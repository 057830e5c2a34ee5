"""A part is whole or does not count, wherever the writer is killed and whatever the disk does."""

import errno
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes.made import commit, made, shard, song

from levo.node import parts as parts_module
from levo.node.audio import decode_flac, pcm_sha256, read_member
from levo.node.parts import PartWriter, read_parts
from levo.node.paths import PartName, ShardPaths
from levo.node.provenance import tokens_sha256

WRITE_TWO_PARTS = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from fakes.made import commit, shard, song
paths = shard(Path(sys.argv[1]))
writer = commit(paths, song(0), song(1))
commit(paths, song(2), song(3, "separate"), writer=writer)
"""


def ids(paths: ShardPaths) -> list[str]:
    return [row["song_id"] for part in read_parts(paths) for row in part.rows]


def quarantined(paths: ShardPaths) -> dict[str, str]:
    text = paths.quarantine / "reasons.jsonl"
    entries = [json.loads(line) for line in text.read_text().splitlines()] if text.exists() else []
    there = {path.name for path in paths.quarantine.glob("*")} - {text.name}
    assert there == {entry["file"] for entry in entries}
    return {entry["file"]: entry["reason"] for entry in entries}


def test_what_is_committed_is_read_whole(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    writer = commit(paths, song(0), song(1, "separate"))
    commit(paths, song(2), writer=writer)
    first, second = read_parts(paths)
    assert (first.name, second.name) == (PartName(1, 0, 0), PartName(1, 0, 1))
    rows = first.rows
    assert [len(row["files"]) for row in rows] == [1, 3] and "tokens" not in rows[0]
    for row in rows:
        for file in row["files"]:
            pcm, rate = decode_flac(read_member(paths.out / file["tar"], file["member"]))
            assert (pcm_sha256(pcm), rate) == (file["pcm_sha256"], file["sample_rate"])
    tokens = np.array(first.table["tokens"][0].as_py(), dtype=np.int32)
    assert tokens_sha256(tokens) == rows[0]["tokens_sha256"]
    assert not quarantined(paths)


def test_equal_songs_give_equal_tars(tmp_path: Path) -> None:
    one, other = shard(tmp_path / "one"), shard(tmp_path / "other")
    commit(one, song(0), song(1))
    commit(other, song(0), song(1), attempt=9, rank=3)
    assert one.tar(1, 0, 0).read_bytes() == other.tar(9, 3, 0).read_bytes()


def test_songs_without_audio_need_no_tar(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    commit(paths, song(0), song(1), outcome="failed")
    assert ids(paths) == [song(0).song_id, song(1).song_id]
    assert not paths.out.exists() or not list(paths.out.iterdir())


def test_nothing_to_commit_is_no_part(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    assert PartWriter(paths, 1, 0).commit() == 0
    assert read_parts(paths) == []


def test_a_writer_never_writes_over_another_part(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    commit(paths, song(0))
    commit(paths, song(1))
    assert ids(paths) == [song(0).song_id, song(1).song_id]


def test_a_song_that_does_not_fit_is_refused_at_once(tmp_path: Path) -> None:
    writer = PartWriter(shard(tmp_path), 1, 0)
    row, files = made(song(0))
    with pytest.raises(ValueError, match="differ"):
        writer.add(row, [])
    with pytest.raises(ValueError, match="mood"):
        writer.add({**row, "mood": 1}, files)
    with pytest.raises(ValueError, match="outcome"):
        writer.add({**row, "outcome": "fine"}, files)
    writer.add(row, files)
    with pytest.raises(ValueError, match="already"):
        writer.add(row, files)
    assert writer.commit() == 1


@pytest.mark.parametrize(
    ("fault", "n_songs"),
    [
        ("part.begin:1", 0), ("part.begin:2", 2), ("part.write:1", 0), ("part.write:2", 2), ("part.rows:1", 0),
        ("part.rows:2", 2), ("part.begin:3", 4),
    ],
)  # fmt: skip
def test_a_kill_leaves_whole_parts_and_nothing_else(tmp_path: Path, root: Path, fault: str, n_songs: int) -> None:
    command = [sys.executable, "-c", WRITE_TWO_PARTS, str(tmp_path)]
    done = subprocess.run(command, cwd=root, env={**os.environ, "LEVO_FAULT": f"{fault}:kill"})
    assert done.returncode == (-9 if n_songs < 4 else 0)
    paths = shard(tmp_path)
    assert ids(paths) == [song(n).song_id for n in range(n_songs)]
    left = {path.name for path in (*paths.out.glob("*"), *paths.out.glob(".*"))}
    assert left == {paths.tar(1, 0, n).name for n in range(n_songs // 2)}
    cut_off = {"part.write": "writing was cut off", "part.rows": "audio without whole rows"}
    reasons = quarantined(paths)
    assert len(reasons) == (fault[:-2] in cut_off)
    assert all(cut_off[fault[:-2]] in reason for reason in reasons.values())
    commit(paths, song(8), attempt=2)
    assert len(ids(paths)) == n_songs + 1


def test_a_kill_in_the_middle_of_a_tar_is_in_the_middle(tmp_path: Path, root: Path) -> None:
    env = {**os.environ, "LEVO_FAULT": "part.write:2:kill"}
    subprocess.run([sys.executable, "-c", WRITE_TWO_PARTS, str(tmp_path)], cwd=root, env=env)
    (torn,) = shard(tmp_path).out.glob(".*.tmp")
    assert 2000 < torn.stat().st_size < shard(tmp_path).tar(1, 0, 0).stat().st_size


def damage_cut_rows(paths: ShardPaths) -> None:
    os.truncate(paths.part(1, 0, 0), paths.part(1, 0, 0).stat().st_size - 100)


def damage_empty_rows(paths: ShardPaths) -> None:
    os.truncate(paths.part(1, 0, 0), 0)


def damage_bit_of_rows(paths: ShardPaths) -> None:
    group = pq.read_metadata(paths.part(1, 0, 0)).row_group(0)
    tokens = group.column(group.num_columns - 1)
    start = tokens.dictionary_page_offset or tokens.data_page_offset
    flip(paths.part(1, 0, 0), start + tokens.total_compressed_size // 2)


def damage_cut_tar(paths: ShardPaths) -> None:
    os.truncate(paths.tar(1, 0, 0), 5000)


def damage_padding_of_tar(paths: ShardPaths) -> None:
    os.truncate(paths.tar(1, 0, 0), paths.tar(1, 0, 0).stat().st_size - 512)


def damage_missing_tar(paths: ShardPaths) -> None:
    paths.tar(1, 0, 0).unlink()


def damage_header_of_tar(paths: ShardPaths) -> None:
    flip(paths.tar(1, 0, 0), 130)


def damage_other_tar(paths: ShardPaths) -> None:
    paths.tar(1, 0, 0).write_bytes(paths.tar(1, 0, 1).read_bytes())


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGES = [value for name, value in sorted(globals().items()) if name.startswith("damage_")]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_part_is_set_aside_with_its_reason_and_costs_no_other(tmp_path: Path, damage) -> None:
    paths = shard(tmp_path)
    writer = commit(paths, song(0), song(1))
    commit(paths, song(2), writer=writer)
    damage(paths)
    said: list[str] = []
    assert [row["song_id"] for part in read_parts(paths, said.append) for row in part.rows] == [song(2).song_id]
    there = [paths.tar(1, 0, 0), paths.part(1, 0, 0)]
    assert not any(path.exists() for path in there)
    assert quarantined(paths).keys() == {
        path.name for path in there if path.suffix == ".parquet" or "missing" not in damage.__name__
    }
    assert said and all("is set aside: " in sentence and "\n" not in sentence for sentence in said)
    commit(paths, song(0), song(1), attempt=2)
    assert len(ids(paths)) == 3 and len(said) == len(quarantined(paths))


def test_the_quarantine_keeps_every_file_of_one_name(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    for _ in range(3):
        commit(paths, song(0))
        damage_cut_rows(paths)
        assert ids(paths) == []
    assert len(quarantined(paths)) == 6


def test_a_full_disk_costs_nothing_that_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = shard(tmp_path)
    writer = PartWriter(paths, 1, 0)
    writer.add(*made(song(0)))
    for point in ("part.begin", "part.write", "part.rows"):
        with monkeypatch.context() as broken:

            def full(name: str, point: str = point) -> None:
                if name == point:
                    raise OSError(errno.ENOSPC, "No space left on device")

            broken.setattr(parts_module, "fault", full)
            with pytest.raises(OSError, match="No space"):
                writer.commit()
    assert not list(paths.out.glob(".*")) and not list(paths.work.glob("part*"))
    assert writer.commit() == 1
    assert ids(paths) == [song(0).song_id] and not quarantined(paths)


def test_a_disk_that_keeps_something_else_is_an_io_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = PartWriter(shard(tmp_path), 1, 0)
    writer.add(*made(song(0)))
    with monkeypatch.context() as broken:
        broken.setattr(parts_module, "tar_pieces", lambda files: [b"\0" * 10240])
        with pytest.raises(OSError, match="differ"):
            writer.commit()
    assert writer.commit() == 1


def test_tars_are_readable_by_any_tar(tmp_path: Path) -> None:
    paths = shard(tmp_path)
    commit(paths, song(0), song(1, "separate"))
    with tarfile.open(paths.tar(1, 0, 0)) as archive:
        keys = [name.split(".", 1)[0] for name in archive.getnames()]
    assert len(keys) == 4 and len(set(keys)) == 2
