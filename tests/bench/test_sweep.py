"""`levo bench sweep`: every batch size is a row, whatever becomes of it; the last line is JSON."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from levo.bench import sweep as sweeps
from levo.bench.cluster import run_here
from levo.bench.cluster_task import Task
from levo.errors import EXIT_FAILED, EXIT_OK, ConfigError

STAND_IN = """
import json, sys
words = sys.argv[1:]
if words[:2] == ["bench", "calibrate"]:
    print("calibrated from", len(words) - 3)
    open(words[2], "w").write(json.dumps(words[3:]))
    sys.exit()
slots = int(words[words.index("--slots") + 1])
print("a table")
if slots > 32:
    raise RuntimeError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
card = {"gpu": "a card"}
print(json.dumps({"card": card, "x_realtime": slots * 1.5, "peak_memory_gib": 20.0 + slots, "words": words}))
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Something small in the place of `levo`; returns the folder of the results."""
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    monkeypatch.setattr(sweeps, "levo_command", lambda *words: (sys.executable, str(script), *map(str, words)))
    return tmp_path / "out"


def run(lengths: Sequence[str], slots: Sequence[int], folder: Path, more: Sequence[str] = ()) -> int:
    return sweeps.sweep(sweeps.song_tasks(lengths, slots, more, 1), folder, run_here, lambda line: None)


def test_each_length_at_each_batch_size_is_one_bench_of_songs() -> None:
    tasks = sweeps.song_tasks(["4500", "750-6750"], [1, 64], ["--seconds", "60"], 30)
    words = [" ".join(task.command[1:]) for task in tasks]
    assert words == [
        f"-m levo bench song {frames} --slots {slots} --seconds 60"
        for frames in ("4500 4500", "750 6750")
        for slots in (1, 64)
    ]
    assert len({task.name for task in tasks}) == 4


def test_a_batch_size_without_memory_is_a_row_and_not_the_end(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["750"], [1, 48, 32], stand_in) == EXIT_OK
    out = capsys.readouterr().out
    summary = json.loads(out.splitlines()[-1])
    outcomes = [(row["slots"], row["outcome"], row.get("x_realtime")) for row in summary["rows"]]
    assert outcomes == [(1, "ok", 1.5), (48, "out of memory", None), (32, "ok", 48.0)]
    assert "Tried to allocate 20.00 GiB" in summary["rows"][1]["reason"]
    assert summary["card"] == {"gpu": "a card"}
    assert "peak_memory_gib" in out and "out of memory" in out
    svg = Path(summary["picture"]).read_text()
    assert svg.startswith("<?xml") and "DejaVuSans" in svg


def test_a_wider_sweep_keeps_what_a_narrower_one_found(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["750"], [1], stand_in)
    before = {path: path.stat().st_mtime_ns for path in stand_in.glob("frames*.json")}
    run(["750", "1500"], [1, 2], stand_in)
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    assert [(row["frames"], row["slots"]) for row in rows] == [("750", 1), ("750", 2), ("1500", 1), ("1500", 2)]
    assert before.items() <= {path: path.stat().st_mtime_ns for path in stand_in.glob("frames*.json")}.items()


def test_every_result_goes_into_one_speed_file_and_no_failure_does(
    stand_in: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["750", "1500"], [1, 8, 64], stand_in)
    speeds = json.loads(capsys.readouterr().out.splitlines()[-1])["calibration"]
    outputs = json.loads(Path(speeds).read_text())
    assert len(outputs) == 4 and not [path for path in outputs if "slots64" in path]
    assert all(json.loads(Path(path).read_text().splitlines()[-1])["x_realtime"] for path in outputs)


def test_a_sweep_without_any_result_has_failed(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["750"], [48], stand_in) == EXIT_FAILED
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["picture"] is None


def test_results_without_memory_make_a_picture_too(tmp_path: Path) -> None:
    sweeps.draw([{"frames": "750", "slots": 1, "outcome": "ok", "x_realtime": 1.0}], tmp_path / "a.svg")
    assert (tmp_path / "a.svg").exists()


@pytest.mark.parametrize("text", ["0", "65", "1,x", ","])
def test_batch_sizes_are_1_to_64(text: str) -> None:
    with pytest.raises(ConfigError, match="no batch sizes"):
        sweeps.read_slots(text)
    assert sweeps.read_slots("8,1, 64") == [1, 8, 64]
    assert [sweeps.SLOTS[0], sweeps.SLOTS[-1]] == [1, 64]


@pytest.mark.parametrize("text", ["0", "abc", "900-750", "-5", "750-"])
def test_a_wrong_length_is_said_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no length"):
        sweeps.song_tasks([text], [1], [], 1)


def test_what_stands_after_two_dashes_goes_to_the_bench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from typer.testing import CliRunner

    from levo.cli import app

    seen: list[Task] = []
    monkeypatch.setattr(sweeps, "sweep", lambda tasks, folder, run, say: seen.extend(tasks) or 0)
    words = [
        "bench",
        "sweep",
        "750",
        "--slots",
        "4",
        "--out",
        str(tmp_path),
        "--",
        "--seconds",
        "5",
        "--memory-gib",
        "95",
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert [" ".join(task.command[3:]) for task in seen] == ["bench song 750 750 --slots 4 --seconds 5 --memory-gib 95"]
    assert CliRunner().invoke(app, ["bench", "sweep", "750", "--secnds", "5"]).exit_code == 2
