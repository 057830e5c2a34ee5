"""levo plan: equal shards, nothing lost or twice, the same plan from the same songs."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from levo.errors import ConfigError, ManifestError
from levo.settings import CostSettings, PlanSettings, Settings, freeze
from levo.songs.plan import SHARD_SCHEMA, Calibration, assign, load_calibration, plan_run, read_shard
from levo.songs.song import SONG_SCHEMA, Song

BRIEF = Path(__file__).parents[2] / "config" / "calibration.brief.json"


def songs(n: int, seed: int = 0) -> list[Song]:
    draw = random.Random(seed)
    made = []
    for i in range(n):
        gen_type, renditions = draw.choice(["mixed", "separate"]), draw.choice([1, 2])
        frames = draw.choice([750, 4500, draw.randint(100, 6750)])
        made.append(
            Song(f"song {i}", "[verse] 雪", None, gen_type, renditions, i, 270.0, "zh", 9, 5, frames, "m.jsonl", i + 1)
        )
    return made


def start(run_dir: Path, rows: list[Song], n_shards: int) -> Path:
    """A RUN that is ready for `levo plan`, without the guard against changed settings."""
    (run_dir / "config.json").unlink(missing_ok=True)
    freeze(Settings(plan=PlanSettings(n_shards=n_shards), cost=CostSettings(calibration=str(BRIEF))), run_dir)
    (run_dir / "manifest").mkdir(exist_ok=True)
    table = pa.Table.from_pylist([vars(row) for row in rows], SONG_SCHEMA)
    pq.write_table(table, run_dir / "manifest" / "songs.parquet")
    return run_dir / "plan" / "shards.parquet"


def has_shards(run_dir: Path) -> None:
    (run_dir / "work" / "00000").mkdir(parents=True)
    (run_dir / "work" / "00000" / "lease.json").write_text("{}")


def test_nothing_is_lost_or_twice_and_shards_are_equal(tmp_path: Path) -> None:
    rows = songs(500)
    plan = start(tmp_path, rows, 7)
    summary = plan_run(tmp_path)
    shards = [read_shard(plan, shard) for shard in range(7)]
    planned = [song for shard in shards for song in shard]
    assert sorted(planned, key=lambda song: song.seed) == rows
    assert summary.heaviest / summary.lightest < 1.01
    assert (summary.n_songs, summary.n_shards) == (500, 7)
    assert summary.audio_seconds == pytest.approx(sum(song.predicted_frames * song.renditions for song in rows) / 25)


def test_file_has_the_promised_order_schema_and_row_groups(tmp_path: Path) -> None:
    plan = start(tmp_path, songs(60), 4)
    summary = plan_run(tmp_path)
    file = pq.ParquetFile(plan)
    assert file.schema_arrow.equals(SHARD_SCHEMA, check_metadata=True)
    assert file.num_row_groups == 4
    rows = file.read().to_pylist()
    keys = [(row["shard"], -row["predicted_gpu_seconds"], row["song_id"]) for row in rows]
    assert keys == sorted(keys)
    assert sum(row["predicted_gpu_seconds"] for row in rows) == pytest.approx(summary.gpu_seconds)


def test_plan_depends_on_the_set_of_songs_and_not_on_their_order(tmp_path: Path) -> None:
    rows = songs(200)
    plan = start(tmp_path, rows, 5)
    plan_run(tmp_path)
    before = pq.read_table(plan)
    random.Random(1).shuffle(rows)
    start(tmp_path, rows, 5)
    plan_run(tmp_path)
    assert pq.read_table(plan).equals(before)


def test_equal_costs_are_spread_by_id_hash() -> None:
    ids = [f"{i:04}" for i in range(400)]
    shards = assign(np.ones(400), ids, 4)
    assert np.bincount(shards).tolist() == [100] * 4
    assert shards[:8].tolist() != [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_run_with_shards_keeps_its_plan(tmp_path: Path) -> None:
    rows = songs(50)
    plan = start(tmp_path, rows, 4)
    plan_run(tmp_path)
    before = pq.read_table(plan)
    has_shards(tmp_path)
    plan.unlink()  # as Snakemake does before it runs the rule again
    moved = [Song(**{**vars(song), "file": "moved.csv", "line": song.line + 1}) for song in rows]
    start(tmp_path, moved, 4)
    plan_run(tmp_path)
    assert pq.read_table(plan).drop_columns(["file", "line"]).equals(before.drop_columns(["file", "line"]))


def test_a_run_with_shards_refuses_other_songs_and_another_number_of_shards(tmp_path: Path) -> None:
    rows = songs(50)
    plan = start(tmp_path, rows, 4)
    plan_run(tmp_path)
    has_shards(tmp_path)
    content = plan.read_bytes()
    other = [*rows[:-1], Song(**{**vars(rows[-1]), "lyrics": "[verse] 雨"})]
    longer = [*rows[:-1], Song(**{**vars(rows[-1]), "predicted_frames": 6750})]
    for changed, n_shards in ((rows, 5), (rows[1:], 4), (other, 4), (longer, 4)):
        start(tmp_path, changed, n_shards)
        with pytest.raises(ConfigError, match="has shards already"):
            plan_run(tmp_path)
        assert plan.read_bytes() == content
    start(tmp_path, rows, 4)
    plan_run(tmp_path)


def test_a_run_without_shards_may_be_planned_anew(tmp_path: Path) -> None:
    plan = start(tmp_path, songs(50), 4)
    plan_run(tmp_path)
    start(tmp_path, songs(40, seed=3), 2)
    assert plan_run(tmp_path).n_shards == 2
    assert pq.ParquetFile(plan).num_row_groups == 2


def test_what_cannot_be_planned_is_said(tmp_path: Path) -> None:
    plan = start(tmp_path, songs(3), 4)
    with pytest.raises(ConfigError, match="3 songs cannot fill 4 shards") as error:
        plan_run(tmp_path)
    assert "3 or less" in error.value.fix
    start(tmp_path, [], 4)
    with pytest.raises(ConfigError) as error:
        plan_run(tmp_path)
    assert "rejected.parquet" in error.value.fix
    with pytest.raises(ConfigError, match="no readable plan"):
        read_shard(plan, 0)
    (tmp_path / "manifest" / "songs.parquet").unlink()
    with pytest.raises(ManifestError, match="no readable songs"):
        plan_run(tmp_path)
    start(tmp_path, songs(8), 4)
    plan_run(tmp_path)
    with pytest.raises(ConfigError, match="no shard 4"):
        read_shard(plan, 4)


def test_cost_of_a_song_counts_its_codec_passes() -> None:
    speed = Calibration(
        name="n", source="s", x_realtime=10, upstream_x_realtime=1, codec_share=0.25, seconds_per_song=0.5
    )
    assert speed.gpu_seconds(4500, 1, "mixed") == pytest.approx(18.5)
    assert speed.gpu_seconds(4500, 2, "separate") == pytest.approx(0.5 + 13.5 + 6 * 4.5)


def test_the_briefs_figures_are_the_briefs() -> None:
    brief = load_calibration(BRIEF)
    assert (brief.x_realtime, brief.upstream_x_realtime) == (8.52, 0.673)
    assert brief.x_realtime == pytest.approx(1302.5 / 152.9, rel=1e-3)
    assert brief.codec_share == pytest.approx(32.5 / 152.9, rel=1e-3)
    assert brief.gpu_seconds(4500, 1, "vocal") == pytest.approx(21.1, rel=2e-3)


def test_a_wrong_speed_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_calibration(tmp_path / "none.json")
    (tmp_path / "c.json").write_text('{"name": "x", "source": "y", "x_realtime": -1}')
    with pytest.raises(ConfigError, match="x_realtime"):
        load_calibration(tmp_path / "c.json")
