"""`levo bench sweep`: one bench at every batch size, a job each, gathered into a table, a picture and a line of JSON.

What is run stands in `song_command` and `calibrate_command`; everything else takes any list of tasks whose results
carry the COLUMNS.
"""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levo.bench.card import print_table
from levo.bench.cluster import Run, Say
from levo.bench.cluster_task import OK, Record, Task, levo_command
from levo.errors import EXIT_FAILED, EXIT_OK, ConfigError

SLOTS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
COLUMNS = (
    "x_realtime",
    "s_per_song",
    "songs_per_hour",
    "peak_memory_gib",
    "joules_per_song",
    "gpu_hours_per_million_3min",
)
"""What is shown of a result, where it has it."""


def song_command(frames: tuple[int, int], slots: int, more: Sequence[str]) -> tuple[str, ...]:
    """The one place that knows how the bench of whole songs is called. frames: shortest and longest song."""
    return levo_command("bench", "song", *frames, "--slots", slots, *more)


def calibrate_command(speeds: Path, outputs: Sequence[Path]) -> tuple[str, ...]:
    """What makes a speed file of those benches' outputs: a sweep over lengths and batch sizes calibrates the plans."""
    return levo_command("bench", "calibrate", speeds, *outputs)


def song_tasks(lengths: Sequence[str], slots: Sequence[int], more: Sequence[str], minutes: float) -> list[Task]:
    """Every length at every batch size. lengths: in frames, "4500" or "750-6750". more: further words of the bench."""
    return [
        Task({"frames": length, "slots": n}, song_command(_frames(length), n, more), minutes)
        for length in lengths
        for n in slots
    ]


def read_slots(text: str) -> list[int]:
    """Batch sizes of "1,8,64". Raises ConfigError."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isdigit() and 1 <= int(word) <= 64 for word in words):
        raise ConfigError(f"{text!r} are no batch sizes", where="--slots", fix="numbers from 1 to 64, as 1,8,64")
    return sorted(set(map(int, words)))


def _frames(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    shortest, longest = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 0 < shortest <= longest:
        raise ConfigError(f"{text!r} is no length", where="FRAMES", fix="frames, 25 a second, as 4500 or 750-6750")
    return shortest, longest


def sweep(tasks: Sequence[Task], folder: Path, run: Run, say: Say) -> int:
    """Run them, show all of them, and return the exit code: only a sweep without any result has failed."""
    records = run(tasks, folder, say)
    rows = [_row(record) for record in records]
    picture = folder / "sweep.svg"
    has_result = any(record["outcome"] == OK for record in records)
    speeds = None
    if has_result:
        draw(rows, picture)
        good = {record["outcome"] == OK and tuple(record["command"]) for record in records}
        speeds = _calibrate(folder / "calibration.json", [t.output(folder) for t in tasks if t.command in good], say)
    print_table("sweep", rows, width=180)
    cards = [record["result"]["card"] for record in records if "card" in (record["result"] or {})]
    summary = {
        "bench": "sweep",
        "card": cards[0] if cards else None,
        "rows": rows,
        "records": str(folder),
        "picture": str(picture) if has_result else None,
        "calibration": speeds and str(speeds),
    }
    print(json.dumps(summary), flush=True)
    return EXIT_OK if has_result else EXIT_FAILED


def _calibrate(speeds: Path, outputs: Sequence[Path], say: Say) -> Path | None:
    """The speed file; None, with its reason said, when these results are not of one kind of GPU."""
    done = subprocess.run(calibrate_command(speeds, outputs), capture_output=True, text=True)
    say((done.stdout if done.returncode == 0 else done.stderr).strip())
    return speeds if done.returncode == 0 else None


def _row(record: Record) -> dict[str, Any]:
    result = record["result"] or {}
    shown = {name: result[name] for name in COLUMNS if name in result}
    return {**record["labels"], "outcome": record["outcome"], **shown, "reason": record["reason"]}


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """x realtime and memory against the batch size, a line a length; a cross where there is no result."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # late: slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    FigureCanvasSVG(figure)
    for axes, name, label in zip(
        figure.subplots(1, 2), ("x_realtime", "peak_memory_gib"), ("x realtime", "peak memory, GiB"), strict=True
    ):
        most = max((row[name] for row in rows if row.get(name) is not None), default=1)
        for length in dict.fromkeys(row["frames"] for row in rows):
            line = [(row["slots"], row[name]) for row in rows if row["frames"] == length and row.get(name) is not None]
            if line:
                axes.plot(*zip(*line, strict=True), marker="o", label=f"{length} frames")
        lost = [row["slots"] for row in rows if row["outcome"] != OK]
        if lost:
            axes.plot(lost, [0] * len(lost), "x", color="tab:red", label="no result")
        axes.set(xlabel="slots", ylabel=label, xlim=(0, None), ylim=(0, 1.1 * most))
        axes.grid(True, alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.savefig(path, metadata={"Date": None})
