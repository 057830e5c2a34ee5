"""What each rank's wall time was spent on, to the second, and the bill of a shard. Knows no stage's meaning.

A lap clock: every booking takes the time since the one before, in equal shares to its songs. So songs + load + idle
add up to the wall time by construction. What is written each second is cumulated and replaces the former file whole: a
kill loses at most the last second and the lap under way.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from levo.disk import whole_file
from levo.errors import NodeError
from levo.node.paths import ShardPaths

SYNC_S = 1.0
HEAD_BYTES = 4096
LOAD, IDLE = "load", "idle"
Stages = dict[str, float]


def process_age_s() -> float:
    """Seconds since this process was started (Linux): Python's and torch's imports are time of the rank, too."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # field 22: start since boot
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


class Ledger:
    """The ledger of one rank. book() and name() from the rank's thread; a thread of its own writes each second."""

    def __init__(
        self,
        paths: ShardPaths,
        attempt: int,
        rank: int,
        age_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """age_s: how long ago the first lap began; null: when this process was started."""
        self.path = paths.ledger(attempt, rank)
        self.attempt, self.rank, self.clock = attempt, rank, clock
        self.lock = threading.Lock()
        self.begin_s = clock() - (process_age_s() if age_s is None else age_s)
        self.lap_s = self.begin_s
        self.nobody: Stages = {LOAD: 0.0, IDLE: 0.0}
        self.lost: Stages = {}
        self.songs: dict[str, Stages] = {}
        self.names: dict[int, str] = {}
        self.texts: dict[str, str] = {}
        self.unwritten: set[str] = set()
        self.ended = threading.Event()
        self.sync()
        self.thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self.thread.start()

    def name(self, key: int, song_id: str) -> None:
        """Say whose time is booked under a key. Every key is named before it is booked."""
        with self.lock:
            self.names[key] = song_id
            self.songs.setdefault(song_id, {})
            self.unwritten.add(song_id)

    def book(self, stage: str, keys: Sequence[int]) -> None:
        """Book the time since the last booking: in equal shares to these songs, or to nobody (`load`, else idle)."""
        with self.lock:
            now = self.clock()
            lap, self.lap_s = now - self.lap_s, now
            if not keys:
                self.nobody[LOAD if stage == LOAD else IDLE] += lap
            for key in keys:
                song_id = self.names[key]
                stages = self.songs[song_id]
                stages[stage] = stages.get(stage, 0.0) + lap / len(keys)
                self.unwritten.add(song_id)

    def lose(self, keys: Sequence[int]) -> None:
        """What these songs have cost so far is lost work: their engine is gone and they begin again under new keys."""
        with self.lock:
            for key in keys:
                song_id = self.names[key]
                _add(self.lost, self.songs[song_id])
                self.songs[song_id] = {}
                self.unwritten.add(song_id)

    def state(self) -> "RankLedger":
        """All that is booked by now."""
        with self.lock:
            return self._state({song_id: dict(stages) for song_id, stages in self.songs.items()})

    def _state(self, by_song: dict[str, Stages]) -> "RankLedger":
        now = self.clock()
        return RankLedger(
            attempt=self.attempt,
            rank=self.rank,
            wall_s=now - self.begin_s,
            open_s=now - self.lap_s,
            nobody=dict(self.nobody),
            lost=dict(self.lost),
            by_song=by_song,
        )

    def sync(self) -> None:
        """Write the ledger now. Raises OSError.

        Only the songs that were booked since the last time are put into words again: a rank's thousand finished ones
        would hold up its other threads for milliseconds each second.
        """
        with self.lock:
            content = vars(self._state({}))
            changed = {song_id: dict(self.songs[song_id]) for song_id in self.unwritten}
            self.unwritten.clear()
        self.texts |= {song_id: f"{_json(song_id)}: {_json(stages)}" for song_id, stages in changed.items()}
        del content["by_song"]
        text = f'{_json(content)[:-1]}, "by_song": {{{", ".join(self.texts.values())}}}}}'
        with whole_file(self.path) as file:
            file.write(text.encode())

    def close(self) -> None:
        """Write it for the last time. The rank ended well, so its last lap was idle; without this it is lost work."""
        self.ended.set()
        self.thread.join()
        self.book(IDLE, [])
        self.clock = lambda: self.lap_s  # no lap is open after a good end
        self.sync()

    def _run(self) -> None:
        said = ""
        while not self.ended.wait(SYNC_S):
            try:
                self.sync()
            except OSError as error:  # a full disk stops the parts, and says so there; the next second may do better
                if str(error) != said:
                    said = str(error)
                    print(f"the ledger could not be written: {error}", flush=True)


@dataclass(frozen=True)
class RankLedger:
    """A ledger as it lies on disk, in seconds.

    wall_s: since the rank began.  open_s: the lap under way at that moment.  nobody: load and idle.  lost: songs whose
    engine was lost.  by_song: by stage. wall = open + nobody + lost + by_song.
    """

    attempt: int
    rank: int
    wall_s: float
    open_s: float
    nobody: Stages
    lost: Stages
    by_song: dict[str, Stages]

    @property
    def by_stage(self) -> Stages:
        """Seconds of all songs by stage, with load and idle; lost work is under the stage that it was lost in."""
        total = dict(self.nobody)
        for stages in (*self.by_song.values(), self.lost):
            _add(total, stages)
        return total


def read_head(path: Path) -> RankLedger:
    """A ledger without its songs, which are nearly all of the file. Raises OSError; ValueError when it is damaged.

    Rests on by_song being the last field.
    """
    with path.open("rb") as file:
        head, found, _ = file.read(HEAD_BYTES).partition(b', "by_song"')
    if not found:
        raise ValueError("not a ledger")
    try:
        return RankLedger(**json.loads(head + b"}"), by_song={})
    except TypeError as error:
        raise ValueError(f"not a ledger: {error}") from None


def read_ledgers(paths: ShardPaths) -> list[RankLedger]:
    """All ledgers of a shard, by attempt and rank. Raises NodeError when one is damaged."""
    found = []
    for path in paths.work.glob("ledger-a*-r*.json"):
        try:
            found.append(RankLedger(**json.loads(path.read_bytes())))
        except (ValueError, TypeError) as error:
            raise NodeError(
                f"ledger not readable: {error}",
                where=str(path),
                fix="without it the bill is wrong; delete it only to give its hours up as unaccounted",
            ) from None
    return sorted(found, key=lambda ledger: (ledger.attempt, ledger.rank))


@dataclass(frozen=True)
class Bill:
    """Where the ranks' time of a shard went, in seconds; songs_s + load_s + idle_s + lost_s = wall_s.

    by_song: what each song is charged with, by stage.  by_stage: the same, added up.  attempts: number, ranks, wall_s
    (added up) and longest_s (of one rank) of each attempt that had ranks.
    """

    wall_s: float = 0.0
    songs_s: float = 0.0
    load_s: float = 0.0
    idle_s: float = 0.0
    lost_s: float = 0.0
    by_stage: Stages = field(default_factory=dict)
    attempts: list[dict[str, float]] = field(default_factory=list)
    by_song: dict[str, Stages] = field(default_factory=dict)

    def as_json(self) -> str:
        """Without by_song, which is in the rows."""
        content = asdict(self)
        del content["by_song"]
        return json.dumps(content)

    @classmethod
    def from_json(cls, text: str) -> "Bill":
        """What as_json wrote."""
        content: dict[str, Any] = json.loads(text)
        return cls(**content)


def settle(paths: ShardPaths, committed: Mapping[str, tuple[int, int]]) -> Bill:
    """The bill of a shard. committed: of each song, attempt and rank of the copy that counts.

    All that this rank booked for it in this attempt is the song's, even after the commit; what others booked for it is
    lost work, and so are laps that no booking has ended.
    """
    nobody: Stages = {LOAD: 0.0, IDLE: 0.0}
    by_song: dict[str, Stages] = {song_id: {} for song_id in committed}
    by_stage: Stages = {}
    lost_s = 0.0
    ledgers = read_ledgers(paths)
    for ledger in ledgers:
        _add(nobody, ledger.nobody)
        lost_s += ledger.open_s + sum(ledger.lost.values())
        for song_id, stages in ledger.by_song.items():
            if committed.get(song_id) == (ledger.attempt, ledger.rank):
                _add(by_song[song_id], stages)
                _add(by_stage, stages)
            else:
                lost_s += sum(stages.values())
    return Bill(
        wall_s=sum(ledger.wall_s for ledger in ledgers),
        songs_s=sum(by_stage.values()),
        load_s=nobody[LOAD],
        idle_s=nobody[IDLE],
        lost_s=lost_s,
        by_stage=by_stage,
        attempts=_attempts(ledgers),
        by_song=by_song,
    )


def _attempts(ledgers: Sequence[RankLedger]) -> list[dict[str, float]]:
    walls: dict[int, list[float]] = {}
    for ledger in ledgers:
        walls.setdefault(ledger.attempt, []).append(ledger.wall_s)
    return [
        {"attempt": attempt, "ranks": len(times), "wall_s": sum(times), "longest_s": max(times)}
        for attempt, times in walls.items()
    ]


def _add(total: Stages, stages: Mapping[str, float]) -> None:
    for stage, seconds in stages.items():
        total[stage] = total.get(stage, 0.0) + seconds


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
