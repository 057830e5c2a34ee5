"""A `sacct` on PATH that answers from a file, and shards that ran as Slurm jobs.

It filters by --jobs and --name as Slurm does, and keeps every call's arguments and time zone.
"""

import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fakes.commands import put_commands

from levo.node.lease import Holder
from levo.node.paths import RunPaths
from levo.reports.sacct import FIELDS

UUID = "0d87eebd-09be-4e1a-ba21-66bb393a944c"
BEGAN_S = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()
_SCRIPT = """\
#!{python}
import json, os, sys
with open({calls!r}, "a") as file:
    file.write(json.dumps([sys.argv[1:], os.environ["TZ"], os.environ["SLURM_TIME_FORMAT"]]) + "\\n")
if os.path.exists({broken!r}):
    exec(open({broken!r}).read())
chosen = sys.argv[-1].partition("=")
wanted = set(chosen[2].split(","))
column = {{"--jobs": 0, "--name": 1}}[chosen[0]]
for line in open({answer!r}):
    fields = line.split("|")
    if len(fields) == 1 or fields[column] in wanted:
        print(line, end="")
"""


class FakeSacct:
    """answer: its lines.  breaks: Python that it runs first."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.calls_file, self.answer_file, self.broken_file = (folder / n for n in ("calls", "answer", "broken.py"))
        self.answer_file.touch()
        files = {"calls": self.calls_file, "answer": self.answer_file, "broken": self.broken_file}
        script = _SCRIPT.format(python=sys.executable, **{name: str(path) for name, path in files.items()})
        monkeypatch.setenv("PATH", put_commands(folder, sacct=script))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def say(self, *lines: str) -> None:
        self.answer_file.write_text("".join(f"{line}\n" for line in lines))

    def breaks(self, code: str) -> None:
        self.broken_file.write_text(code)

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line)[0] for line in self.calls_file.read_text().splitlines()]


def clock(seconds: float) -> str:
    """So many seconds after BEGAN_S as sacct prints it in UTC."""
    return datetime.fromtimestamp(BEGAN_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def line(job: int, state: str = "COMPLETED", start: float | None = 10, lasted: float = 40, **more: str) -> str:
    """A job's line. start, lasted: seconds after BEGAN_S; None: it never started. more: by FIELDS' names."""
    begins, ends, elapsed = "Unknown", "Unknown", "00:00:00"
    if start is not None:
        begins, ends = clock(start), clock(start + lasted)
        hours, rest = divmod(int(lasted), 3600)
        days = f"{hours // 24}-" if hours >= 24 else ""
        elapsed = f"{days}{hours % 24:02d}:{rest // 60:02d}:{rest % 60:02d}"
    fields = dict.fromkeys(FIELDS, "")
    fields |= {"JobIDRaw": str(job), "JobName": UUID, "State": state, "ExitCode": "0:0", "Partition": "normal"}
    fields |= {"Submit": clock(0), "Eligible": clock(0), "Start": begins, "End": ends, "Elapsed": elapsed}
    fields |= {"NNodes": "1", "SubmitLine": f"sbatch --parsable --job-name {UUID} --wrap=python|more"}
    if start is not None:
        tres = "billing=288,cpu=288,gres/gpu=4,mem=800000M,node=1"
        fields |= {"AllocCPUS": "288", "AllocTRES": tres, "NodeList": "nid001"}
    return "|".join({**fields, **more}.values())


def ran_in(run_dir: Path, shard: int, job: int, after_s: float = 12, attempt: int = 1) -> None:
    """An attempt that took the lease in this job, so many seconds after BEGAN_S."""
    paths = RunPaths(run_dir).shard(shard)
    paths.lease.mkdir(parents=True, exist_ok=True)
    holder = Holder("m", "nid001", 1, "1", attempt, str(job), is_released=True)
    (paths.lease / f"{attempt:06d}.json").write_text(json.dumps(asdict(holder)))
    event = json.dumps({"event": "start", "time_s": BEGAN_S + after_s, "missing": 0, "done": 0, "in_flight": 0})
    paths.journal(attempt).write_text(event + "\n")
    os.utime(RunPaths(run_dir).config, (BEGAN_S, BEGAN_S))
