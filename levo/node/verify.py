"""Is a finished shard what its provenance says? Every row and file is checked, and some songs are made again.

`levo verify PROVENANCE --songs N`. The check reads the shard's folder only; the songs that are made again come from
their rows alone, plus the model directory (levo.node.remake).
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from levo.errors import NodeError
from levo.node.audio import decode_flac, pcm_sha256, read_member
from levo.node.making import REAL
from levo.node.provenance import AUDIO_SCHEMA, PROVENANCE_SCHEMA, TOKENS_SCHEMA, row_sha256, tokens_sha256
from levo.node.remake import remake

CHUNK = 1 << 20
Row = dict[str, Any]


@dataclass
class VerifySummary:
    """A sentence each. different: what is not as recorded.  equal, not_comparable: songs that were made again."""

    n_rows: int = 0
    n_files: int = 0
    equal: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.n_rows} rows and {self.n_files} audio files read"]
        lines += [f"equal           {line}" for line in self.equal]
        lines += [f"not comparable  {line}" for line in self.not_comparable]
        lines += [f"DIFFERENT       {line}" for line in self.different]
        counts = f"{len(self.equal)} equal, {len(self.not_comparable)} not comparable"
        verdict = f"{len(self.different)} differences" if self.different else "nothing differs"
        return "\n".join([*lines, f"songs made again: {counts}; {verdict}"])


def verify(provenance: Path, n_songs: int, model_dir: Path | None, maker: str = REAL) -> VerifySummary:
    """Check a shard and make n_songs of its songs again, spread over it. Raises NodeError when it cannot be read.

    model_dir: None uses the one recorded in the rows.
    """
    rows = _read(provenance, PROVENANCE_SCHEMA)
    summary = VerifySummary(n_rows=len(rows))
    summary.different += _check_rows(rows)
    summary.different += _check_tokens(rows, _read(provenance.with_name("tokens.parquet"), TOKENS_SCHEMA))
    audio = provenance.with_name("audio.parquet")
    audio_rows = _read(audio, AUDIO_SCHEMA)
    summary.n_files = len(audio_rows)
    summary.different += _check_audio_rows(rows, audio_rows)
    summary.different += _check_tars(audio, audio_rows)
    for row in audio_rows:
        summary.different += _check_file(audio.parent, row)
    whole = [row for row in rows if row["outcome"] == "ok" and row["row_sha256"] == row_sha256(row)]
    n_chosen = min(n_songs, len(whole))
    chosen = [whole[i * len(whole) // n_chosen] for i in range(n_chosen)]
    result = remake(chosen, model_dir, provenance, maker)
    summary.equal += result.equal
    summary.different += result.different
    summary.not_comparable += result.not_comparable
    return summary


def _read(path: Path, schema: pa.Schema) -> list[Row]:
    """Rows of one of the shard's three tables."""
    fix = "give the provenance.parquet of a finished shard, RUN/shards/NNNNN/provenance.parquet, beside its other files"
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise NodeError(f"not a readable table: {error}", where=str(path), fix=fix) from None
    if not table.schema.equals(schema) or table.schema.metadata.get(b"levo.schema_version") != schema.metadata.get(
        b"levo.schema_version"
    ):
        name = schema.metadata[b"levo.schema"].decode()
        raise NodeError(f"its columns are not those of table {name}", where=str(path), fix=fix)
    rows: list[Row] = table.to_pylist()
    return rows


def _named(row: Row) -> str:
    return f"song {row['song_id']!r}"


def _file_name(row: Row) -> str:
    return f"{_named(row)}, rendition {row['rendition']}, {row['stem']}"


def _check_rows(rows: list[Row]) -> Iterator[str]:
    for row in rows:
        if row_sha256(row) != row["row_sha256"]:
            yield f"{_named(row)}: its provenance row was changed (row_sha256)"
    for song_id, n in Counter(row["song_id"] for row in rows).items():
        if n > 1:
            yield f"song {song_id!r}: {n} provenance rows"


def _check_tokens(rows: list[Row], token_rows: list[Row]) -> Iterator[str]:
    made = {row["song_id"]: row for row in rows if row["outcome"] == "ok"}
    counts = Counter(row["song_id"] for row in token_rows)
    for song_id in made.keys() | counts.keys():
        if song_id not in made or counts[song_id] != 1:
            yield f"song {song_id!r}: {counts[song_id]} rows in tokens.parquet, {int(song_id in made)} expected"
    for row in token_rows:
        tokens = row.pop("tokens")
        recorded = made.get(row["song_id"])
        if recorded is None:
            continue
        if tokens_sha256(np.array(tokens, dtype=np.int32)) != recorded["tokens_sha256"]:
            yield f"{_named(row)}: its tokens were changed (tokens_sha256)"
        changed = [name for name, value in row.items() if value != recorded[name]]
        if changed:
            yield f"{_named(row)}: {', '.join(changed)} in tokens.parquet differ from its provenance row"


def _check_audio_rows(rows: list[Row], audio_rows: list[Row]) -> Iterator[str]:
    def key(row: Row) -> tuple[str, int, str]:
        return (row["song_id"], row["rendition"], row["stem"])

    recorded = {key(file): file for row in rows for file in ({"song_id": row["song_id"], **f} for f in row["files"])}
    found = {key(row): row for row in audio_rows}
    if len(found) != len(audio_rows):
        yield f"audio.parquet has {len(audio_rows)} rows for {len(found)} files"
    for name in sorted(recorded.keys() | found.keys()):
        file, row = recorded.get(name), found.get(name)
        if file is None or row is None:
            place = "audio.parquet" if row is None else "the song's provenance row"
            yield f"song {name[0]!r}, rendition {name[1]}, {name[2]}: missing in {place}"
            continue
        changed = [column for column, value in row.items() if value != file[column]]
        if changed:
            yield f"{_file_name(row)}: {', '.join(changed)} in audio.parquet differ from the song's provenance row"


def _check_tars(audio: Path, audio_rows: list[Row]) -> Iterator[str]:
    metadata = pq.read_schema(audio).metadata or {}
    listed = {tar["tar"]: tar for tar in json.loads(metadata.get(b"levo.tars", b"[]"))}
    for name in sorted({row["tar"] for row in audio_rows} - listed.keys()):
        yield f"{name}: not in audio.parquet's list of tars"
    for name, tar in listed.items():
        path = audio.parent / name
        if not path.is_file():
            yield f"{name}: missing"
        elif path.stat().st_size != tar["bytes"]:
            yield f"{name}: {path.stat().st_size} bytes instead of {tar['bytes']}"
        elif _sha256(path) != tar["sha256"]:
            yield f"{name}: its bytes were changed (sha256)"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _check_file(folder: Path, row: Row) -> Iterator[str]:
    """One audio file: its bytes, and the samples that they decode to."""
    try:
        flac = read_member(folder / row["tar"], row["member"])
        if hashlib.sha256(flac).hexdigest() != row["flac_sha256"] or len(flac) != row["bytes"]:
            yield f"{_file_name(row)}: the FLAC file was changed (flac_sha256)"
        pcm, rate = decode_flac(flac)
    except NodeError as error:
        yield f"{_file_name(row)}: {error.what}"
        return
    if pcm_sha256(pcm) != row["pcm_sha256"]:
        yield f"{_file_name(row)}: its samples are others (pcm_sha256)"
    if (len(pcm), rate) != (row["samples"], row["sample_rate"]):
        recorded = f"{row['samples']} at {row['sample_rate']} Hz"
        yield f"{_file_name(row)}: {len(pcm)} samples at {rate} Hz instead of {recorded}"
