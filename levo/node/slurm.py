"""Slurm's commands, asked: what they print, and how they write times. Judges nothing.

Every question to Slurm goes through `ask`. Jobs are submitted by Snakemake's plugin and by submitit, not here.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 20.0
Shown = dict[str, str]

_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(?:\.\d+)?")


class NoAnswer(Exception):
    """A command that is not here, fails, or takes too long; which and why, in words."""


def ask(*command: str, timeout_s: float | None = None, environment: Mapping[str, str] | None = None) -> str:
    """What a command prints. Raises NoAnswer."""
    name, timeout_s = command[0], timeout_s or TIMEOUT_S
    path = shutil.which(name)
    if path is None:
        raise NoAnswer(f"{name} is not on PATH")
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, errors="replace", timeout=timeout_s, env=environment
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"{name} did not answer within {timeout_s:.3g} s") from None
    except OSError as error:
        raise NoAnswer(f"{name} could not be started: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise NoAnswer(f"{name} ended with {done.returncode}: {said[-1][:200] if said else 'it said nothing'}")
    return done.stdout


def config() -> Shown:
    """`scontrol show config`. Raises NoAnswer."""
    found: Shown = {}
    for entry in entries(ask("scontrol", "--oneliner", "show", "config")):
        found |= entry
    if not found:
        raise NoAnswer("`scontrol show config` is empty")
    return found


def partitions() -> list[Shown]:
    """`scontrol show partition`. Raises NoAnswer."""
    return entries(ask("scontrol", "--oneliner", "show", "partition"))


def job(job_id: str) -> Shown:
    """`scontrol show job`, with the numbers of its GPUs. Raises NoAnswer."""
    found = entries(ask("scontrol", "--details", "--oneliner", "show", "job", job_id))
    if not found:
        raise NoAnswer(f"scontrol does not know job {job_id}")
    return found[0]


def entries(text: str) -> list[Shown]:
    """What `scontrol --oneliner` prints: of each line "A=1 B=x y C = 2", {A: 1, B: x y, C: 2}."""
    pair = re.compile(r"(\w[\w:/]*)\s*=\s*(.*?)(?=\s+\w[\w:/]*\s*=|$)")
    return [{name: value.strip() for name, value in pair.findall(line)} for line in text.splitlines() if "=" in line]


def duration_s(text: str) -> float | None:
    """Seconds of D-HH[:MM[:SS]], HH:MM:SS or MM[:SS]; None for UNLIMITED and other words."""
    found = _DURATION.fullmatch(text)
    if found is None:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = (numbers + [0, 0])[:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
