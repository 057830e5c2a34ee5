"""Processes of this machine, read from /proc: who belongs to whom, and how to end exactly those."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path


def name_of(pid: int) -> str | None:
    """The kernel's short name of a process; None when it is gone or dead."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    rest = text.rpartition(")")[2].split()
    return None if rest[0] in "ZXx" else text[text.index("(") + 1 : text.rindex(")")]


def command_of(pid: int) -> str:
    """The command line, words joined by spaces; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def below(roots: Iterable[int]) -> list[int]:
    """These processes and all that descend from them, parents first."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        try:
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(pid)
    found = list(roots)
    for pid in found:
        found += children.get(pid, [])
    return found


def end(pid: int, name: str, wait_s: float = 15) -> None:
    """End a process of this name, gently, then not; another one that has got its pid meanwhile is left alone."""
    for number, patience_s in ((signal.SIGTERM, wait_s), (signal.SIGKILL, 5.0)):
        if name_of(pid) != name:
            return
        os.kill(pid, number)
        until = time.monotonic() + patience_s
        while name_of(pid) == name and time.monotonic() < until:
            time.sleep(0.05)


def kill_all(pids: Iterable[int]) -> None:
    """kill -9, whoever of them still lives."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
