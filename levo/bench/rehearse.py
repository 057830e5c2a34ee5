"""`levo rehearse-node`: a campaign in small on one node, before the campaign. Doctor, load, songs, QA, verify, report.

Every step that uses the device is a command of its own, as in a run, so that one that dies takes no other with it and
none holds a GPU while another needs it. The songs go through `levo shard` on all of the node's GPUs. Knows no Slurm:
levo/bench/cluster.py brings it to a node.
"""

import itertools
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from levo.bench.cluster import runner
from levo.bench.cluster_task import OK, Task, complaint, levo_command, lines_of
from levo.bench.rehearsed import Figures, Forecast, forecast, read_figures
from levo.disk import whole_file
from levo.errors import EXIT_FAILED, EXIT_OK, EXIT_USABLE, ConfigError, LevoError
from levo.node.doctor.finding import PROBLEM, WARNING
from levo.node.paths import RunPaths
from levo.node.tables import read_table, write_table
from levo.reports.estimate import estimate_run
from levo.reports.report import report_run
from levo.settings import PlanSettings, Settings, freeze, of_run, read
from levo.songs.manifest import REJECTED_SCHEMA, check
from levo.songs.plan import plan_run
from levo.songs.rows import read_rows
from levo.songs.song import SONG_SCHEMA
from levo.songs.text import TextEncoder

LOOKED_AT = 256
"""Rows of a manifest that was not checked yet, from which the songs are taken."""

VERIFIED = 2
MANIFEST = "rehearsal.jsonl"


@dataclass(frozen=True)
class Wanted:
    """A rehearsal as it is asked for. run_dir: the RUN that it is for, else None and the settings in `config`."""

    run_dir: Path | None
    config: Path
    profile: str | None
    n_songs: int
    folder: Path

    def here(self) -> int:
        """On this machine. Prints the report, then a line of JSON; returns the exit code."""
        made = rehearse(self)
        print(made, made.as_json(), sep="\n", flush=True)
        return made.exit_code

    def as_job(self, cluster: str, sbatch: Sequence[str], minutes: float) -> int:
        """The same as a job on a node with the profile's resources; prints what the job said."""
        settings_of = [self.run_dir] if self.run_dir else ["--config", self.config]
        profile = ["--profile", self.profile] if self.profile else []
        arguments = [*settings_of, *profile, "--songs", self.n_songs, "--out", self.folder, "--cluster", "local"]
        task = Task({"rehearsal": self.folder.name}, levo_command("rehearse-node", *arguments), minutes)
        records = self.folder.parent / "jobs"
        (record,) = runner(cluster, self.profile, sbatch)([task], records, say)
        said = task.output(records)
        if said.exists():
            print(said.read_text(encoding="utf-8", errors="replace"), end="", flush=True)
        return EXIT_OK if record["outcome"] == OK else EXIT_FAILED


def say(line: str) -> None:
    """For who waits."""
    print(line, flush=True)


def folder_of(given: Path | None) -> Path:
    """Where a rehearsal's files go: where the user said, or to a folder with the time in its name."""
    return given or Path("results/rehearsal") / time.strftime("%Y%m%d-%H%M%S")


@dataclass(frozen=True)
class Step:
    """What was tried. said: its last words, or why it failed."""

    name: str
    is_ok: bool
    seconds: float
    said: str


@dataclass
class Rehearsal:
    """figures: what the songs cost, if any was made. forecast: what the RUN would cost."""

    folder: Path
    steps: list[Step] = field(default_factory=list)
    figures: Figures | None = None
    forecast: Forecast | None = None

    @property
    def exit_code(self) -> int:
        """0: every step did what it should."""
        return EXIT_OK if all(step.is_ok for step in self.steps) else EXIT_FAILED

    def __str__(self) -> str:
        job = os.environ.get("SLURM_JOB_ID")
        lines = [f"rehearsal on {socket.gethostname()}" + (f", job {job}" if job else "") + f": {self.folder}"]
        for step in self.steps:
            lines.append(f"  {'ok' if step.is_ok else 'FAILED':<7}{step.name:<8}{step.seconds:>8.1f} s  {step.said}")
        lines += [str(part) for part in (self.figures, self.forecast) if part is not None]
        lines += _warnings(self.folder / "logs/doctor.txt")
        failed = [step.name for step in self.steps if not step.is_ok]
        verdict = f"NOT ready: {', '.join(failed)} failed (logs: {self.folder}/logs)" if failed else "ready"
        return "\n".join([*lines, f"verdict: {verdict}"])

    def as_json(self) -> str:
        """One line."""
        return json.dumps(
            {
                "rehearsal": str(self.folder),
                "host": socket.gethostname(),
                "ready": self.exit_code == EXIT_OK,
                "steps": [vars(step) for step in self.steps],
                "figures": self.figures and asdict(self.figures),
                "forecast": self.forecast and asdict(self.forecast),
            }
        )


def rehearse(wanted: Wanted) -> Rehearsal:
    """Go through all steps in a small RUN of its own. Raises ConfigError when its folder is in use."""
    run_dir, folder = wanted.run_dir, wanted.folder
    settings = of_run(run_dir) if run_dir else read(wanted.config)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError("a rehearsal needs a folder of its own", where=str(folder), fix="give another --out")
    (folder / "logs").mkdir(parents=True)
    made = Rehearsal(folder)
    shard = RunPaths(folder).shard(0)
    steps: list[tuple[str, Callable[[], str], bool]] = [
        ("doctor", lambda: _doctor(settings, folder, wanted.profile), False),
        ("plan", lambda: _plan(settings, run_dir, folder, wanted.n_songs), True),
        ("songs", lambda: _command(folder, "songs", "shard", folder, 0), True),
        ("qa", lambda: _command(folder, "qa", "qa", folder, 0), False),
        ("report", lambda: str(report_run(folder)), False),
        ("verify", lambda: _command(folder, "verify", "verify", shard.provenance, "--songs", VERIFIED), False),
        ("forecast", lambda: _reckon(made, settings, run_dir), False),
    ]
    for name, work, is_needed in steps:
        step = _try(name, work)
        print(f"{step.name}: {'ok' if step.is_ok else 'FAILED'}, {step.seconds:.1f} s", flush=True)
        made.steps.append(step)
        if is_needed and not step.is_ok:
            return made
    return made


def _try(name: str, work: Callable[[], str]) -> Step:
    began = time.monotonic()
    try:
        is_ok, said = True, work()
    except LevoError as error:
        is_ok, said = False, f"{error.what} ({error.where}); {error.fix}"
    except OSError as error:  # a full or forbidden disk is what a rehearsal is there to find
        is_ok, said = False, f"the file system failed: {error}"
    return Step(name, is_ok, time.monotonic() - began, said)


def _command(folder: Path, name: str, *arguments: object, fine: Sequence[int] = (EXIT_OK,)) -> str:
    """Run a verb, with its output in the folder's logs; returns the last line that it said."""
    log = folder / "logs" / f"{name}.txt"
    with log.open("wb") as file:
        code = subprocess.run(levo_command(*arguments), stdout=file, stderr=subprocess.STDOUT).returncode
    lines = lines_of(log)
    if code not in fine:
        raise LevoError(f"exit code {code}: {complaint(lines)}", where=str(log), fix="the log has the remedy")
    return lines[-1] if lines else "it said nothing"


def _warnings(log: Path) -> list[str]:
    """What doctor found that is worse than a note, each with its remedy."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return [
        f"  {line.strip()}"
        for finding, remedy in zip(lines, lines[1:], strict=False)
        if finding.startswith((WARNING, PROBLEM))
        for line in (finding, remedy)
    ]


def _doctor(settings: Settings, folder: Path, profile: str | None) -> str:
    named = ("--profile", profile) if profile else ()
    arguments = ("doctor", "--model", settings.model, "--out", folder, *named)
    return _command(folder, "doctor", *arguments, fine=(EXIT_OK, EXIT_USABLE))


def _plan(settings: Settings, run_dir: Path | None, folder: Path, n_songs: int) -> str:
    """Everything up to the plan: a RUN of one shard with a few of the songs."""
    small = settings.model_copy(
        update={
            "run": "rehearsal",
            "manifest": str(folder / MANIFEST),
            "plan": PlanSettings(n_shards=1, length_model=settings.plan.length_model),
        }
    )
    freeze(small, folder)
    checked = RunPaths(run_dir).songs if run_dir else None
    if checked is not None and checked.exists():
        source = checked
        found = read_table(checked, SONG_SCHEMA)
        write_table([], REJECTED_SCHEMA, RunPaths(folder).rejected)
    else:
        source = Path(settings.manifest)
        _copy_head(source, folder / MANIFEST)
        check(folder / MANIFEST, folder / "manifest", TextEncoder(Path(small.model)), small)
        found = read_table(RunPaths(folder).songs, SONG_SCHEMA)
    if not found.num_rows:
        raise ConfigError("no song to rehearse with", where=str(source), fix="see manifest/rejected.parquet")
    # Evenly through the lengths, so that the sample is neither the short songs nor the long ones.
    order = found.sort_by([("predicted_frames", "ascending"), ("song_id", "ascending")])
    n = min(n_songs, order.num_rows)
    chosen = order.take([(2 * i + 1) * order.num_rows // (2 * n) for i in range(n)])
    write_table(chosen, SONG_SCHEMA, RunPaths(folder).songs)
    plan_run(folder)
    estimate_run(folder)
    return f"{n} of {found.num_rows} songs of {source}"


def _reckon(made: Rehearsal, settings: Settings, run_dir: Path | None) -> str:
    made.figures = read_figures(made.folder)
    made.forecast = forecast(settings, run_dir, made.folder, made.figures)
    return f"from {made.folder}/reports/calibration.json"


def _copy_head(manifest: Path, target: Path) -> None:
    """The first rows of a manifest, as JSONL; rows that cannot be read are left out. Paths in them stay right."""
    with whole_file(target) as file:
        for row in itertools.islice(read_rows(manifest), LOOKED_AT):
            if isinstance(row.fields, dict):
                file.write(json.dumps(_absolute(row.fields, manifest)).encode() + b"\n")


def _absolute(fields: dict[str, Any], manifest: Path) -> dict[str, Any]:
    prompt = fields.get("prompt_tokens")
    if not isinstance(prompt, str):
        return fields
    return {**fields, "prompt_tokens": os.path.join(manifest.absolute().parent, prompt)}
