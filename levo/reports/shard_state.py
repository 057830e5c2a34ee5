"""How one shard stands, from a few small reads: the end of its journal, the heads of its ledgers, its lease.

Reads only, while others write: a torn line, a temporary file or a file that vanishes is passed over, and a damaged one
is noted. Tables are opened only for a sealed shard whose journal does not tell (its work folder is gone).
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from levo.errors import LevoError
from levo.node.journal import Event, first_event, read_event
from levo.node.lease import Holder, last_holder
from levo.node.ledger import IDLE, LOAD, Bill, read_head
from levo.node.paths import ShardPaths
from levo.node.tally import TALLIED, Tally

DONE, RUNNING, SILENT, STOPPED, FAILED, FOR_GOOD, WAITING = (
    "done", "running", "without a sign of life", "stopped early", "failed", "failed for good", "waiting",
)  # fmt: skip
STATES = (DONE, RUNNING, SILENT, STOPPED, FAILED, FOR_GOOD, WAITING)
SILENT_S = 60.0
"""A lease is renewed every 10 s; older than this, its holder is called silent."""
RECENT_S = 600.0
"""The last minutes, over which the present rate is taken."""
LAST_BYTES, RECENT_BYTES = 16384, 65536
"""Of a journal's end: enough for its last event, and for the last minutes of a busy shard."""

_JOURNAL = re.compile(r"journal-a(\d+)\.jsonl")
_LEDGER = re.compile(r"ledger-a(\d+)-r(\d+)\.json")
_COUNT, _TIME = b'"so_far": {', re.compile(rb'"time_s": ([0-9.]+)')
_RETRY = re.compile(r"retry-(\d+)\.json")


@dataclass(frozen=True)
class Pace:
    """What a running shard made in the last minutes. ranks: how many did it."""

    seconds: float
    songs: int
    predicted_s: float
    audio_s: float
    ranks: int


@dataclass(frozen=True)
class ShardState:
    """How a shard stands.

    n_songs: null before its first attempt.  in_work: songs that ranks have.  bill: what its ranks' time went into so
    far; by_stage only when sealed.  began_s, last_s: first and newest event, since 1970.  holder, quiet_s: last writer,
    and seconds since it renewed its lease.  why: what ended it.  notes: files that could not be read.
    """

    number: int
    state: str
    tally: Tally = field(default_factory=Tally)
    n_songs: int | None = None
    in_work: int = 0
    bill: Bill = field(default_factory=Bill)
    began_s: float | None = None
    last_s: float | None = None
    holder: Holder | None = None
    quiet_s: float = 0.0
    pace: Pace | None = None
    why: str | None = None
    notes: tuple[str, ...] = ()


def read_state(paths: ShardPaths, now_s: float | None = None) -> ShardState:
    """Look at a shard. now_s: seconds since 1970, for tests."""
    look = _Look(paths, time.time() if now_s is None else now_s)
    is_sealed = paths.provenance.exists()
    try:
        return look.sealed() if is_sealed else look.open()
    except (OSError, ValueError, KeyError, TypeError, LevoError) as error:
        reason = error.what if isinstance(error, LevoError) else repr(error)
        return ShardState(paths.number, DONE if is_sealed else WAITING, notes=(*look.notes, f"{paths.work}: {reason}"))


class _JournalEnd:
    """The last lines of a journal, the newest first. The last line may be torn, the first one cut."""

    def __init__(self, path: Path, attempt: int, n_bytes: int) -> None:
        self.attempt = attempt
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - n_bytes)
            file.seek(start)
            lines = file.read().split(b"\n")
        self.lines = [line for line in reversed(lines[1:] if start else lines) if line]

    def events(self) -> Iterator[Event]:
        """The newest first."""
        return (event for line in self.lines if (event := read_event(self.attempt, line)))

    def counts(self) -> Iterator[tuple[float, bytes]]:
        """(time, line) of each event with a count, unread: a busy shard has many, and two are needed."""
        for line in self.lines:
            if _COUNT in line and (match := _TIME.search(line)):
                yield float(match[1]), line


class _Look:
    """One look at one shard."""

    def __init__(self, paths: ShardPaths, now_s: float) -> None:
        self.paths, self.now_s = paths, now_s
        self.notes: list[str] = []
        try:
            self.names = os.listdir(paths.work)
        except FileNotFoundError:
            self.names = []
        self.attempts = sorted((int(m[1]) for name in self.names if (m := _JOURNAL.fullmatch(name))), reverse=True)

    def sealed(self) -> ShardState:
        """A shard with its done mark."""
        journal = self._journal(LAST_BYTES)
        last = next(journal.events(), None) if journal else None
        if last is not None and last.name == "sealed" and "so_far" in last.fields:
            tally, bill = Tally.from_json(last.fields["so_far"]), Bill(**last.fields["bill"])
        else:  # the work folder is gone, or somebody killed the shard in its last moment
            tally, bill = self._from_tables()
        return ShardState(
            number=self.paths.number,
            state=DONE,
            tally=tally,
            n_songs=tally.n_songs,
            bill=bill,
            began_s=self._began_s(),
            last_s=last.time_s if last else None,
        )

    def open(self) -> ShardState:
        """A shard that is not sealed."""
        journal = self._journal(RECENT_BYTES)
        last = next(journal.events(), None) if journal else None
        tally, n_songs, in_work = _count(journal) if journal else (Tally(), None, 0)
        holder, quiet_s, is_held = self._lease()
        state, why = self._state(journal, quiet_s, is_held)
        return ShardState(
            number=self.paths.number,
            state=state,
            tally=tally,
            n_songs=n_songs,
            in_work=in_work if state == RUNNING else 0,
            bill=self._bill(),
            began_s=self._began_s(),
            last_s=last.time_s if last else None,
            holder=holder,
            quiet_s=quiet_s,
            pace=self._pace(journal, tally) if journal and state == RUNNING else None,
            why=why,
            notes=tuple(self.notes),
        )

    def _journal(self, n_bytes: int) -> _JournalEnd | None:
        """The newest that says anything: an attempt that waits for the lease has an empty one."""
        for attempt in self.attempts:
            end = _JournalEnd(self.paths.journal(attempt), attempt, n_bytes)
            if end.lines:
                return end
        return None

    def _state(self, journal: _JournalEnd | None, quiet_s: float, is_held: bool) -> tuple[str, str | None]:
        if is_held:
            return (RUNNING if quiet_s <= SILENT_S else SILENT), None
        marks = (int(m[1]) for name in self.names if (m := _RETRY.fullmatch(name)))
        if journal is None or any(since > journal.attempt for since in marks):
            return WAITING, None
        for event in journal.events():
            if event.name == "failed":
                return (FOR_GOOD if event.fields["for_good"] else FAILED), str(event.fields["error"])
            if event.name == "stop":
                return STOPPED, str(event.fields["signal"])
            if event.name == "sealed":
                return WAITING, None  # its tables were deleted: it is only to be sealed again
        return FAILED, f"attempt {journal.attempt} ended without a word"

    def _lease(self) -> tuple[Holder | None, float, bool]:
        """Last writer, seconds since its last renewal, and whether it still holds the shard."""
        found = last_holder(self.paths)
        if found is None:
            return None, 0.0, False
        renewed_s, holder = found
        is_held = holder is None or not holder.is_released
        return holder, max(0.0, self.now_s - renewed_s), is_held

    def _bill(self) -> Bill:
        """What the ledgers say. The lap under way is load until a rank has booked its load, and then the songs'."""
        wall_s = load_s = idle_s = lost_s = 0.0
        for name in self.names:
            if not _LEDGER.fullmatch(name):
                continue
            try:
                head = read_head(self.paths.work / name)
            except (OSError, ValueError) as error:
                self.notes.append(f"{self.paths.work / name}: {error}")
                continue
            wall_s += head.wall_s
            load_s += head.nobody[LOAD] or head.open_s
            idle_s += head.nobody[IDLE]
            lost_s += sum(head.lost.values())
        return Bill(wall_s, wall_s - load_s - idle_s - lost_s, load_s, idle_s, lost_s)

    def _began_s(self) -> float | None:
        """When the shard's first attempt began."""
        for attempt in reversed(self.attempts):
            if event := first_event(self.paths, attempt):
                return event.time_s
        return None

    def _pace(self, journal: _JournalEnd, new: Tally) -> Pace | None:
        """From the last count before the last minutes, or the attempt's first, to the newest."""
        counts = list(journal.counts())
        if not counts:
            return None
        since_s, line = next((count for count in counts if count[0] <= self.now_s - RECENT_S), counts[-1])
        event = read_event(journal.attempt, line)
        if event is None:
            return None
        old = Tally.from_json(event.fields["so_far"])
        return Pace(
            seconds=max(self.now_s, counts[0][0]) - since_s,
            songs=new.n_songs - old.n_songs,
            predicted_s=new.predicted_s - old.predicted_s,
            audio_s=new.audio_s - old.audio_s,
            ranks=sum(int(m[1]) == journal.attempt for name in self.names if (m := _LEDGER.fullmatch(name))),
        )

    def _from_tables(self) -> tuple[Tally, Bill]:
        from levo.node.provenance import PROVENANCE_SCHEMA  # late: seldom needed, and slow to import
        from levo.node.seal import read_bill
        from levo.node.tables import read_table

        rows = read_table(self.paths.provenance, PROVENANCE_SCHEMA, TALLIED).to_pylist()
        return Tally.of_rows(rows), read_bill(self.paths.provenance)


def _count(journal: _JournalEnd) -> tuple[Tally, int | None, int]:
    """(songs with a row, all songs of the shard, songs in work) by the newest count and what came after it."""
    in_work = 0
    for event in journal.events():
        if "so_far" in event.fields:
            tally = Tally.from_json(event.fields["so_far"])
            n_songs = tally.n_songs + event.fields.get("missing", 0)
            return tally, n_songs, max(0, in_work + event.fields.get("in_work", 0))
        if event.name == "give":
            in_work += 1
        elif event.name == "lost":
            in_work -= len(event.fields["songs"])
    return Tally(), None, max(0, in_work)
