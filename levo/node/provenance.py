"""The tables of a shard: every column with its type, unit and meaning, as one explicit schema each.

Schemas are equal in every shard, even where a column is all null. Knows no song, and
nothing of how a fact is found: it is filled in where it is born (levo.node.rows), or at sealing (levo.node.seal).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from levo.node.tables import write_table as write_table

VERSION = "3"
STAGES = ("prefill", "main", "sub", "flow", "vae", "encode", "write")
"""What a rank's time can be spent on for a song; `<stage>_s` is its column."""
OUTCOMES = ("ok", "rejected", "failed")

TEXT, INT, LONG, REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()
TOKEN_ROWS = pa.list_(pa.list_(INT))


@dataclass(frozen=True)
class Column:
    """volatile: a rerun may change it (times, host, attempt, place); all others are equal, song by song."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    nullable: bool = False
    volatile: bool = False

    @property
    def field(self) -> pa.Field:
        return pa.field(self.name, self.type, nullable=self.nullable)


def _null(name: str, type_: pa.DataType, unit: str, meaning: str) -> Column:
    return Column(name, type_, unit, meaning, nullable=True)


def _place(name: str, type_: pa.DataType, unit: str, meaning: str, nullable: bool = False) -> Column:
    return Column(name, type_, unit, meaning, nullable, volatile=True)


FILE_COLUMNS = (
    Column("rendition", INT, "", "Codec pass over the song's tokens, from 0; each has its own noise"),
    Column("stem", TEXT, "", "`mixed`, `vocal` or `bgm`"),
    _place("tar", TEXT, "", "Tar in the folder of this table"),
    Column("member", TEXT, "", "File in the tar; named after a hash of the song id"),
    Column("bytes", LONG, "B", "Size of the FLAC file"),
    Column("samples", LONG, "samples", "Length, per channel"),
    Column("sample_rate", INT, "Hz", "Samples a second"),
    Column("gain", REAL, "", "Factor that was applied: min(1, 0.999 / peak)"),
    Column("peak", REAL, "full scale", "Largest absolute sample before the gain"),
    Column("clipped_share", REAL, "", "Share of samples beyond full scale before the gain"),
    Column("vae_dtype", TEXT, "", "Precision of the VAE; a window that was not finite is decoded again in float32"),
    Column("pcm_sha256", TEXT, "", "Hash of the 16-bit samples, little-endian, interleaved"),
    Column("flac_sha256", TEXT, "", "Hash of the FLAC file"),
)

WHO_COLUMNS = (
    Column("song_id", TEXT, "", "The manifest's name of the song"),
    Column("shard", INT, "", "Node job that made it"),
    Column("file", TEXT, "", "Manifest"),
    Column("line", LONG, "", "Line of the manifest (row, for Parquet), from 1"),
    Column("lyrics", TEXT, "", "Canonical lyrics (NFC), as the model read them"),
    _null("description", TEXT, "", "Style in words (NFC)"),
    Column("language", TEXT, "", "Language of the lyrics, as the length prediction sees it"),
    _null("prompt_source", TEXT, "", "Where the audio prompt came from: `file:PATH` or `auto:GENRE/LANGUAGE/NUMBER`"),
    _null("prompt_sha256", TEXT, "", "Hash of the audio prompt's tokens, as `tokens_sha256`"),
    _null("prompt", TOKEN_ROWS, "tokens", "Audio prompt, a list a codebook; null without one"),
    Column("lyric_tokens", INT, "tokens", "Lyrics, start token included"),
    Column("style_tokens", INT, "tokens", "Description, start token included"),
    Column("predicted_frames", INT, "frames", "Length that the plan reckoned with"),
)

HOW_COLUMNS = (
    Column("seed", LONG, "", "Seed of all the song's random numbers"),
    Column("gen_type", TEXT, "", "`mixed`, `vocal`, `bgm` or `separate`"),
    Column("renditions", INT, "", "Codec passes"),
    Column("max_seconds", REAL, "s", "Cap on the song's length"),
    Column("max_frames", INT, "frames", "The same in frames"),
    Column("temperature", REAL, "", "Divides the logits of codebook 0; 0: greedy"),
    Column("top_k", INT, "ids", "Ids kept in codebook 0, ties with the last too"),
    Column("cfg", REAL, "", "Guidance of the language model"),
    Column("penalty", REAL, "", "Repetition penalty"),
    Column("window", INT, "frames", "Frames that the penalty looks back"),
    Column("codec_steps", INT, "", "Euler steps of the flow"),
    Column("codec_guidance", REAL, "", "Guidance of the flow"),
    Column("model_name", TEXT, "", "Name of the model"),
    Column("model_digest", TEXT, "", "Hash of the model's files"),
    _place("model_dir", TEXT, "", "Folder that the model was read from"),
    Column("dtype", TEXT, "", "Precision of the networks"),
    Column("device", TEXT, "", "`cpu` or `cuda`"),
    Column("gemm_rows", INT, "rows", "Fixed row count of decode GEMMs; another one may change bits"),
    Column("batch_size", INT, "songs", "Slots of the rank; does not change bits"),
    Column("levo_version", TEXT, "", "Version of this program"),
    Column("git_commit", TEXT, "", "Its commit; `+changes` if files differ from it, `unknown` outside git"),
    Column("python_version", TEXT, "", "Python"),
    Column("numpy_version", TEXT, "", "NumPy"),
    Column("torch_version", TEXT, "", "PyTorch"),
    _null("cuda_version", TEXT, "", "CUDA that PyTorch was built with; null on a CPU, as the next five"),
    _null("cublas_version", TEXT, "", "cuBLAS"),
    _null("cudnn_version", TEXT, "", "cuDNN"),
    _null("triton_version", TEXT, "", "Triton"),
    _null("driver_version", TEXT, "", "GPU driver"),
    _null("gpu_name", TEXT, "", "GPU model"),
    _place("gpu_uuid", TEXT, "", "The GPU itself, as nvidia-smi prints it", nullable=True),
    _place("device_index", INT, "", "Number of the rank's GPU on the node; null without one", nullable=True),
    _place("host", TEXT, "", "Node"),
    _place("rank", INT, "", "GPU process of the node job, from 0"),
    _place("rank_cores", TEXT, "", "Cores that the rank was bound to, as `0-3,8`; empty: to none"),
    _place("memory_node", INT, "", "NUMA node that the rank's memory comes from first", nullable=True),
    _place("main_slot", INT, "", "Slot in the main phase; null for a song that never had one", nullable=True),
    _place("sub_slot", INT, "", "Slot in the sub phase", nullable=True),
    _place("slurm_job_id", TEXT, "", "Number of the node job; null without Slurm, as the next three", nullable=True),
    _place("slurm_restarts", INT, "", "How often Slurm had requeued the job", nullable=True),
    _place("slurm_tasks", INT, "tasks", "Tasks of the job", nullable=True),
    _place("slurm_cores", INT, "cores", "Cores of the job", nullable=True),
    _place("attempt", INT, "", "Which try at the shard made the song, from 1"),
)

WHAT_COLUMNS = (
    Column("outcome", TEXT, "", "`ok`, `rejected` (bad input) or `failed`; the last two have no audio"),
    _null("error", TEXT, "", "Why it is not ok"),
    _null("stop_reason", TEXT, "", "`eos`: the song ended by itself; `cap`: it ran into its cap"),
    _null("frames", INT, "frames", "Length; a frame is 1/25 s"),
    _null("seconds", REAL, "s", "Length of the audio"),
    _null("tokens_sha256", TEXT, "", "Hash of the tokens, int32 little-endian, codebook by codebook"),
    Column("files", pa.list_(pa.struct([c.field for c in FILE_COLUMNS])), "", "The audio files, see below"),
)

COST_COLUMNS = (
    _place("queued_unix_s", REAL, "s", "When a rank took the song, since 1970 UTC", nullable=True),
    _place("done_unix_s", REAL, "s", "When its audio was encoded, since 1970 UTC", nullable=True),
    _place("latency_s", REAL, "s", "From queue to done; many songs share that time", nullable=True),
    *(_place(f"{stage}_s", REAL, "s", f"The song's share of its rank's time in {stage}") for stage in STAGES),
    _place("gpu_seconds", REAL, "s", "All of its rank's time that the song is charged with"),
    _place("peak_memory_bytes", LONG, "B", "Most device memory that the rank had held by then", nullable=True),
    _place("row_sha256", TEXT, "", "Hash of all other columns of this row"),
)

PROVENANCE_COLUMNS = WHO_COLUMNS + HOW_COLUMNS + WHAT_COLUMNS + COST_COLUMNS
SEALED = (*(f"{stage}_s" for stage in STAGES), "gpu_seconds", "row_sha256")
"""Columns that are filled at sealing."""

_TOKENS = _null("tokens", TOKEN_ROWS, "tokens", "The song: three lists, one a codebook, of equal length")
_FOR_RENDER = (
    "song_id", "gen_type", "renditions", "seed", "codec_steps", "codec_guidance", "model_name", "model_digest",
    "model_dir", "dtype", "frames", "tokens_sha256",
)  # fmt: skip
_BY_NAME = {column.name: column for column in PROVENANCE_COLUMNS}

TOKENS_COLUMNS = (*(_BY_NAME[name] for name in _FOR_RENDER), _TOKENS)
AUDIO_COLUMNS = (_BY_NAME["song_id"], *FILE_COLUMNS)

COLUMNS: dict[str, tuple[Column, ...]] = {
    "provenance": PROVENANCE_COLUMNS,
    "files": FILE_COLUMNS,
    "audio": AUDIO_COLUMNS,
    "tokens": TOKENS_COLUMNS,
}
VOLATILE = frozenset(column.name for columns in COLUMNS.values() for column in columns if column.volatile)
"""Names that a rerun may fill differently, in every table and in `files`."""


def _schema(name: str, columns: Iterable[Column]) -> pa.Schema:
    metadata = {"levo.schema": name, "levo.schema_version": VERSION}
    return pa.schema([column.field for column in columns], metadata=metadata)


PROVENANCE_SCHEMA = _schema("provenance", PROVENANCE_COLUMNS)
AUDIO_SCHEMA = _schema("audio", AUDIO_COLUMNS)
TOKENS_SCHEMA = _schema("tokens", TOKENS_COLUMNS)
PART_SCHEMA = _schema("part", (*(c for c in PROVENANCE_COLUMNS if c.name not in SEALED), _TOKENS))
"""A song as its rank writes it: its row without what sealing fills in, and its tokens."""


def row_sha256(row: Mapping[str, Any]) -> str:
    """Hash of a provenance row as read from Parquet (Table.to_pylist), without its own hash.

    JSON with sorted keys and no spaces; numbers as Python's shortest exact repr; a column that is absent is null.
    """
    content = {name: row.get(name) for name in PROVENANCE_SCHEMA.names if name != "row_sha256"}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def tokens_sha256(tokens: np.ndarray) -> str:
    """Hash of int32 [3, frames]: little-endian, codebook by codebook."""
    if tokens.ndim != 2 or tokens.dtype != np.int32:
        raise ValueError(f"tokens must be int32 [3, frames], not {tokens.dtype} {tokens.shape}")
    return hashlib.sha256(np.ascontiguousarray(tokens, dtype="<i4").tobytes()).hexdigest()


_PAGE = """\
# Tables of a shard

Generated from `levo/node/provenance.py` by `make fix`.

Schema version {version}, in each file's metadata (`levo.schema`, `levo.schema_version`). Every shard has the same
columns and types. "varies": a rerun may fill it differently (times, host, attempt, place); all other columns are equal,
song by song. "null": may be null.

## provenance.parquet

A row a song, of every outcome: who, how, what, cost. A song can be made again from its row alone. Written last, so that
it marks the shard as done. Metadata `levo.bill` holds the shard's time: what its ranks spent on songs, load, idle and
lost work.
{provenance}
`files` is a list of:
{files}
## audio.parquet

A row an audio file of a song that is ok. Metadata `levo.tars` lists the tars with bytes and sha256.
{audio}
## tokens.parquet

A row a song that is ok. It suffices to render the song again without the language model.
{tokens}"""


def columns_markdown() -> str:
    """docs/provenance.md."""
    return _PAGE.format(version=VERSION, **{name: _markdown(columns) for name, columns in COLUMNS.items()})


def _markdown(columns: Iterable[Column]) -> str:
    lines = ["", "| column | type | unit | | meaning |", "|---|---|---|---|---|"]
    for column in columns:
        marks = ", ".join(mark for mark, is_set in (("null", column.nullable), ("varies", column.volatile)) if is_set)
        kind = "list of struct" if column.name == "files" else _kind(column.type)
        lines.append(f"| `{column.name}` | {kind} | {column.unit} | {marks} | {column.meaning} |")
    return "\n".join(lines) + "\n"


def _kind(type_: pa.DataType) -> str:
    return f"list of {_kind(type_.value_type)}" if pa.types.is_list(type_) else str(type_)
