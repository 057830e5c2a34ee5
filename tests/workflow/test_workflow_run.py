"""One small RUN from manifest to page with the real rooms, then what must not be made again."""

import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from fakes.clone import Clone, write_small_run
from fakes.outcome import rows, songs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def copied(finished: Clone, tmp_path: Path) -> Clone:
    """The finished RUN once more, with its times, to be changed."""
    return Clone(Path(shutil.copytree(finished.root, tmp_path / "copy", symlinks=True)))


def run_of(clone: Clone) -> Path:
    return clone.root / "results/t"


def touch(path: Path) -> None:
    """Newer than every file of the RUN."""
    os.utime(path)


def times(folder: Path, pattern: str) -> dict[Path, int]:
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.glob(pattern)}


def test_every_song_is_made_and_the_bad_rows_are_refused(finished: Clone) -> None:
    run = run_of(finished)
    made = songs(run)
    assert sorted(made) == [f"song {n}/é" for n in range(6)]
    assert {song["provenance"]["outcome"] for song in made.values()} == {"ok"}
    assert [len(made[f"song {n}/é"]["audio"]) for n in range(3)] == [1, 2, 3]
    assert pq.read_table(run / "manifest/rejected.parquet")["song_id"].to_pylist() == ["too long 0", "too long 1"]


def test_the_files_of_a_run_are_there(finished: Clone) -> None:
    for name in ("config.json", "plan/estimate.json", "reports/report.html", "reports/cost.json", "reports/qa.json"):
        assert (run_of(finished) / name).stat().st_size > 0, name
    for shard in ("00000", "00001"):
        tars = {row["tar"] for row in pq.read_table(run_of(finished) / f"shards/{shard}/audio.parquet").to_pylist()}
        assert tars == {path.name for path in (run_of(finished) / "shards" / shard).glob("*.tar")}


def test_the_second_time_there_is_nothing_to_do(finished: Clone) -> None:
    assert "Nothing to be done" in finished.snakemake()


def test_an_edited_docstring_or_rule_makes_nothing_again(copied: Clone) -> None:
    for name in ("levo/node/shard.py", "levo/songs/manifest.py", "workflow/rules/generate.smk"):
        path = copied.root / name
        path.write_text(path.read_text().replace("shard", "SHARD", 1) + "\n# another comment\n")
    rules = copied.root / "workflow/rules/generate.smk"
    rules.write_text(rules.read_text().replace("exec python", "exec  python"))
    assert copied.planned() == {}


def test_a_touched_manifest_over_one_megabyte_makes_no_song_again(copied: Clone) -> None:
    run = run_of(copied)
    before, audio = songs(run), times(run, "shards/*/*")
    touch(copied.root / "songs.jsonl")
    planned = copied.planned()
    assert planned.keys() == {"check", "plan", "estimate", "report", "all", "total"}
    copied.snakemake()
    assert times(run, "shards/*/*") == audio
    assert songs(run) == before
    assert copied.planned() == {}


def test_a_touched_manifest_makes_only_the_missing_shard(copied: Clone) -> None:
    touch(copied.root / "songs.jsonl")
    for name in ("audio", "tokens", "provenance"):
        (run_of(copied) / f"shards/00001/{name}.parquet").unlink()
    planned = copied.planned()
    assert planned["generate"] == 1 and planned["qa"] == 1 and planned["plan"] == 1


def test_deleted_outputs_are_sealed_again_from_the_parts(copied: Clone) -> None:
    run = run_of(copied)
    before = songs(run)
    parts = times(run, "work/00000/part*") | times(run, "shards/00000/*.tar")
    assert parts
    for name in ("audio", "tokens", "provenance"):
        (run / f"shards/00000/{name}.parquet").unlink()
    copied.snakemake()
    assert times(run, "work/00000/part*") | times(run, "shards/00000/*.tar") == parts
    assert songs(run) == before


def test_a_changed_seed_is_refused_even_by_a_dry_run(finished: Clone) -> None:
    done = finished.try_run("snakemake", *finished.front(), "-n", "--config", "seed=12")
    assert done.returncode != 0
    assert "settings that shape songs changed after songs were made: seed" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_changed_threshold_is_not(finished: Clone) -> None:
    assert finished.planned("--config", "qa={max_dc: 0.5}") == {}


def test_another_manifest_in_a_run_with_songs_is_refused_and_harms_nothing(copied: Clone) -> None:
    run = run_of(copied)
    before, plan = songs(run), (run / "plan/shards.parquet").read_bytes()
    manifest = copied.root / "songs.jsonl"
    manifest.write_text(manifest.read_text().replace("Salt", "Sand", 1))
    done = copied.try_run("snakemake", *copied.front())
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert (run / "plan/shards.parquet").read_bytes() == plan
    assert songs(run) == before


def test_songs_are_made_again_bit_for_bit_by_levo_verify(finished: Clone) -> None:
    finished.run("levo", "verify", "results/t/shards/00000/provenance.parquet", "--songs", "1")


def test_a_song_is_rendered_from_its_tokens(copied: Clone) -> None:
    song = rows(run_of(copied), "tokens")[0]["song_id"]
    copied.run("levo", "render", "results/t/shards/00000/tokens.parquet", "--out", "again", "--song", song)
    assert list((copied.root / "again").rglob("*.flac"))


def test_lengths_are_fitted_to_finished_shards(copied: Clone) -> None:
    shards = [f"results/t/shards/{n}/provenance.parquet" for n in ("00000", "00001")]
    assert "fitted to" in copied.run("levo", "fit-length", *shards, "--out", "lengths.json")


def test_one_song_from_the_command_line(copied: Clone) -> None:
    words = "[verse] Salt on the window ; [outro-short]"
    copied.run("levo", "sing", words, "--seed", "3", "--max-seconds", "2", "--out", "one.flac")
    assert (copied.root / "one.flac").read_bytes()[:4] == b"fLaC"


def test_a_manifest_without_a_good_row_stops_with_the_remedy(clone: Clone) -> None:
    write_small_run(clone)
    (clone.root / "songs.jsonl").write_text('{"song_id": "a"}\n')
    done = clone.try_run("snakemake", *clone.front())
    assert done.returncode != 0
    assert "no song is left" in done.stdout and "line 1:" in done.stdout
    assert "Traceback" not in done.stdout
