"""Named moments at which a test may break this process, so that every kind of loss can be tried exactly.

    LEVO_FAULT=NAME:NTH:ACTION     at the NTH time (from 1, counted in each process) that NAME is reached
    LEVO_FAULT_ONCE=FILE           only the process that creates FILE fires: one hit in a whole run

Actions: kill (this process), kill-shard (the parent of the ranks), kill-snakemake (the Snakemake above it), raise (an
I/O error), oom (out of device memory). Without LEVO_FAULT nothing here does anything.
"""

import errno
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from levo.errors import ConfigError

_ACTIONS = ("kill", "kill-shard", "kill-snakemake", "raise", "oom")
_SHELLS = ("sh", "bash", "dash", "zsh")
_reached: Counter[str] = Counter()
_lock = threading.Lock()


def fault(name: str) -> None:
    """This moment is reached. When told to: raises OSError or an out-of-memory error, or does not return."""
    order = os.environ.get("LEVO_FAULT")
    if not order:
        return
    wanted, nth, action = _parse(order)
    if wanted != name:
        return
    with _lock:
        _reached[name] += 1
        hit = _reached[name] == nth
    if hit and _is_first():
        print(f"fault {order} in process {os.getpid()}", file=sys.stderr, flush=True)
        _act(name, action)


def _parse(order: str) -> tuple[str, int, str]:
    parts = order.split(":")
    if len(parts) != 3 or not parts[1].isdigit() or int(parts[1]) < 1 or parts[2] not in _ACTIONS:
        raise ConfigError(
            f"not a fault: {order!r}",
            where="environment variable LEVO_FAULT",
            fix=f"NAME:NTH:ACTION with an action of {', '.join(_ACTIONS)}, as in part.write:1:kill; or unset it",
        )
    return parts[0], int(parts[1]), parts[2]


def _is_first() -> bool:
    once = os.environ.get("LEVO_FAULT_ONCE")
    if not once:
        return True
    try:
        os.close(os.open(once, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _act(name: str, action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill-shard":
        parent = multiprocessing.parent_process()
        os.kill(parent.pid if parent and parent.pid else os.getpid(), signal.SIGKILL)
        time.sleep(10)  # this rank dies with its parent; if it does not, it goes on and the test fails
    elif action == "kill-snakemake":
        for pid in snakemakes_above(os.getpid()):
            os.kill(pid, signal.SIGKILL)
    elif action == "raise":
        raise OSError(errno.EIO, f"planned fault at {name}")
    else:
        torch = sys.modules.get("torch")  # never imported here: a process without it has no device to fill
        raise (torch.OutOfMemoryError if torch else MemoryError)(f"planned fault at {name}")


def snakemakes_above(pid: int) -> list[int]:
    """The nearest run of ancestors that are Snakemake, shells between them left out; outermost first.

    The outermost must die first: it would otherwise see the inner one's end and act on it.
    """
    found: list[int] = []
    while (pid := _parent(pid)) > 1:
        words = _command(pid)
        if _is_snakemake(words):
            found.append(pid)
        elif found and Path(words[0] if words else "").name not in _SHELLS:
            break
    return found[::-1]


def _is_snakemake(words: list[str]) -> bool:
    """snakemake ..., python .../snakemake ..., python -m snakemake ... (also with interpreter options before -m)."""
    if any(Path(word).name == "snakemake" for word in words[:2]):
        return True
    return any(a == "-m" and b == "snakemake" for a, b in zip(words[:6], words[1:7], strict=False))


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])  # the name in brackets may hold anything


def _command(pid: int) -> list[str]:
    try:
        return [word.decode(errors="replace") for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
    except OSError:
        return []
