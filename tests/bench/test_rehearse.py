"""`levo rehearse-node` with the tiny model on this machine, and as a job of a Slurm that is a few scripts."""

import json
import shutil
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from fakes.sbatch import FakeSlurm
from fakes.shards import SONGS, song

from levo import cli, settings
from levo.bench import cluster
from levo.bench.rehearse import Rehearsal, Wanted, rehearse
from levo.errors import EXIT_FAILED, EXIT_OK, ConfigError
from levo.node.tables import write_table
from levo.settings import freeze
from levo.songs.manifest import REJECTED_SCHEMA
from levo.songs.plan import plan_run
from levo.songs.song import SONG_SCHEMA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # whole runs, as processes
STEPS = ["doctor", "plan", "songs", "qa", "report", "verify", "forecast"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path, root: Path) -> Path:
    """A folder with settings, a manifest of 20 short songs and a profile."""
    folder = tmp_path_factory.mktemp("site")
    rows = [
        {"song_id": f"s{n:02d}", "lyrics": "[verse] " + "la " * (1 + n % 5), "max_seconds": 1 + n % 3}
        for n in range(20)
    ]
    rows.insert(3, {"song_id": "bad", "lyrics": ""})
    (folder / "songs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = {
        "run": "campaign",
        "manifest": str(folder / "songs.jsonl"),
        "model": str(tiny_dir),
        "engine": {"slots": 4},
        "codec": {"steps": 2},
        "node": {"device": "cpu", "ranks": 2, "part_songs": 2},
        "cost": {"calibration": str(root / "config/calibration.brief.json")},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(chosen))
    profile = folder / "profiles/site/config.yaml"
    profile.parent.mkdir(parents=True)
    profile.write_text(
        "default-resources: {slurm_account: music}\n"
        "set-resources:\n  generate: {slurm_partition: gpu, gres: \"'gpu:4'\", cpus_per_task: 288, runtime: 1440,"
        " mem_mb: 0, slurm_extra: \"'--exclusive --signal=TERM@300'\"}\n"
    )
    return folder


@pytest.fixture(scope="module")
def made(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A whole rehearsal from settings alone."""
    folder = tmp_path_factory.mktemp("rehearsals") / "first"
    return rehearse(Wanted(None, site / "config.yaml", None, 8, folder))


def test_every_step_of_a_campaign_is_tried_and_works(made: Rehearsal) -> None:
    assert [(step.name, step.is_ok) for step in made.steps] == [(name, True) for name in STEPS], str(made)
    assert made.exit_code == EXIT_OK and str(made).endswith("verdict: ready")
    assert "2 equal" in made.steps[5].said and "nothing differs" in made.steps[5].said
    assert (made.folder / "reports/report.html").exists()


def test_songs_come_from_the_whole_range_of_lengths_and_are_made_on_all_ranks(made: Rehearsal) -> None:
    rows = pq.read_table(made.folder / "shards/00000/provenance.parquet").to_pylist()
    assert len(rows) == 8 and {row["outcome"] for row in rows} == {"ok"}
    assert {row["rank"] for row in rows} == {0, 1}
    assert {row["max_seconds"] for row in rows} == {1.0, 2.0, 3.0}
    assert made.figures is not None and [rank.rank for rank in made.figures.ranks] == [0, 1]
    assert sum(rank.songs for rank in made.figures.ranks) == 8 and all(rank.load_s > 0 for rank in made.figures.ranks)


def test_figures_add_up(made: Rehearsal) -> None:
    figures = made.figures
    assert figures is not None and figures.slots_used == 1.0 and figures.unit == "rank"
    bill = json.loads((made.folder / "reports/cost.json").read_text())
    assert figures.x_realtime == pytest.approx(bill["x_realtime_songs_only"])
    assert figures.x_realtime_with_load == pytest.approx(bill["x_realtime"])
    assert sum(figures.seconds_by_stage.values()) == pytest.approx(bill["gpu_seconds"]["wall_s"], rel=0.01)
    assert figures.seconds_by_stage["load"] == pytest.approx(sum(rank.load_s for rank in figures.ranks))


def test_a_campaign_without_a_plan_is_reckoned_from_its_manifest(made: Rehearsal, site: Path) -> None:
    found = made.forecast
    assert found is not None and (found.what, found.n_songs) == (str(site / "songs.jsonl"), 21)
    assert found.hours_at_most > 0 and found.planned_hours is None
    assert "says nothing about a GPU" in str(found)


def test_a_campaign_with_a_plan_is_reckoned_from_it_and_untouched(site: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "campaign"
    chosen = settings.read(site / "config.yaml")
    freeze(chosen.model_copy(update={"plan": settings.PlanSettings(n_shards=2)}), run_dir)
    songs = [song(n, max_seconds=1.0, predicted_frames=25) for n in range(len(SONGS))]
    write_table([vars(one) for one in songs], SONG_SCHEMA, run_dir / "manifest/songs.parquet")
    write_table([], REJECTED_SCHEMA, run_dir / "manifest/rejected.parquet")
    plan_run(run_dir)
    before = sorted(path for path in run_dir.rglob("*"))
    made = rehearse(Wanted(run_dir, Path("none.yaml"), None, 2, tmp_path / "rehearsal"))
    assert made.exit_code == EXIT_OK, str(made)
    assert sorted(path for path in run_dir.rglob("*")) == before
    rows = pq.read_table(tmp_path / "rehearsal/shards/00000/provenance.parquet").to_pylist()
    assert {row["song_id"] for row in rows} < {one.song_id for one in songs} and len(rows) == 2
    assert made.forecast is not None and made.forecast.n_songs == len(songs)
    speeds = json.loads((tmp_path / "rehearsal/reports/calibration.json").read_text())
    assert made.forecast.hours_at_most > 0 and made.forecast.planned_hours is not None
    assert "25% of the slots had a song" in str(made.forecast) and speeds["x_realtime"] > 0


def test_what_does_not_work_is_named_before_the_campaign(site: Path, tmp_path: Path, tiny_dir: Path) -> None:
    model = Path(shutil.copytree(tiny_dir, tmp_path / "model"))
    weights = model / "codec/vae.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100] + bytes(100))
    chosen = yaml.safe_load((site / "config.yaml").read_text())
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({**chosen, "model": str(model)}))
    made = rehearse(Wanted(None, tmp_path / "config.yaml", None, 2, tmp_path / "rehearsal"))
    assert made.exit_code == EXIT_FAILED
    (failed,) = [step for step in made.steps if not step.is_ok]
    assert failed.name == "songs" and "was changed since the model was written" in failed.said, failed
    assert str(made).splitlines()[-1].startswith("verdict: NOT ready: songs failed")
    assert made.steps[-1] is failed, "nothing is left to try without songs"


def test_a_folder_in_use_is_refused(site: Path, tmp_path: Path) -> None:
    (tmp_path / "songs.flac").write_text("mine")
    with pytest.raises(ConfigError, match="folder of its own"):
        rehearse(Wanted(None, site / "config.yaml", None, 2, tmp_path))


def test_on_slurm_it_is_one_job_with_the_resources_of_a_node_job(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm", monkeypatch)
    monkeypatch.chdir(site)
    monkeypatch.setattr(cluster, "POLL_S", 0.2)
    said = {"show config": "JobRequeue = 1", "show partition": "PartitionName=gpu MaxTime=UNLIMITED", "show job": "A=1"}
    (tmp_path / "slurm/scontrol.json").write_text(json.dumps(said))
    out = tmp_path / "rehearsal"
    words = ["rehearse-node", "--config", "config.yaml", "--profile", "site", "--songs", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["levo", *words, "--minutes", "12"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == EXIT_OK, lines
    assert json.loads(lines[-1])["ready"] and "verdict: ready" in lines[-2]
    assert len(slurm.submitted()) == 1
    kept = {
        "account": "music",
        "partition": "gpu",
        "gres": "gpu:4",
        "cpus-per-task": "288",
        "exclusive": "",
        "nodes": "1",
    }
    options = slurm.options()
    assert kept.items() <= options.items() and options["time"] == "17" and "mem" not in options
    rows = pq.read_table(out / "shards/00000/provenance.parquet").to_pylist()
    assert {row["slurm_job_id"] for row in rows} == {"1"}
