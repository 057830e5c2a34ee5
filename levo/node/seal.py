"""The end of a shard: its parts become three tables, and provenance.parquet, written last, marks it as done.

Reads parts and ledgers, makes no song, and may be done again at any time: equal parts give equal tables. Knows no
ranks and no queue; the caller holds the lease and no writer is at work.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from levo.errors import FailedForGood, NodeError
from levo.node.faults import fault
from levo.node.journal import Journal
from levo.node.ledger import Bill, settle
from levo.node.parts import Part, Tar, read_parts, set_aside
from levo.node.paths import PartName, ShardPaths
from levo.node.provenance import AUDIO_SCHEMA, OUTCOMES, PROVENANCE_SCHEMA, STAGES, TOKENS_SCHEMA, row_sha256
from levo.node.tables import metadata, read_footer, to_table, with_metadata, write_table
from levo.node.tally import TALLIED, Tally
from levo.settings import Settings
from levo.songs.song import Song

BILL_KEY, TARS_KEY = "levo.bill", "levo.tars"


@dataclass(frozen=True)
class SealSummary:
    """n_twice: further copies of songs, whose cost is lost work. bill: where the ranks' time went."""

    n_songs: int
    tally: Tally
    n_twice: int
    bill: Bill = field(repr=False)

    def __str__(self) -> str:
        twice = f", {self.n_twice} made twice" if self.n_twice else ""
        return f"{self.tally.ok} songs ok, {self.tally.rejected} rejected, {self.tally.failed} failed{twice}"


@dataclass(frozen=True)
class _Copy:
    """One row of a part. index: its place in the parts' tables, one after the other."""

    outcome: str
    part: PartName
    index: int

    @property
    def rank(self) -> tuple[int, int, PartName, int]:
        """The least one counts: ok before failed, then the earliest; of failures the latest, after `levo retry`."""
        attempt = -self.part.attempt if self.outcome == "failed" else self.part.attempt
        return OUTCOMES.index(self.outcome), attempt, self.part, self.index


def seal(paths: ShardPaths, songs: Sequence[Song], settings: Settings, attempt: int) -> SealSummary:
    """Write a shard's tokens.parquet, audio.parquet and, last, provenance.parquet.

    songs: the shard's plan. attempt: whose journal tells of damaged parts. Raises NodeError, with nothing written, when
    a song has no row, a row no song, or a larger share than limits.failed_share has failed.
    """
    journal = Journal(paths, attempt)

    def say(sentence: str) -> None:
        journal.write("quarantine", sentence=sentence)

    parts = read_parts(paths, say)
    copies = _copies(parts)
    _check_songs(paths, songs, copies)
    chosen = [min(copies[song.song_id], key=lambda copy: copy.rank) for song in songs]
    outcomes = Counter(copy.outcome for copy in chosen)
    _check_failures(paths, outcomes, settings.limits.failed_share)
    counting = {song.song_id: copy.part for song, copy in zip(songs, chosen, strict=True)}
    bill = settle(paths, {song_id: (part.attempt, part.rank) for song_id, part in counting.items()})
    used = set(counting.values())
    table = pa.concat_tables([part.table.replace_schema_metadata() for part in parts])
    table = table.take([copy.index for copy in chosen])
    _write(paths, table, bill, [p.tar for p in parts if p.tar and p.name in used])
    _set_aside_copies(paths, [part for part in parts if part.name not in used], say)
    return SealSummary(
        n_songs=len(songs),
        tally=Tally.of_rows(table.select(TALLIED).to_pylist()),
        n_twice=sum(map(len, copies.values())) - len(songs),
        bill=bill,
    )


def _copies(parts: Iterable[Part]) -> dict[str, list[_Copy]]:
    """Every row of every part, by song id."""
    copies: dict[str, list[_Copy]] = {}
    index = 0
    for part in parts:
        columns = part.table.select(["song_id", "outcome"]).to_pydict()
        for song_id, outcome in zip(columns["song_id"], columns["outcome"], strict=True):
            copies.setdefault(song_id, []).append(_Copy(outcome, part.name, index))
            index += 1
    return copies


def _check_songs(paths: ShardPaths, songs: Sequence[Song], copies: dict[str, list[_Copy]]) -> None:
    planned = [song.song_id for song in songs]
    missing = [song_id for song_id in planned if song_id not in copies]
    strange = sorted(copies.keys() - set(planned))
    if missing:
        raise NodeError(
            f"{len(missing)} of {len(songs)} songs have no row yet, the first is {missing[0]!r}",
            where=str(paths.work),
            fix="run the shard again: it makes only these",
        )
    if strange:
        raise NodeError(
            f"parts hold {len(strange)} songs that are not in the shard's plan, the first is {strange[0]!r}",
            where=str(paths.work),
            fix="the plan was changed under the parts: put it back, or start a new RUN",
        )


def _check_failures(paths: ShardPaths, outcomes: Counter[str], limit: float) -> None:
    n_failed, n_songs = outcomes["failed"], outcomes.total()
    if n_failed > limit * n_songs:
        raise FailedForGood(
            f"{n_failed} of {n_songs} songs failed, a share of {n_failed / n_songs:.2g}; the limit is {limit:g}",
            where=str(paths.work),
            fix="read the logs there; then `levo retry RUN` and run again, or raise limits.failed_share",
        )


def _write(paths: ShardPaths, table: pa.Table, bill: Bill, tars: Sequence[Tar]) -> None:
    """table: PART_SCHEMA, a row a song in the order of the plan."""
    rows = table.drop_columns("tokens").to_pylist()
    for row in rows:
        stages = bill.by_song[row["song_id"]]
        row.update({f"{stage}_s": stages.get(stage, 0.0) for stage in STAGES}, gpu_seconds=sum(stages.values()))
        row["row_sha256"] = ""
    rows = to_table(rows, PROVENANCE_SCHEMA).to_pylist()  # as they will be read: 0.0 and not 0
    for row in rows:
        row["row_sha256"] = row_sha256(row)
    ok = table.filter(pc.equal(table["outcome"], "ok")).select(TOKENS_SCHEMA.names)
    files = [{"song_id": row["song_id"], **file} for row in rows for file in row["files"]]
    listed = json.dumps([{"tar": tar.name, "bytes": tar.bytes, "sha256": tar.sha256} for tar in tars])
    paths.provenance.unlink(missing_ok=True)  # no done mark while the others change
    write_table(ok, TOKENS_SCHEMA, paths.tokens)
    write_table(files, with_metadata(AUDIO_SCHEMA, {TARS_KEY: listed}), paths.audio)
    fault("seal.before_done")
    write_table(rows, with_metadata(PROVENANCE_SCHEMA, {BILL_KEY: bill.as_json()}), paths.provenance)


def _set_aside_copies(paths: ShardPaths, parts: Sequence[Part], say: Callable[[str], None]) -> None:
    """A tar that no row names would be handed on by mistake. Its rows go first: a tar alone is set aside anyway."""
    for part in parts:
        if part.tar:
            name = part.name
            rows = paths.part(name.attempt, name.rank, name.number)
            for path in (rows, paths.out / part.tar.name):
                set_aside(paths, path, "every song in it counts in another part", say)


def read_bill(provenance: Path) -> Bill:
    """The bill of a sealed shard. Raises NodeError when the file is damaged or not sealed by this version."""
    text = metadata(read_footer(provenance).schema.to_arrow_schema()).get(BILL_KEY)
    if text is None:
        raise NodeError("no bill in it", where=str(provenance), fix="give the provenance.parquet of a sealed shard")
    return Bill.from_json(text)
