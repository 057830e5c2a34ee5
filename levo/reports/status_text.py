"""A RUN's status as plain text for a terminal. Knows no files."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from levo.node.tally import Tally
from levo.reports.formulas import HOUR_S, x_realtime
from levo.reports.shard_state import FAILED, FOR_GOOD, RECENT_S, RUNNING, SILENT, STATES, STOPPED, ShardState
from levo.reports.status import Status
from levo.reports.words import count, duration, figure, share

MOST_REASONS, MOST_ENDED, MOST_RUNNING, MOST_NOTES = 5, 10, 20, 3
BAR = 20


def text_of(status: Status) -> str:
    """All of it, in lines of about a hundred characters."""
    return "\n".join([*_head(status), *_reasons(status), *_ended(status), *_running(status), *_notes(status)])


def _head(status: Status) -> Iterator[str]:
    tally = status.tally
    states = Counter(shard.state for shard in status.shards)
    yield f"{status.settings.run}, {datetime.fromtimestamp(status.now_s):%Y-%m-%d %H:%M:%S}"
    yield ""
    named = ", ".join(f"{states[state]:,} {state}" for state in STATES if states[state])
    yield f"shards   {len(status.shards):,}: {named}"
    yield f"songs    {_songs(status, tally)}"
    planned = f" of {figure(status.planned['audio_hours'])} h planned" if status.planned else ""
    yield f"audio    {figure(tally.audio_s / HOUR_S)} h{planned}"
    yield f"rate     {_rate(status, tally)}"
    yield f"left     {_left(status)}"
    yield f"cost     {_cost(status)}"
    if stages := status.bill.by_stage:
        total = sum(stages.values()) or 1.0
        shares = ", ".join(f"{name} {share(stages[name] / total)}" for name in sorted(stages, key=lambda n: -stages[n]))
        yield f"         songs of the finished shards: {shares}"


def _songs(status: Status, tally: Tally) -> str:
    in_work = sum(shard.in_work for shard in status.shards)
    parts = f"{tally.ok:,} ok, {tally.rejected:,} rejected, {tally.failed:,} failed, {in_work:,} in work"
    if status.n_songs is None:
        return f"not planned yet: {parts}"
    return f"{status.n_songs:,}: {parts}, {max(0, status.n_songs - tally.n_songs - in_work):,} to make"


def _rate(status: Status, tally: Tally) -> str:
    parts = []
    pace, span_s = status.pace, status.span_s
    if pace:
        speed = pace.audio_s / HOUR_S / pace.ranks if pace.ranks else None
        parts.append(f"last {RECENT_S / 60:.0f} min: {pace.songs:,} songs/h{_times(speed)}")
    if span_s:
        hourly = tally.n_songs / span_s * HOUR_S
        speed = x_realtime(tally.audio_s, status.bill.wall_s)
        parts.append(f"overall, {duration(span_s)}: {hourly:,.0f} songs/h{_times(speed)}")
    return "; ".join(parts) or "nothing has run yet"


def _times(speed: float | None) -> str:
    return f", {figure(speed)}x realtime a GPU" if speed is not None else ""


def _left(status: Status) -> str:
    if status.is_finished:
        return "nothing: every shard is done"
    if not any(shard.state == RUNNING for shard in status.shards):
        return "nothing is running"
    if status.planned is None:
        return "unknown before `levo estimate RUN`"
    left_s = status.left_s
    return f"{duration(left_s)} at this rate" if left_s is not None else "unknown until songs are made"


def _cost(status: Status) -> str:
    bill = status.bill
    unit = "rank" if status.settings.node.device == "cpu" else "GPU"
    planned = f" of {figure(status.planned['gpu_hours'])} planned" if status.planned else ""
    spent = f"{figure(bill.wall_s / HOUR_S)} {unit}-hours{planned}"
    if not bill.wall_s:
        return spent
    parts = ("songs", "load", "idle", "lost")
    return f"{spent}: " + ", ".join(f"{part} {share(getattr(bill, f'{part}_s') / bill.wall_s)}" for part in parts)


def _reasons(status: Status) -> Iterator[str]:
    reasons = status.tally.reasons.most_common()
    if reasons:
        yield from ("", "songs without audio")
        yield from (f"  {n:>6,}  {reason}" for reason, n in reasons[:MOST_REASONS])
        yield from _more(len(reasons) - MOST_REASONS, "kind")


def _ended(status: Status) -> Iterator[str]:
    """Shards that ended without all their songs, those for good first."""
    kinds = (FOR_GOOD, FAILED, STOPPED)
    found = sorted(
        (shard for shard in status.shards if shard.state in kinds), key=lambda s: (kinds.index(s.state), s.number)
    )
    if found:
        yield from ("", "shards that ended before their last song; work/NNNNN has their logs")
        yield from (f"  {shard.number:05d}  {shard.state}: {shard.why}" for shard in found[:MOST_ENDED])
        yield from _more(len(found) - MOST_ENDED, "shard")


def _running(status: Status) -> Iterator[str]:
    """Shards at work: the silent ones, the longest first, then the others by number."""
    silent = sorted((s for s in status.shards if s.state == SILENT), key=lambda s: -s.quiet_s)
    if silent:
        yield from ("", "shards without a sign of life: their lease is not renewed")
        yield from (
            f"  {shard.number:05d}  for {duration(shard.quiet_s)}: {_where(shard)}" for shard in silent[:MOST_ENDED]
        )
        yield from _more(len(silent) - MOST_ENDED, "shard")
    running = [shard for shard in status.shards if shard.state == RUNNING]
    if running:
        yield from ("", "shards at work")
        yield from (f"  {_line(shard)}" for shard in running[:MOST_RUNNING])
        yield from _more(len(running) - MOST_RUNNING, "shard")


def _line(shard: ShardState) -> str:
    if shard.n_songs is None:
        return f"{shard.number:05d}  starting, {_where(shard)}"
    n_done, n_songs = shard.tally.n_songs, shard.n_songs
    full = BAR * n_done // max(1, n_songs)
    parts = [f"{n_done:,}/{n_songs:,} songs", f"{shard.in_work:,} in work"]
    pace = shard.pace
    if pace and pace.songs > 0:
        parts.append(f"{pace.songs / pace.seconds * HOUR_S:,.0f} songs/h")
        parts.append(f"{duration((n_songs - n_done) * pace.seconds / pace.songs)} left")
    return f"{shard.number:05d}  [{'#' * full}{'-' * (BAR - full)}] {', '.join(parts)}; {_where(shard)}"


def _where(shard: ShardState) -> str:
    holder = shard.holder
    if holder is None:
        return "by an unreadable lease"
    job = f", job {holder.slurm_job_id}" if holder.slurm_job_id else ""
    return f"{holder.host}{job}, attempt {holder.attempt}"


def _notes(status: Status) -> Iterator[str]:
    notes = [note for shard in status.shards for note in shard.notes]
    if notes:
        yield from ("", "files that could not be read")
        yield from (f"  {note}" for note in notes[:MOST_NOTES])
        yield from _more(len(notes) - MOST_NOTES, "file")


def _more(n: int, what: str) -> Iterator[str]:
    if n > 0:
        yield f"  and {count(n, what)} more"
