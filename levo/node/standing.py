"""How a shard stands before an attempt: which songs have a row, which are missing, and what went wrong so far.

Reads parts, journals and retry marks; only the holder of the lease may call it. Decides nothing about ranks.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from levo.disk import whole_file
from levo.errors import NodeError
from levo.node.journal import Event, History
from levo.node.parts import read_parts
from levo.node.paths import ShardPaths
from levo.node.tally import TALLIED, Tally
from levo.songs.song import Song

RETRY_MARKS = "retry-*.json"


@dataclass
class Standing:
    """outcomes: song id -> outcome of the row that counts; tally: the same counted.  missing: songs to make, in the
    plan's order.

    failed: ids of songs whose only rows are failed.  losses: how often a song was lost with its rank.
    in_flight: songs that the last attempt had given out and whose rows it had not committed.
    fruitless: attempts in a row, up to the last, that had songs to make and committed none.
    """

    outcomes: dict[str, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    missing: list[Song] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    losses: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    fruitless: int = 0


def read_standing(paths: ShardPaths, songs: Sequence[Song], say: Callable[[str], None]) -> Standing:
    """Read what is there; what is damaged goes to the quarantine, and is missing."""
    since, again = read_retries(paths)
    standing = Standing()
    counting = {}
    for part in read_parts(paths, say):
        for row in part.table.select(["song_id", *TALLIED]).to_pylist():
            song_id, outcome = row["song_id"], row["outcome"]
            if outcome == "failed" and part.name.attempt < again.get(song_id, 0):
                continue
            if standing.outcomes.get(song_id) != "ok":
                standing.outcomes[song_id] = outcome
                counting[song_id] = row
    standing.tally = Tally.of_rows(counting.values())
    standing.missing = [song for song in songs if song.song_id not in standing.outcomes]
    standing.failed = [song.song_id for song in songs if standing.outcomes.get(song.song_id) == "failed"]
    _read_history(standing, History.read(paths).events, since)
    return standing


def _read_history(standing: Standing, events: Sequence[Event], since: int) -> None:
    by_attempt: dict[int, list[Event]] = {}
    for event in events:
        by_attempt.setdefault(event.attempt, []).append(event)
        if event.name == "lost" and event.attempt >= since:
            standing.losses.update(event.fields["songs"])
    started = {n: found for n, found in by_attempt.items() if any(event.name == "start" for event in found)}
    if started:
        last = started[max(started)]
        given = {event.fields["song"] for event in last if event.name == "give"}
        standing.in_flight = sum(song.song_id in given for song in standing.missing)
    for attempt in sorted((n for n in started if n >= since), reverse=True):
        kind = _kind(started[attempt])
        if kind == "fruitful":
            break
        standing.fruitless += kind == "fruitless"


def _kind(events: Sequence[Event]) -> str:
    """fruitful, fruitless, or no attempt to judge by.

    The latter had nothing to make, or was interrupted by Ctrl-C, or by a signal long before its job's end.
    """
    if any(event.name == "commit" for event in events):
        return "fruitful"
    had_work = any(event.name == "start" and event.fields["missing"] for event in events)
    stops = [event.fields for event in events if event.name == "stop"]
    interrupted = any(stop["signal"] == "SIGINT" or stop.get("early") for stop in stops)
    return "fruitless" if had_work and not interrupted else "neither"


def mark_retry(paths: ShardPaths, song_ids: Sequence[str]) -> None:
    """From the next attempt on, failed rows of these songs do not count, nor what went wrong before."""
    since = History.read(paths).next_attempt
    with whole_file(paths.work / f"retry-{since:03d}.json") as file:
        file.write(json.dumps({"since": since, "songs": list(song_ids)}, ensure_ascii=False).encode())


def read_retries(paths: ShardPaths) -> tuple[int, dict[str, int]]:
    """(attempt since which history counts, song id -> attempt since which its failed rows count)."""
    since, again = 0, {}
    for path in sorted(paths.work.glob(RETRY_MARKS)):
        try:
            mark = json.loads(path.read_bytes())
            first, song_ids = int(mark["since"]), list(mark["songs"])
        except (ValueError, KeyError, TypeError) as error:
            raise NodeError(
                f"retry mark not readable: {error!r}", where=str(path), fix="delete it and run `levo retry RUN` again"
            ) from None
        since = max(since, first)
        again.update(dict.fromkeys(song_ids, first))
    return since, again
