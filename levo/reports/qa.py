"""`levo qa`: every audio file of a sealed shard measured as it lies on disk. Judges no music.

A file that cannot be read is a row with the flag `unreadable`; it never stops the others.
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from levo import measures
from levo.errors import LevoError, NodeError
from levo.measures import Column
from levo.node.audio import decode_flac, pcm_sha256, read_member
from levo.node.paths import RunPaths, ShardPaths
from levo.node.provenance import AUDIO_SCHEMA, PROVENANCE_SCHEMA
from levo.node.tables import write_table
from levo.pace import Pace
from levo.reports.sealed import Row, read_rows
from levo.settings import QaSettings, of_run
from levo.songs.song import FRAME_RATE

VERSION = "1"
FILES_A_PROCESS = 32
"""At least so many, since a process needs seconds for its imports."""
PCM_SCALE = 32768.0

PLACE_COLUMNS = (
    Column("song_id", "string", "", "the manifest's name of the song"),
    Column("shard", "int32", "", "node job that made it"),
    Column("rendition", "int32", "", "codec pass over the song's tokens, from 0"),
    Column("stem", "string", "", "`mixed`, `vocal` or `bgm`"),
    Column("tar", "string", "", "tar in the shard's folder"),
    Column("member", "string", "", "file in the tar"),
    Column("frames", "int32", "frames", "length of the song's tokens; a frame is 1/25 s"),
    Column("stop_reason", "string", "", "`eos`: the song ended by itself; `cap`: it ran into its cap"),
)
CHECK_COLUMNS = (
    Column("sample_rate", "int32", "Hz", "samples a second"),
    Column("samples", "int64", "samples", "length, per channel"),
    Column("frames_match", "bool", "", "whether samples are those of the frames (1920 a frame at 48 kHz)"),
    Column("pcm_match", "bool", "", "whether the samples have the hash that was recorded when they were made"),
)
COLUMNS = (*PLACE_COLUMNS, *CHECK_COLUMNS, *measures.COLUMNS)

_NEVER_NULL = {"song_id", "shard", "rendition", "stem", "tar", "member", "frames"}

QA_SCHEMA = pa.schema(
    [
        *(
            pa.field(
                c.name, pa.type_for_alias(c.type), c.name not in _NEVER_NULL, {"unit": c.unit, "meaning": c.meaning}
            )
            for c in COLUMNS
        ),
        pa.field("flags", pa.list_(pa.string()), nullable=False),
        pa.field("error", pa.string()),
    ],
    metadata={"levo.schema": "qa", "levo.schema_version": VERSION},
)

FILE_FLAGS: dict[str, tuple[str, Callable[[Row], bool]]] = {
    "unreadable": ("the file cannot be decoded", lambda row: row["error"] is not None),
    "altered": ("other samples than were made", lambda row: row["pcm_match"] is False),
    "length": ("another length than its frames", lambda row: row["frames_match"] is False),
    "cap": ("cut at its cap: the song did not end", lambda row: row["stop_reason"] == "cap"),
}
_WORST_FIRST = ("unreadable", "altered", "length", "nan", "silent", "cap")
_WORDS = {name: words for name, (words, _) in [*FILE_FLAGS.items(), *measures.FLAGS.items()]}
FLAGS: dict[str, str] = {name: _WORDS[name] for name in (*_WORST_FIRST, *_WORDS)}
"""Every flag and what it means, worst first."""


def qa_shard(run_dir: Path, shard: int, processes: int = 1) -> Path:
    """`levo qa RUN SHARD`: write RUN/qa/NNNNN.parquet, a row a file, in the order of audio.parquet.

    Raises NodeError when the shard is not sealed, or a process is lost.
    """
    thresholds = of_run(run_dir).qa
    paths = RunPaths(run_dir).shard(shard)
    fix = f"run `levo shard {run_dir} {shard}` first"
    songs = {row["song_id"]: row for row in read_rows(paths.provenance, PROVENANCE_SCHEMA, fix)}
    files = _files(paths, fix)
    measure = partial(measure_file, paths, thresholds=thresholds)
    pace = Pace("files", len(files))
    rows = []
    for row in _mapped(measure, files, [songs[file["song_id"]] for file in files], processes):
        rows.append(row)
        pace.add()
    write_table(rows, QA_SCHEMA, paths.qa)
    return paths.qa


def _mapped(measure: Callable[[Row, Row], Row], files: list[Row], songs: list[Row], processes: int) -> Iterator[Row]:
    """In their order, in processes where there is work for them."""
    processes = min(processes, len(files) // FILES_A_PROCESS)
    if processes < 2:
        yield from map(measure, files, songs)
        return
    # Not forked: pyarrow has threads.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(measure, files, songs, chunksize=4)
        except BrokenProcessPool:
            fix = "give it more memory (0.8 GB a process), or fewer --processes"
            where = f"shard {songs[0]['shard']}"
            raise NodeError("a process that measured files was killed", where=where, fix=fix) from None


def _files(paths: ShardPaths, fix: str) -> list[Row]:
    return read_rows(paths.audio, AUDIO_SCHEMA, fix)


def measure_file(paths: ShardPaths, file: Row, song: Row, thresholds: QaSettings) -> Row:
    """The QA row of a file. file: its row of audio.parquet; song: its provenance row."""
    row: Row = dict.fromkeys(QA_SCHEMA.names)
    row.update({name: file[name] for name in ("song_id", "rendition", "stem", "tar", "member")})
    row.update({name: song[name] for name in ("shard", "frames", "stop_reason")})
    try:
        pcm, rate = decode_flac(read_member(paths.out / file["tar"], file["member"]))
    except LevoError as error:
        row["error"] = error.what
    else:
        row.update(_measured(pcm, rate, file, thresholds), frames_match=len(pcm) * FRAME_RATE == row["frames"] * rate)
    raised = {name for name, (_, holds) in FILE_FLAGS.items() if holds(row)}
    if row["error"] is None:
        raised.update(measures.flags(row, thresholds))
    row["flags"] = [name for name in FLAGS if name in raised]
    return row


def _measured(pcm: np.ndarray, rate: int, file: Mapping[str, Any], thresholds: QaSettings) -> Row:
    samples = pcm.astype(np.float32) / PCM_SCALE
    return {
        "sample_rate": rate,
        "samples": len(pcm),
        "pcm_match": pcm_sha256(pcm) == file["pcm_sha256"],
        **measures.measure(samples, rate, thresholds.active_dbfs),
    }
