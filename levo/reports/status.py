"""How far a RUN is, added up over its shards, from its files alone. Writes nothing, and says nothing in words.

A shard costs a few small reads (shard_state.py), made by several threads: on a parallel file system each one is a round
trip.
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levo.node.ledger import Bill
from levo.node.paths import RunPaths
from levo.node.tally import Tally
from levo.reports.formulas import HOUR_S
from levo.reports.shard_state import DONE, RUNNING, Pace, ShardState, read_state
from levo.settings import Settings, of_run

THREADS = 16


@dataclass(frozen=True)
class Status:
    """A RUN at one moment.

    n_songs: by the plan; null before it.  planned: RUN/plan/estimate.json; null before it.  shards: by number.
    """

    settings: Settings
    now_s: float
    n_songs: int | None
    planned: dict[str, Any] | None
    shards: tuple[ShardState, ...]

    @property
    def tally(self) -> Tally:
        """Songs with a row."""
        total = Tally()
        for shard in self.shards:
            total.add(shard.tally)
        return total

    @property
    def bill(self) -> Bill:
        """Where the ranks' time went so far, unfinished attempts included. by_stage: of the finished shards."""
        parts = ("wall_s", "songs_s", "load_s", "idle_s", "lost_s")
        stages: dict[str, float] = {}
        for shard in self.shards:
            for stage, seconds in shard.bill.by_stage.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        return Bill(**{part: sum(getattr(s.bill, part) for s in self.shards) for part in parts}, by_stage=stages)

    @property
    def pace(self) -> Pace | None:
        """What all running shards make in an hour, at their rates of the last minutes; null when nothing is made."""
        paces = [shard.pace for shard in self.shards if shard.pace and shard.pace.seconds > 0]
        if not paces:
            return None
        hourly = {
            name: sum(getattr(pace, name) / pace.seconds for pace in paces) * HOUR_S
            for name in ("predicted_s", "audio_s")
        }
        songs = round(sum(pace.songs / pace.seconds for pace in paces) * HOUR_S)
        return Pace(seconds=HOUR_S, songs=songs, ranks=sum(pace.ranks for pace in paces), **hourly)

    @property
    def span_s(self) -> float | None:
        """From the first event of any shard until now, or until the last event when no shard is running."""
        began = [shard.began_s for shard in self.shards if shard.began_s is not None]
        if not began:
            return None
        is_running = any(shard.state == RUNNING for shard in self.shards)
        ended = self.now_s if is_running else max(s.last_s for s in self.shards if s.last_s is not None)
        return max(0.0, ended - min(began))

    @property
    def left_s(self) -> float | None:
        """How long what is missing takes at the present rate; null when the rate or the plan's audio is unknown."""
        pace = self.pace
        if self.planned is None or pace is None or pace.predicted_s <= 0:
            return None
        missing_s = self.planned["audio_hours"] * HOUR_S - self.tally.predicted_s
        return max(0.0, missing_s) / pace.predicted_s * HOUR_S

    @property
    def is_finished(self) -> bool:
        """Every shard is sealed."""
        return all(shard.state == DONE for shard in self.shards)


def read_status(run_dir: Path, now_s: float | None = None) -> Status:
    """Look at a RUN. now_s: seconds since 1970, for tests. Raises ConfigError when this is no RUN."""
    settings, paths = of_run(run_dir), RunPaths(run_dir)
    now_s = time.time() if now_s is None else now_s
    with ThreadPoolExecutor(THREADS) as pool:
        shards = pool.map(lambda number: read_state(paths.shard(number), now_s), range(settings.plan.n_shards))
        found = tuple(shards)
    kept = _json(paths.plan.with_name("kept.json"))
    planned = _json(paths.estimate)
    return Status(settings, now_s, kept["n_songs"] if kept else None, planned, found)


def _json(path: Path) -> dict[str, Any] | None:
    """A file's content; null before it is written."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content
