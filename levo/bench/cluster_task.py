"""A command that is run for its result: here, or as what a Slurm job does. Knows no bench and no queue.

Its last line on stdout is the result, a JSON object. Whatever becomes of it ends as a record on disk, FOLDER/NAME.json,
beside its output in NAME.out and NAME.err: one that fails is a record with its reason.
"""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levo.disk import write_json
from levo.errors import ConfigError
from levo.node.machine import git_commit
from levo.node.stopping import die_with_parent

OK, FAILED, OUT_OF_MEMORY, OUT_OF_TIME = "ok", "failed", "out of memory", "out of time"
_NO_MEMORY = re.compile(r"OutOfMemory|out of memory|OUT_OF_MEMORY|\bMemoryError\b|oom.kill", re.IGNORECASE)
Record = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A command to run. labels: what tells it from the others, in words for people. minutes: after that it is ended."""

    labels: dict[str, Any]
    command: tuple[str, ...]
    minutes: float

    @property
    def name(self) -> str:
        """Of its files. Another command has another name, so no result is taken for that of another."""
        words = "-".join(f"{key}{value}" for key, value in self.labels.items())
        digest = hashlib.sha256("\0".join(self.command).encode()).hexdigest()[:8]
        return re.sub(r"[^A-Za-z0-9.-]+", "_", f"{words}-{digest}")

    def output(self, folder: Path) -> Path:
        """What it prints."""
        return folder / f"{self.name}.out"

    def record(self, folder: Path) -> Record | None:
        """What it ended with the last time; None if it has not."""
        try:
            record: Record = json.loads((folder / f"{self.name}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            fix = "delete the file; the command then runs again"
            raise ConfigError(f"damaged record: {error}", where=f"{folder}/{self.name}.json", fix=fix) from None
        return record


def run_task(task: Task, folder: Path) -> Record:
    """Run a command to its end and write its record. This is what a Slurm job does."""
    began = time.monotonic()
    out, err = task.output(folder), folder / f"{task.name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        # One left behind by a killed sweep would share the GPU with the next one, and spoil its figures.
        process = subprocess.Popen(
            task.command, stdout=stdout, stderr=stderr, start_new_session=True, preexec_fn=die_with_parent
        )
        try:
            code: int | None = process.wait(60 * task.minutes)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
    outcome, reason, result = _judge(code, out, err, task.minutes)
    record = record_of(task, outcome, reason, result, time.monotonic() - began)
    write_json(folder / f"{task.name}.json", record)
    return record


def _end(process: subprocess.Popen[bytes]) -> None:
    """The command and all that it has started: a rank left behind would keep the GPU's memory."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _judge(code: int | None, out: Path, err: Path, minutes: float) -> tuple[str, str, Record | None]:
    """(outcome, reason, result) of a command that ended with this code; None: it was ended after so many minutes."""
    said = lines_of(out)
    result = _json_object(said[-1]) if said else None
    if code == 0:
        return (OK, "", result) if result is not None else (FAILED, f"its last line is no JSON: see {out}", None)
    complaints = lines_of(err) or (said if result is None else said[:-1])
    reason = complaint(complaints)
    if code is None:
        return OUT_OF_TIME, f"ended after {minutes:g} minutes; it said last: {reason}", result
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    memory = any(_NO_MEMORY.search(line) for line in complaints[-20:])
    return OUT_OF_MEMORY if memory else FAILED, f"{how}: {reason}", result


def complaint(lines: Sequence[str]) -> str:
    """The line that says why: the first of an error for users, and the last of a traceback, are not indented."""
    return next((line for line in reversed(lines) if not line[0].isspace()), "it said nothing")[:300]


def lines_of(path: Path) -> list[str]:
    """Those that are not blank."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.splitlines() if line.strip()]


def _json_object(line: str) -> Record | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def record_of(task: Task, outcome: str, reason: str, result: Record | None, wall_s: float | None) -> Record:
    """What is kept of a command. wall_s: None if nobody saw it run."""
    return {
        "labels": task.labels,
        "command": list(task.command),
        "outcome": outcome,
        "reason": reason,
        "wall_s": wall_s,
        "host": socket.gethostname(),
        "git_commit": git_commit(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
        "result": result,
    }


def levo_command(*arguments: object) -> tuple[str, ...]:
    """`levo ...` under this interpreter."""
    return (sys.executable, "-m", "levo", *map(str, arguments))
