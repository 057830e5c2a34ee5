"""Sealing: each planned song in one row, the bill adds up, the done mark comes last, and again changes nothing."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes.made import commit, shard, song

from levo.errors import NodeError
from levo.node.audio import decode_flac, pcm_sha256, read_member
from levo.node.journal import History
from levo.node.ledger import Ledger
from levo.node.paths import ShardPaths
from levo.node.provenance import (
    AUDIO_SCHEMA,
    PROVENANCE_SCHEMA,
    STAGES,
    TOKENS_SCHEMA,
    VOLATILE,
    row_sha256,
    tokens_sha256,
)
from levo.node.seal import SealSummary, read_bill, seal
from levo.settings import LimitSettings, Settings
from levo.songs.song import Song

SONGS = [song(0), song(1, "separate"), song(2), song(3)]
TABLES = {"tokens": TOKENS_SCHEMA, "audio": AUDIO_SCHEMA, "provenance": PROVENANCE_SCHEMA}


@pytest.fixture
def paths(tmp_path: Path) -> ShardPaths:
    return shard(tmp_path)


def do_seal(
    paths: ShardPaths, songs: Sequence[Song] = SONGS, failed_share: float = 0.5, attempt: int = 9
) -> SealSummary:
    return seal(paths, songs, Settings(limits=LimitSettings(failed_share=failed_share)), attempt)


def rows(paths: ShardPaths, table: str = "provenance") -> list[dict]:
    return pq.read_table(paths.out / f"{table}.parquet").to_pylist()


def spend(paths: ShardPaths, attempt: int, rank: int, load_s: float, **songs: float) -> None:
    """A rank's ledger: seconds of main for song_0, song_1, ..."""
    now = [0.0]
    ledger = Ledger(paths, attempt, rank, age_s=0, clock=lambda: now[0])
    now[0] += load_s
    ledger.book("load", [])
    for key, (name, seconds) in enumerate(songs.items()):
        ledger.name(key, song(int(name.removeprefix("song_"))).song_id)
        now[0] += seconds
        ledger.book("main", [key])
    ledger.close()


def test_songs_of_every_outcome_are_in_the_order_of_the_plan(paths: ShardPaths) -> None:
    commit(paths, SONGS[3], SONGS[1])
    commit(paths, SONGS[2], outcome="failed", rank=1)
    commit(paths, SONGS[0], outcome="rejected", attempt=2)
    summary = do_seal(paths)
    assert str(summary) == "2 songs ok, 1 rejected, 1 failed"
    assert [row["song_id"] for row in rows(paths)] == [song.song_id for song in SONGS]
    assert [row["outcome"] for row in rows(paths)] == ["rejected", "ok", "failed", "ok"]
    assert [row["song_id"] for row in rows(paths, "tokens")] == [SONGS[1].song_id, SONGS[3].song_id]
    assert [(row["song_id"], row["stem"]) for row in rows(paths, "audio")] == [
        *((SONGS[1].song_id, stem) for stem in ("mixed", "vocal", "bgm")),
        (SONGS[3].song_id, "mixed"),
    ]
    for name, schema in TABLES.items():
        assert pq.read_schema(paths.out / f"{name}.parquet").equals(schema)


def test_every_hash_in_the_tables_is_of_what_lies_beside_them(paths: ShardPaths) -> None:
    commit(paths, *SONGS)
    do_seal(paths)
    for row in rows(paths):
        assert row["row_sha256"] == row_sha256(row)
    for row in rows(paths, "tokens"):
        assert tokens_sha256(np.array(row["tokens"], dtype=np.int32)) == row["tokens_sha256"]
    for row in rows(paths, "audio"):
        flac = read_member(paths.out / row["tar"], row["member"])
        assert hashlib.sha256(flac).hexdigest() == row["flac_sha256"]
        assert pcm_sha256(decode_flac(flac)[0]) == row["pcm_sha256"]
    listed = json.loads(pq.read_schema(paths.audio).metadata[b"levo.tars"])
    assert [tar["tar"] for tar in listed] == [path.name for path in sorted(paths.out.glob("*.tar"))]
    for tar in listed:
        content = (paths.out / tar["tar"]).read_bytes()
        assert (tar["bytes"], tar["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())


def test_the_tokens_suffice_to_render(paths: ShardPaths) -> None:
    commit(paths, *SONGS)
    do_seal(paths)
    (row, *_) = rows(paths, "tokens")
    needed = {"seed", "gen_type", "renditions", "codec_steps", "codec_guidance", "model_digest", "model_dir", "dtype"}
    assert all(row[name] is not None for name in needed)
    assert [len(codes) for codes in row["tokens"]] == [row["frames"]] * 3


def test_shards_with_and_without_texts_are_one_data_set(tmp_path: Path) -> None:
    bare, full = shard(tmp_path / "a"), shard(tmp_path / "b")
    commit(bare, *SONGS, outcome="rejected")
    commit(full, *SONGS)
    for paths in (bare, full):
        do_seal(paths)
    for name, schema in TABLES.items():
        files = [os.fspath(paths.out / f"{name}.parquet") for paths in (bare, full)]
        assert pq.ParquetDataset(files).read().schema.equals(schema)


def test_sealing_again_gives_the_same_tables(paths: ShardPaths) -> None:
    commit(paths, *SONGS)
    spend(paths, 1, 0, 2, song_0=1, song_1=3)
    do_seal(paths)
    first = {name: rows(paths, name) for name in TABLES}
    do_seal(paths, attempt=10)
    assert {name: rows(paths, name) for name in TABLES} == first
    for name in TABLES:
        (paths.out / f"{name}.parquet").unlink()
    do_seal(paths, attempt=11)
    assert {name: rows(paths, name) for name in TABLES} == first


def test_parts_cut_elsewhere_give_the_same_but_for_place_and_cost(tmp_path: Path) -> None:
    one, other = shard(tmp_path / "one"), shard(tmp_path / "other")
    commit(one, *SONGS)
    commit(other, SONGS[2], SONGS[0], attempt=1, rank=1)
    commit(other, SONGS[3], SONGS[1], attempt=4)
    spend(other, 4, 0, 1, song_3=2)
    for paths in (one, other):
        do_seal(paths)
    assert steady(rows(one)) == steady(rows(other))
    assert steady(rows(one, "audio")) == steady(rows(other, "audio"))
    assert steady(rows(one, "tokens")) == steady(rows(other, "tokens"))


def steady(table: list[dict]) -> list[dict]:
    kept = [{name: value for name, value in row.items() if name not in VOLATILE} for row in table]
    return [{**row, "files": steady(row["files"])} if "files" in row else row for row in kept]


def test_cost_is_in_the_rows_and_adds_up(paths: ShardPaths) -> None:
    commit(paths, SONGS[0], SONGS[1])
    commit(paths, SONGS[2], SONGS[3], rank=1)
    spend(paths, 1, 0, 10, song_0=4, song_1=6, song_2=3)
    spend(paths, 1, 1, 20, song_2=5, song_3=7)
    do_seal(paths)
    assert [row["gpu_seconds"] for row in rows(paths)] == [4, 6, 5, 7]
    assert [row["main_s"] for row in rows(paths)] == [4, 6, 5, 7]
    assert all(row[f"{stage}_s"] == 0 for row in rows(paths) for stage in STAGES if stage != "main")
    bill = read_bill(paths.provenance)
    assert (bill.wall_s, bill.songs_s, bill.load_s, bill.idle_s, bill.lost_s) == (55, 22, 30, 0, 3)
    assert bill.attempts == [{"attempt": 1, "ranks": 2, "wall_s": 55, "longest_s": 32}]


def test_of_a_song_made_twice_one_copy_stays_and_the_other_is_lost_work(paths: ShardPaths) -> None:
    commit(paths, SONGS[0], SONGS[1], attempt=1)
    commit(paths, SONGS[1], SONGS[2], attempt=2)
    commit(paths, SONGS[0], attempt=3)
    commit(paths, SONGS[3], attempt=3)
    spend(paths, 1, 0, 1, song_0=2, song_1=3)
    spend(paths, 2, 0, 1, song_1=5, song_2=7)
    spend(paths, 3, 0, 1, song_0=11, song_3=13)
    summary = do_seal(paths)
    assert summary.n_twice == 2
    assert [(row["song_id"], row["attempt"]) for row in rows(paths)] == [
        (SONGS[0].song_id, 1), (SONGS[1].song_id, 1), (SONGS[2].song_id, 2), (SONGS[3].song_id, 3),
    ]  # fmt: skip
    assert summary.bill.lost_s == 5 + 11 and summary.bill.songs_s == 2 + 3 + 7 + 13
    assert len(rows(paths, "tokens")) == 4
    named = {row["tar"] for row in rows(paths, "audio")}
    assert named == {path.name for path in paths.out.glob("*.tar")}, "a tar without a song that counts is set aside"
    again = do_seal(paths, attempt=10)
    assert again.bill.lost_s == 16 and steady(rows(paths)) == steady(rows(paths))


def test_a_made_song_counts_before_a_failed_one(paths: ShardPaths) -> None:
    commit(paths, *SONGS[:2], outcome="failed")
    commit(paths, *SONGS[2:])
    commit(paths, SONGS[0], attempt=2)
    spend(paths, 1, 0, 1, song_0=5, song_1=7)
    spend(paths, 2, 0, 1, song_0=3)
    summary = do_seal(paths)
    assert [row["outcome"] for row in rows(paths)] == ["ok", "failed", "ok", "ok"]
    assert summary.bill.lost_s == 5 and rows(paths)[1]["gpu_seconds"] == 7


def test_of_failures_the_last_try_counts(paths: ShardPaths) -> None:
    for attempt in (1, 2):
        commit(paths, *SONGS[:1], outcome="failed", attempt=attempt)
    commit(paths, *SONGS[1:])
    do_seal(paths)
    assert rows(paths)[0]["attempt"] == 2


def test_nothing_is_written_while_a_song_is_missing(paths: ShardPaths) -> None:
    commit(paths, *SONGS[1:])
    with pytest.raises(NodeError, match="1 of 4 songs have no row yet") as raised:
        do_seal(paths)
    assert SONGS[0].song_id in raised.value.what
    assert not list(paths.out.glob("*.parquet"))


def test_a_shard_without_any_part_is_an_error_in_words(paths: ShardPaths) -> None:
    with pytest.raises(NodeError, match="4 of 4 songs"):
        do_seal(paths)


def test_a_song_that_nobody_planned_is_refused(paths: ShardPaths) -> None:
    commit(paths, *SONGS)
    with pytest.raises(NodeError, match="not in the shard's plan"):
        do_seal(paths, SONGS[:3])
    assert not list(paths.out.glob("*.parquet"))


@pytest.mark.parametrize(("limit", "is_sealed"), [(0.0, False), (0.2, False), (0.25, True), (1.0, True)])
def test_too_many_failures_leave_the_shard_open(paths: ShardPaths, limit: float, is_sealed: bool) -> None:
    commit(paths, *SONGS[1:])
    commit(paths, SONGS[0], outcome="failed")
    if is_sealed:
        do_seal(paths, failed_share=limit)
    else:
        with pytest.raises(NodeError, match="1 of 4 songs failed") as raised:
            do_seal(paths, failed_share=limit)
        assert "levo retry" in raised.value.fix
    assert paths.provenance.exists() == is_sealed


def test_rejected_songs_are_no_failures(paths: ShardPaths) -> None:
    commit(paths, *SONGS, outcome="rejected")
    assert do_seal(paths, failed_share=0).tally.rejected == 4


def test_a_damaged_part_is_told_in_the_journal_and_its_songs_are_missing(paths: ShardPaths) -> None:
    writer = commit(paths, SONGS[0], SONGS[1])
    commit(paths, SONGS[2], SONGS[3], writer=writer)
    os.truncate(paths.part(1, 0, 1), paths.part(1, 0, 1).stat().st_size - 100)
    with pytest.raises(NodeError, match="2 of 4 songs"):
        do_seal(paths)
    told = [event.fields["sentence"] for event in History.read(paths).events if event.name == "quarantine"]
    assert len(told) == 2 and "part-a001-r0-00001.parquet is set aside" in told[0]
    commit(paths, SONGS[2], SONGS[3], attempt=2)
    assert do_seal(paths).tally.ok == 4


@pytest.mark.parametrize("was_sealed", [False, True])
def test_killed_before_the_done_mark_there_is_none(paths: ShardPaths, root: Path, was_sealed: bool) -> None:
    commit(paths, *SONGS)
    if was_sealed:
        do_seal(paths)
    code = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/node"); sys.path.insert(0, "tests")
from test_seal import do_seal, shard
do_seal(shard(Path(sys.argv[1])))
"""
    env = {**os.environ, "LEVO_FAULT": "seal.before_done:1:kill"}
    done = subprocess.run([sys.executable, "-c", code, str(paths.run_dir)], cwd=root, env=env)
    assert done.returncode == -9
    assert paths.tokens.exists() and paths.audio.exists() and not paths.provenance.exists()
    do_seal(paths)
    assert len(rows(paths)) == 4
    assert not [path.name for path in paths.out.iterdir() if path.name.startswith(".")]


def test_a_bill_is_read_only_from_a_sealed_shard(paths: ShardPaths) -> None:
    commit(paths, *SONGS)
    do_seal(paths)
    with pytest.raises(NodeError, match="no bill"):
        read_bill(paths.tokens)
    with pytest.raises(NodeError, match="not readable"):
        read_bill(paths.out / "none.parquet")
