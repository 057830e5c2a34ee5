"""cost.json and calibration.json: every second of the ranks is somewhere, and the run predicts itself."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fakes.run import IDLE_S, LOAD_S, STAGE_S, make_run

from levo.node.paths import RunPaths
from levo.reports.calibrate import calibrate
from levo.reports.cost import account
from levo.reports.estimate import read_estimate
from levo.reports.gather import Run
from levo.songs.plan import load_calibration

SONG_S = sum(STAGE_S.values())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("cost") / "t")


@pytest.fixture(scope="module")
def cost(finished: Path) -> dict[str, Any]:
    return account(Run.read(finished), read_estimate(finished / "plan/estimate.json"))


def test_songs_load_idle_and_lost_work_are_the_wall_time(cost: dict[str, Any]) -> None:
    assert cost["gpu_seconds"] == pytest.approx(
        {
            "songs_s": 8 * SONG_S,
            "load_s": 2 * LOAD_S,
            "idle_s": 2 * IDLE_S,
            "lost_s": 0,
            "wall_s": 8 * SONG_S + 2 * (LOAD_S + IDLE_S),
        }
    )
    assert cost["closure_error"] == pytest.approx(0, abs=1e-9)
    assert sum(cost["gpu_seconds_by_stage"].values()) == pytest.approx(cost["gpu_seconds"]["wall_s"])


def test_songs_of_every_outcome_are_charged(cost: dict[str, Any]) -> None:
    assert cost["gpu_seconds_by_outcome"] == pytest.approx({"ok": 7 * SONG_S, "rejected": 0, "failed": SONG_S})


def test_hours_and_speed_follow_from_the_wall_time(finished: Path, cost: dict[str, Any]) -> None:
    wall_s = 8 * SONG_S + 2 * (LOAD_S + IDLE_S)
    assert cost["gpu_hours"] == pytest.approx(wall_s / 3600)
    assert cost["node_hours"] == pytest.approx(wall_s / 3600 / 4)
    assert cost["core_hours"] == pytest.approx(wall_s / 3600 / 4 * 288)
    tables = [pq.read_table(path) for path in finished.glob("shards/*/provenance.parquet")]
    audio_s = sum((row["seconds"] or 0) * row["renditions"] for table in tables for row in table.to_pylist())
    assert cost["x_realtime"] == pytest.approx(audio_s / wall_s)
    assert cost["per_million_3_minute_songs"]["gpu_hours"] == pytest.approx(180e6 / cost["x_realtime"] / 3600)


def test_a_cpu_run_says_that_its_hours_are_rank_hours(cost: dict[str, Any]) -> None:
    assert cost["unit"]["name"] == "rank" and "say nothing about a GPU" in cost["unit"]["note"]


def test_planned_stands_beside_actual(cost: dict[str, Any]) -> None:
    compared = {row["what"]: row for row in cost["planned_and_actual"]}
    estimate = json.loads(json.dumps(compared))  # plain JSON
    assert estimate["songs"]["planned"] == estimate["songs"]["actual"] == 8
    assert compared["load"]["actual"] == pytest.approx(2 * LOAD_S / 3600)
    language_s = 8 * sum(STAGE_S[stage] for stage in ("prefill", "main", "sub"))
    assert compared["language model"]["actual"] == pytest.approx(language_s / 3600)
    assert compared["all together"]["actual_over_planned"] == pytest.approx(
        cost["gpu_hours"] / compared["all together"]["planned"]
    )
    assert compared["lost work"]["planned"] is None and compared["lost work"]["actual_over_planned"] is None
    assert compared["longest shard"]["actual"] == pytest.approx(4 * SONG_S + LOAD_S + IDLE_S)


def test_a_killed_attempt_is_lost_work_and_the_sum_still_closes(tmp_path: Path) -> None:
    """A ledger as a kill leaves it: 20 s for a song that another attempt made again, 2 s that nothing booked."""
    run_dir = make_run(tmp_path / "t")
    paths = RunPaths(run_dir).shard(0)
    before = json.loads(paths.ledger(1, 0).read_text())
    song_id = next(iter(before["by_song"]))
    killed = {
        "attempt": 9, "rank": 0, "wall_s": 25.0, "open_s": 2.0, "nobody": {"load": 3.0, "idle": 0.0}, "lost": {},
        "by_song": {song_id: {"main": 20.0}},
    }  # fmt: skip
    paths.ledger(9, 0).write_text(json.dumps(killed))
    reseal(run_dir, 0)
    made = account(Run.read(run_dir), read_estimate(run_dir / "plan/estimate.json"))
    assert made["gpu_seconds"]["lost_s"] == pytest.approx(22.0)
    assert made["closure_error"] == pytest.approx(0, abs=1e-9)
    assert {(a["shard"], a["attempt"]) for a in made["attempts"]} == {(0, 1), (0, 9), (1, 1)}


def reseal(run_dir: Path, shard: int) -> None:
    from levo.node.seal import seal
    from levo.settings import of_run
    from levo.songs.plan import read_shard

    seal(RunPaths(run_dir).shard(shard), read_shard(RunPaths(run_dir).plan, shard), of_run(run_dir), 1)


def test_a_run_predicts_itself_from_its_own_calibration(finished: Path) -> None:
    """Predicted from the real lengths with calibration.json, the songs cost what they were measured to cost."""
    run = Run.read(finished)
    made = calibrate(run, read_estimate(finished / "plan/estimate.json"))
    assert made is not None
    songs = run.ok.to_pylist()
    predicted = sum(made.gpu_seconds(row["frames"], row["renditions"], row["gen_type"]) for row in songs)
    assert predicted == pytest.approx(7 * SONG_S)
    assert made.load_seconds == pytest.approx(LOAD_S)
    assert made.seconds_per_song == pytest.approx(STAGE_S["prefill"])
    assert made.upstream_x_realtime == 0.673


def test_a_calibration_is_read_back_by_the_plan(finished: Path, tmp_path: Path) -> None:
    made = calibrate(Run.read(finished), read_estimate(finished / "plan/estimate.json"))
    assert made is not None
    (tmp_path / "calibration.json").write_text(json.dumps(made.model_dump()))
    assert load_calibration(tmp_path / "calibration.json") == made
