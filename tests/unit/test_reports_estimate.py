"""levo estimate: what a plan costs, by the speed file, beside upstream's loop."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from levo.errors import ConfigError
from levo.reports.estimate import estimate_run, read_estimate
from levo.settings import CostSettings, NodeSettings, PlanSettings, Settings, freeze
from levo.songs.plan import plan_run
from levo.songs.song import SONG_SCHEMA, Song

BRIEF = Path(__file__).parents[2] / "config" / "calibration.brief.json"


def plan(run_dir: Path, songs: list[Song], n_shards: int, **node: int) -> Path:
    """A planned RUN."""
    settings = Settings(
        run="t",
        plan=PlanSettings(n_shards=n_shards),
        node=NodeSettings(**node),
        cost=CostSettings(calibration=str(BRIEF)),
    )
    freeze(settings, run_dir)
    (run_dir / "manifest").mkdir()
    table = pa.Table.from_pylist([vars(song) for song in songs], SONG_SCHEMA)
    pq.write_table(table, run_dir / "manifest" / "songs.parquet")
    plan_run(run_dir)
    return run_dir


def song(number: int, seconds: float = 180.0, renditions: int = 1, gen_type: str = "mixed") -> Song:
    frames = int(seconds * 25)
    return Song(
        f"s{number}", "[verse] a", None, gen_type, renditions, number, 270.0, "en", 9, 5, frames, "m.jsonl", number
    )


def test_three_minute_songs_cost_the_briefs_figures(tmp_path: Path) -> None:
    """Without the loading: the brief's 5,870 GPU-hours and 423 k core-hours a million."""
    made = estimate_run(plan(tmp_path, [song(n) for n in range(200)], 4))
    assert made.songs_s / 3600 * 1e6 / 200 == pytest.approx(5870, rel=1e-3)
    assert made.million.gpu_hours == pytest.approx(5870, rel=1e-3)
    assert made.million.core_hours == pytest.approx(422_535, rel=1e-3)
    assert made.audio_s == 200 * 180


def test_upstreams_loop_stands_beside_with_the_same_loading(tmp_path: Path) -> None:
    made = estimate_run(plan(tmp_path, [song(n) for n in range(200)], 4))
    load_hours = 4 * 4 * 145.5 / 3600
    assert (made.upstream.gpu_hours - load_hours) * 1e6 / 200 == pytest.approx(74_300, rel=1e-3)
    times = (made.upstream.gpu_hours - load_hours) / (made.billed.gpu_hours - load_hours)
    assert times == pytest.approx(12.66, rel=1e-3)


def test_loading_and_whole_nodes_are_billed(tmp_path: Path) -> None:
    made = estimate_run(plan(tmp_path, [song(n) for n in range(8)], 2))
    songs_s = 8 * 180 / 8.52
    assert made.wall_s == pytest.approx([145.5 + songs_s / 2 / 4] * 2)
    assert made.billed.gpu_hours == pytest.approx((songs_s + 2 * 4 * 145.5) / 3600)
    assert made.billed.node_hours == pytest.approx(made.billed.gpu_hours / 4)
    assert made.billed.core_hours == pytest.approx(made.billed.node_hours * 288)


def test_stages_add_up_to_the_bill_even_with_ranks_fewer_than_gpus(tmp_path: Path) -> None:
    made = estimate_run(plan(tmp_path, [song(n) for n in range(8)], 2, ranks=3)).as_dict()
    assert sum(made["gpu_hours_by_stage"].values()) == pytest.approx(made["gpu_hours"])
    assert made["gpu_hours_by_stage"]["GPUs without a rank"] > 0


def test_renditions_and_stems_cost_codec_time_only(tmp_path: Path) -> None:
    plain = estimate_run(plan(tmp_path / "a", [song(0)], 1))
    rich = estimate_run(plan(tmp_path / "b", [song(0, renditions=2, gen_type="separate")], 1))
    codec_s = 180 / 8.52 * 0.2126
    assert rich.songs_s - plain.songs_s == pytest.approx(5 * codec_s)
    assert rich.shards[0].n_files == 6
    assert rich.audio_s == 2 * plain.audio_s


def test_file_says_what_the_table_says(tmp_path: Path) -> None:
    made = estimate_run(plan(tmp_path, [song(n) for n in range(8)], 2))
    stored = read_estimate(tmp_path / "plan" / "estimate.json")
    assert stored == json.loads(json.dumps(made.as_dict()))
    assert stored["n_songs"] == 8 and stored["n_shards"] == 2
    assert stored["shard_wall_s"]["total"] == pytest.approx(sum(made.wall_s))
    table = str(made)
    assert "GPU-hours" in table and "node-hours" in table and "core-hours" in table
    assert "upstream's loop" in table and "brief: GH200" in table
    assert max(len(line) for line in table.splitlines()) <= 120


def test_missing_plan_and_foreign_estimate_are_said_in_words(tmp_path: Path) -> None:
    freeze(Settings(cost=CostSettings(calibration=str(BRIEF))), tmp_path)
    with pytest.raises(ConfigError, match="no readable plan"):
        estimate_run(tmp_path)
    (tmp_path / "estimate.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="another format"):
        read_estimate(tmp_path / "estimate.json")
