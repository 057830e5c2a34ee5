"""What `scontrol show` says, as names and values. Asks; judges nothing."""

import re
import subprocess

TIMEOUT_S = 20.0
Shown = dict[str, str]


def show(*what: str) -> list[Shown]:
    """`scontrol show ...`, an entry a job or partition. Raises OSError when there is no answer."""
    command = ["scontrol", "--oneliner", "show", *what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise OSError(f"`{' '.join(command)}` does not answer") from None
    if done.returncode:
        raise OSError(f"`{' '.join(command)}`: {(done.stderr or done.stdout).strip()[:200]}")
    return [_pairs(line) for line in done.stdout.splitlines() if "=" in line]


def config() -> Shown:
    """`scontrol show config`: one name a line."""
    found: Shown = {}
    for entry in show("config"):
        found |= entry
    if not found:
        raise OSError("`scontrol show config` is empty")
    return found


def _pairs(line: str) -> Shown:
    """Of "A=1 B=x y C = 2": {A: 1, B: x y, C: 2}."""
    return {name: value.strip() for name, value in re.findall(r"(\w[\w:/]*)\s*=\s*(.*?)(?=\s+\w[\w:/]*\s*=|$)", line)}


def minutes(limit: str) -> float | None:
    """Of "1-00:00:00" or "30:00" or "UNLIMITED", in minutes; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", limit)
    if not found:
        return None
    days, *parts = found.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # D-HH[:MM[:SS]]
        hours, mins, seconds = (numbers + [0, 0])[:3]
    elif len(numbers) == 3:
        hours, mins, seconds = numbers
    else:  # MM[:SS]
        hours, mins, seconds = 0, *(numbers + [0])[:2]
    return int(days or 0) * 1440 + hours * 60 + mins + seconds / 60
