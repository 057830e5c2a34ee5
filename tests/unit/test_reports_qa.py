"""levo qa and qa.json: measured from the files on disk, whatever state they are in."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.run import CAPPED, FAILS, HOSTILE, RICH, SILENT, make_run

from levo.errors import NodeError
from levo.measures import COLUMNS
from levo.reports import qa
from levo.reports.gather import Run
from levo.reports.qa import FLAGS, QA_SCHEMA, qa_shard
from levo.reports.summary import summarise
from levo.settings import of_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("qa") / "t")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy, to be damaged."""
    return Path(shutil.copytree(finished, tmp_path / "t"))


def rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(run_dir.glob("qa/*.parquet")) for row in pq.read_table(path).to_pylist()]


def by_song(run_dir: Path, number: int) -> list[dict[str, Any]]:
    return [row for row in rows(run_dir) if row["song_id"] == f"song {number:02d}"]


def shard_of(run_dir: Path, number: int) -> int:
    return int(by_song(run_dir, number)[0]["shard"])


def test_every_file_has_a_row_and_a_failed_song_has_none(finished: Path) -> None:
    found = rows(finished)
    assert len(found) == 6 + 6  # six songs of one file, one of 3 stems x 2 renditions, one failed
    assert not by_song(finished, FAILS)
    assert {(row["rendition"], row["stem"]) for row in by_song(finished, RICH)} == {
        (r, stem) for r in (0, 1) for stem in ("mixed", "vocal", "bgm")
    }


def test_sound_files_match_frames_and_recorded_samples(finished: Path) -> None:
    for row in rows(finished):
        assert row["frames_match"] is True and row["pcm_match"] is True and row["error"] is None
        assert row["samples"] == row["frames"] * 1920
        assert row["seconds"] == row["frames"] / 25


def test_flags_say_silence_and_cap(finished: Path) -> None:
    assert by_song(finished, SILENT)[0]["flags"] == ["silent"]
    assert by_song(finished, CAPPED)[0]["flags"] == ["cap"]
    assert by_song(finished, 5)[0]["flags"] == []


def test_schema_is_explicit_versioned_and_explained(finished: Path) -> None:
    for path in finished.glob("qa/*.parquet"):
        schema = pq.read_schema(path)
        assert schema.equals(QA_SCHEMA)
        assert schema.metadata[b"levo.schema"] == b"qa" and schema.metadata[b"levo.schema_version"] == b"1"
    assert QA_SCHEMA.field("lufs").metadata[b"unit"] == b"LUFS"
    assert {column.name for column in COLUMNS} <= set(QA_SCHEMA.names)


def test_an_undecodable_file_is_a_row_with_a_flag_and_costs_no_other(run: Path) -> None:
    shard = shard_of(run, 5)
    before = [row for row in rows(run) if row["song_id"] != "song 05"]
    tar = next(run.glob(f"shards/{shard:05d}/*.tar"))
    content = bytearray(tar.read_bytes())
    member = by_song(run, 5)[0]["member"].encode()
    start = content.index(member) + 512  # the file begins a block after its header
    content[start : start + 64] = bytes(64)
    tar.write_bytes(content)
    qa_shard(run, shard)
    damaged = by_song(run, 5)[0]
    assert damaged["flags"] == ["unreadable"] and "FLAC" in damaged["error"]
    assert damaged["samples"] is None and damaged["lufs"] is None and damaged["frames_match"] is None
    assert [row for row in rows(run) if row["song_id"] != "song 05"] == before


def test_a_missing_tar_makes_every_song_unreadable_without_a_crash(run: Path) -> None:
    shard = shard_of(run, 5)
    next(run.glob(f"shards/{shard:05d}/*.tar")).unlink()
    qa_shard(run, shard)
    assert {tuple(row["flags"]) for row in rows(run) if row["shard"] == shard} <= {
        ("unreadable",),
        ("unreadable", "cap"),
    }


def test_other_samples_and_other_length_are_flagged(run: Path) -> None:
    shard = shard_of(run, 5)
    path = run / f"shards/{shard:05d}/audio.parquet"
    table = pq.read_table(path)
    swapped = table.to_pylist()
    mine = [i for i, row in enumerate(swapped) if row["song_id"] == "song 05"][0]
    other = [i for i, row in enumerate(swapped) if row["song_id"] != "song 05"][0]
    for name in ("member", "tar"):
        swapped[mine][name] = swapped[other][name]
    pq.write_table(type(table).from_pylist(swapped, table.schema), path)
    qa_shard(run, shard)
    assert by_song(run, 5)[0]["flags"][:2] == ["altered", "length"]


def test_an_unfinished_shard_is_said_in_words(run: Path) -> None:
    (run / "shards/00001/provenance.parquet").unlink()
    with pytest.raises(NodeError, match="not been made yet"):
        qa_shard(run, 1)


def test_summary_counts_flags_spreads_and_losses(finished: Path) -> None:
    made = summarise(Run.read(finished))
    json.dumps(made, allow_nan=False)
    assert made["songs"] == {"ok": 7, "rejected": 0, "failed": 1}
    assert (made["n_files"], made["n_files_flagged"]) == (12, 2)
    assert made["flags"]["silent"] == {"files": 1, "songs": 1, "meaning": FLAGS["silent"]}
    assert made["flags"]["cap"]["files"] == 1
    assert [row["song_id"] for row in made["outliers"]] == [f"song {SILENT:02d}", f"song {CAPPED:02d}"]
    assert made["rejected_rows"] == {"n": 2, "by_reason": {"missing_lyrics": 1, "unknown_tag": 1}}
    assert made["songs_without_audio"][0]["error"] == "the audio is not finite <nan>"
    assert made["thresholds"] == of_run(finished).qa.model_dump()


def test_summary_spreads_are_those_of_the_rows(finished: Path) -> None:
    made = summarise(Run.read(finished))
    lufs = sorted(row["lufs"] for row in rows(finished) if row["lufs"] is not None)
    assert made["measures"]["lufs"]["n"] == len(lufs) == 11 and made["measures"]["lufs"]["n_null"] == 1
    assert made["measures"]["lufs"]["min"] == lufs[0] and made["measures"]["lufs"]["max"] == lufs[-1]
    assert made["extremes"]["lufs"]["least"]["lufs"] == lufs[0]
    assert made["length_prediction"]["bias_s"] == pytest.approx(0.4)  # each is 10 frames longer than predicted
    assert made["length_prediction"]["n"] == 6  # neither the failed song nor the one at its cap


def test_hostile_ids_are_only_data(finished: Path) -> None:
    row = next(row for row in rows(finished) if row["song_id"] == HOSTILE)
    assert row["flags"] == [] and "script" not in row["member"]


def test_rows_are_the_same_from_several_processes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qa, "FILES_A_PROCESS", 2)
    before = pq.read_table(run / "qa/00000.parquet")
    (run / "qa/00000.parquet").unlink()
    assert pq.read_table(qa_shard(run, 0, processes=2)).equals(before)


def test_few_files_are_measured_without_processes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qa, "ProcessPoolExecutor", None)
    assert qa_shard(run, 0, processes=8).exists()


def kill_oneself(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_said_and_leaves_no_table(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qa, "FILES_A_PROCESS", 2)
    monkeypatch.setattr(qa, "measure_file", kill_oneself)
    (run / "qa/00000.parquet").unlink()
    with pytest.raises(NodeError, match="a process that measured files was killed") as caught:
        qa_shard(run, 0, processes=2)
    assert caught.value.where == "shard 0" and "memory" in caught.value.fix
    assert not (run / "qa/00000.parquet").exists()


def test_long_measuring_says_how_far_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("levo.pace.EVERY_S", 0.0)
    qa_shard(run, 0)
    said = capsys.readouterr().out.splitlines()
    n = len([row for row in rows(run) if row["shard"] == 0])
    assert len(said) == n and said[-1].startswith(f"{n} of {n} files, ") and said[-1].endswith("0 s left")
