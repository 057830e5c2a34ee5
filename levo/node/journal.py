"""What happened to a shard, a line an event, on disk before the next thing happens. Knows no rows and no audio.

An attempt has a journal of its own: append-only JSON lines, synced. A kill can only tear the last line.
Events that History counts: `commit` (songs: ids) and `lost` (songs: ids that were in the engine of a lost rank).
"""

import json
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from levo.disk import sync_folder
from levo.node.paths import ShardPaths

_NUMBERED = re.compile(r"(?:journal|ledger|part|log|\.part|\.ledger)-a(\d+)\b.*")


@dataclass(frozen=True)
class Event:
    """time_s: since 1970 UTC. fields: what was given to Journal.write."""

    attempt: int
    time_s: float
    name: str
    fields: dict[str, Any]


def claim_attempt(paths: ShardPaths) -> int:
    """A number that no other process has or will have: that of a new, empty journal."""
    paths.work.mkdir(parents=True, exist_ok=True)
    attempt = _next_attempt(paths.work)
    while True:
        try:
            os.close(os.open(paths.journal(attempt), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            attempt += 1
            continue
        sync_folder(paths.work)
        return attempt


class Journal:
    """The journal of one attempt, to be written. Any thread may write."""

    def __init__(self, paths: ShardPaths, attempt: int) -> None:
        self.path = paths.journal(attempt)
        self.lock = threading.Lock()
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; on disk when this returns. `event` and `time_s` are no names for a field."""
        line = json.dumps({"event": event, "time_s": round(time.time(), 3), **fields}, ensure_ascii=False) + "\n"
        with self.lock:
            is_new = not self.path.exists()
            with self.path.open("a+b", buffering=0) as file:
                if file.tell() and not _ends_with_newline(file.fileno(), file.tell()):
                    line = "\n" + line  # the former last line was torn: it must not tear this one too
                file.write(line.encode())
                os.fsync(file.fileno())
            if is_new:
                sync_folder(self.path.parent)


def _ends_with_newline(descriptor: int, size: int) -> bool:
    return os.pread(descriptor, 1, size - 1) == b"\n"


@dataclass
class History:
    """All journals of a shard.

    losses: how often a song was in the engine of a rank that was lost.  commits: songs committed in each attempt that
    wrote an event.  unreadable: lines that are no events, as FILE:LINE (torn by a kill, or damaged).
    """

    next_attempt: int = 1
    losses: Counter[str] = field(default_factory=Counter)
    commits: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, paths: ShardPaths) -> "History":
        """Read what is there; a shard that nobody has touched has an empty history."""
        history = cls(next_attempt=_next_attempt(paths.work))
        for attempt, path in sorted(_journals(paths.work)):
            for event in history._read_file(attempt, path):
                history._add(event)
        return history

    def _read_file(self, attempt: int, path: Path) -> Iterator[Event]:
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if not line:
                continue
            event = read_event(attempt, line)
            if event is not None:
                yield event
            else:
                self.unreadable.append(f"{path}:{number}")

    def _add(self, event: Event) -> None:
        self.events.append(event)
        self.commits.setdefault(event.attempt, 0)
        songs = event.fields.get("songs", [])
        if event.name == "commit":
            self.commits[event.attempt] += len(songs)
        elif event.name == "lost":
            self.losses.update(songs)


def read_event(attempt: int, line: bytes) -> Event | None:
    """A line of a journal; None when it is no event: torn by a kill, or damaged."""
    try:
        fields = json.loads(line)
        return Event(attempt, float(fields.pop("time_s")), str(fields.pop("event")), fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def first_event(paths: ShardPaths, attempt: int) -> Event | None:
    """How an attempt began; None when it has said nothing yet."""
    try:
        with paths.journal(attempt).open("rb") as file:
            return read_event(attempt, file.readline())
    except FileNotFoundError:
        return None


def _journals(work: Path) -> Iterator[tuple[int, Path]]:
    for path in work.glob("journal-a*.jsonl"):
        if match := _NUMBERED.fullmatch(path.name):
            yield int(match[1]), path


def _next_attempt(work: Path) -> int:
    """One more than the highest number that any file carries."""
    names = [path.name for path in work.iterdir()] if work.is_dir() else []
    return 1 + max((int(match[1]) for name in names if (match := _NUMBERED.fullmatch(name))), default=0)
