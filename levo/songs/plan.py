"""Which shard makes which song, and what a song is predicted to cost. Knows no node and no engine.

Songs go to shards by longest processing time first: the dearest song that is left goes to the shard with the least
predicted GPU time. Equal costs are ordered by a hash of the id, so that the plan depends on the set of songs alone and
not on their order in the manifest. A RUN that has shards keeps its plan: another set of songs or n_shards is refused.
"""

import hashlib
import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levo.disk import whole_file, write_json
from levo.errors import ConfigError, ManifestError
from levo.settings import Settings, of_run
from levo.songs.song import FRAME_RATE, SONG_SCHEMA, STEMS, Song

SHARD_SCHEMA = pa.schema(
    [
        *SONG_SCHEMA,
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("predicted_gpu_seconds", pa.float64(), nullable=False),
    ],
    metadata={"levo.schema": "shards", "levo.schema_version": "1"},
)

_BATCH_ROWS = 65536
CODEC_STAGES = ("flow", "vae", "encode", "write")
"""Stages that every file of a song goes through."""
MOST_SLOTS = 64
"""What a GPU rank has when the settings name no number."""


class Point(BaseModel):
    """One measurement: what a mixed song of one rendition costs at some slots and some mean length."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slots: int = Field(ge=1, description="Slots of the rank.")
    frames: float = Field(gt=0, description="Mean length of the songs.")
    codec_steps: int = Field(ge=1, description="Euler steps of the flow.")
    stages: dict[str, float] = Field(description="GPU-seconds of such a song, by stage.")

    def at_steps(self, steps: int) -> "Point":
        """The same with other steps: the flow's time is proportional to them."""
        flow = self.stages.get("flow", 0.0) * steps / self.codec_steps
        return self.model_copy(update={"codec_steps": steps, "stages": {**self.stages, "flow": flow}})

    @property
    def codec_s(self) -> float:
        """What each file costs."""
        return sum(self.stages.get(stage, 0.0) for stage in CODEC_STAGES)

    @property
    def language_s(self) -> float:
        """What a song costs once, however many files it has."""
        return sum(self.stages.values()) - self.codec_s


class Calibration(BaseModel):
    """How fast songs are made: measured somewhere, once. config/calibration.brief.json holds the brief's figures.

    Without points a song costs the same for each second; with points the cost of a second is read off between the
    measured lengths, and is that of the nearest beyond them (longer songs have more to read in every tick).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(description="What was measured, in a few words.")
    source: str = Field(description="Where the figures stand.")
    x_realtime: float = Field(gt=0, description="Seconds of audio made in one GPU-second, mixed, one rendition.")
    upstream_x_realtime: float = Field(gt=0, description="The same for upstream's loop, one song at a time.")
    codec_share: float = Field(ge=0, le=1, description="Share of that GPU time that the codec takes; once a file.")
    seconds_per_song: float = Field(0, ge=0, description="GPU-seconds a song costs beside its length.")
    load_seconds: float = Field(0, ge=0, description="Seconds that a rank needs to load the model.")
    gpu: str | None = Field(None, description="GPU model that the points were measured on.")
    points: tuple[Point, ...] = Field((), description="Measurements by slots and length (`levo bench song`).")

    def of(self, settings: Settings) -> "Calibration":
        """What holds for a RUN: the points at the measured slots nearest to its own, with its flow steps."""
        if not self.points:
            return self
        wanted, steps = settings.engine.slots or MOST_SLOTS, settings.codec.steps
        slots = min({point.slots for point in self.points}, key=lambda n: (abs(n - wanted), n))
        chosen = [point.at_steps(steps) for point in self.points if point.slots == slots]
        return self.model_copy(update={"points": tuple(sorted(chosen, key=lambda point: point.frames))})

    def gpu_seconds(self, frames: int, renditions: int, gen_type: str) -> float:
        """Predicted GPU-seconds of a song: tokens once, the codec once a rendition and stem."""
        return self.language_seconds(frames) + self.codec_seconds(frames) * renditions * len(STEMS[gen_type])

    def language_seconds(self, frames: int) -> float:
        """Predicted GPU-seconds of a song's tokens."""
        if self.points:
            return self._between(frames, [point.language_s for point in self.points])
        return self.seconds_per_song + frames / FRAME_RATE / self.x_realtime * (1 - self.codec_share)

    def codec_seconds(self, frames: int) -> float:
        """Predicted GPU-seconds of one of its files."""
        if self.points:
            return self._between(frames, [point.codec_s for point in self.points])
        return frames / FRAME_RATE / self.x_realtime * self.codec_share

    def _between(self, frames: int, seconds: list[float]) -> float:
        """frames times the seconds of a frame between the points, which are in order of their lengths."""
        lengths = [point.frames for point in self.points]
        return frames * float(np.interp(frames, lengths, [s / n for s, n in zip(seconds, lengths, strict=True)]))


def load_calibration(path: Path) -> Calibration:
    """Read a speed file. Raises ConfigError."""
    fix = "set cost.calibration to config/calibration.brief.json or to a RUN's reports/calibration.json"
    try:
        return Calibration.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"speed file cannot be read: {error.strerror}", where=str(path), fix=fix) from None
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        raise ConfigError(f"not a speed file: {name} {first['msg'].lower()}", where=str(path), fix=fix) from None


@dataclass(frozen=True)
class PlanSummary:
    """What a plan holds. lightest and heaviest: predicted GPU-seconds of a shard."""

    n_songs: int
    n_shards: int
    gpu_seconds: float
    lightest: float
    heaviest: float
    audio_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.n_songs} songs in {self.n_shards} shards, about {self.audio_seconds / 3600:.1f} hours of audio and "
            f"{self.gpu_seconds / 3600:.2f} GPU-hours; shards of {self.lightest:.0f} to {self.heaviest:.0f} GPU-seconds"
        )


def assign(costs: np.ndarray, song_ids: list[str], n_shards: int) -> np.ndarray:
    """The shard of each song, int32 [songs]. See the top."""
    ties = [hashlib.blake2b(song_id.encode(), digest_size=8).digest() for song_id in song_ids]
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], ties[i], song_ids[i]))
    shards = np.zeros(len(costs), dtype=np.int32)
    loads = [(0.0, shard) for shard in range(n_shards)]
    for i in order:
        load, shard = loads[0]
        shards[i] = shard
        heapq.heapreplace(loads, (load + float(costs[i]), shard))
    return shards


def plan_run(run_dir: Path) -> PlanSummary:
    """`levo plan RUN`: write RUN/plan/shards.parquet, one row group a shard, its songs by falling cost, then by id."""
    settings = of_run(run_dir)
    n_shards = settings.plan.n_shards
    kept = _Kept.read(run_dir)
    calibration = kept.calibration if kept else load_calibration(Path(settings.cost.calibration)).of(settings)
    songs = _songs(run_dir / "manifest" / "songs.parquet")
    _check_count(songs.num_rows, n_shards, kept, run_dir)
    costs = _costs(songs, calibration)
    song_ids = songs["song_id"].to_pylist()
    shards = assign(costs, song_ids, n_shards)
    rank_of_id = np.argsort(np.argsort(np.array(song_ids, dtype=object)))
    order = np.lexsort((rank_of_id, -costs, shards))
    table = songs.append_column("shard", pa.array(shards)).append_column("predicted_gpu_seconds", pa.array(costs))
    table = table.take(pa.array(order))
    digest = _write(run_dir, table, n_shards, kept)
    _Kept(n_shards, songs.num_rows, digest, calibration).write(run_dir)
    loads = np.bincount(shards, weights=costs, minlength=n_shards)
    frames = (songs["predicted_frames"].to_numpy() * songs["renditions"].to_numpy()).sum()
    return PlanSummary(
        songs.num_rows,
        n_shards,
        float(costs.sum()),
        float(loads.min()),
        float(loads.max()),
        float(frames / FRAME_RATE),
    )


def read_shard(shards_parquet: Path, shard: int) -> list[Song]:
    """The songs of one shard, dearest first."""
    try:
        with pq.ParquetFile(shards_parquet) as plan:
            if not 0 <= shard < plan.num_row_groups:
                known = f"the plan has shards 0 to {plan.num_row_groups - 1}"
                raise ConfigError(f"there is no shard {shard}", where=str(shards_parquet), fix=known)
            rows = plan.read_row_group(shard).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"no readable plan: {error}", where=str(shards_parquet), fix="run `levo plan RUN`") from None
    if any(row["shard"] != shard for row in rows):
        raise ConfigError(
            f"row group {shard} is not shard {shard}", where=str(shards_parquet), fix="run `levo plan RUN`"
        )
    return [Song(**{name: row[name] for name in SONG_SCHEMA.names}) for row in rows]


def read_costs(shards_parquet: Path, shard: int) -> dict[str, float]:
    """Predicted GPU-seconds of the songs of one shard, by id; of a plan that read_shard has read."""
    with pq.ParquetFile(shards_parquet) as plan:
        table = plan.read_row_group(shard, columns=["song_id", "predicted_gpu_seconds"])
    return dict(zip(table["song_id"].to_pylist(), table["predicted_gpu_seconds"].to_pylist(), strict=True))


@dataclass(frozen=True)
class _Kept:
    """RUN/plan/kept.json: what the RUN's plan was made from. Snakemake deletes declared outputs; this is none."""

    n_shards: int
    n_songs: int
    digest: str
    calibration: Calibration

    @staticmethod
    def read(run_dir: Path) -> "_Kept | None":
        """None while the RUN has no shards: then everything may change."""
        has_shards = any((run_dir / "work").glob("*/*")) or any((run_dir / "shards").glob("*/*"))
        path = run_dir / "plan" / "kept.json"
        if not has_shards:
            return None
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            return _Kept(**{**kept, "calibration": Calibration(**kept["calibration"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"this RUN has shards, but what they were planned from cannot be read: {error}",
                where=str(path),
                fix="put the file back, or start a new RUN (setting `run`)",
            ) from None

    def write(self, run_dir: Path) -> None:
        content = {**vars(self), "calibration": self.calibration.model_dump()}
        write_json(run_dir / "plan" / "kept.json", content)


def _refuse(run_dir: Path, what: str) -> ConfigError:
    fix = "put the old manifest and n_shards back, or start a new RUN (setting `run`)"
    return ConfigError(f"this RUN has shards already, and {what}", where=str(run_dir), fix=fix)


def _check_count(n_songs: int, n_shards: int, kept: _Kept | None, run_dir: Path) -> None:
    if kept and kept.n_shards != n_shards:
        raise _refuse(run_dir, f"they were planned as {kept.n_shards}, not {n_shards}")
    if kept and kept.n_songs != n_songs:
        raise _refuse(run_dir, f"they were planned from {kept.n_songs} songs, not {n_songs}")
    if n_songs < n_shards:
        fix = (
            f"set plan.n_shards to {n_songs} or less" if n_songs else "mend the manifest: see manifest/rejected.parquet"
        )
        raise ConfigError(f"{n_songs} songs cannot fill {n_shards} shards", where=str(run_dir), fix=fix)


def _songs(path: Path) -> pa.Table:
    """songs.parquet, with text columns that may grow beyond 2 GiB."""
    try:
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (OSError, pa.ArrowException) as error:
        raise ManifestError(f"no readable songs: {error}", where=str(path), fix="run `levo check MANIFEST`") from None
    if not table.schema.equals(SONG_SCHEMA):
        raise ManifestError("songs.parquet has another schema", where=str(path), fix="run `levo check MANIFEST` again")
    large = [field.with_type(pa.large_string()) if field.type == pa.string() else field for field in table.schema]
    return table.cast(pa.schema(large)).combine_chunks()


def _costs(songs: pa.Table, calibration: Calibration) -> np.ndarray:
    columns = (songs[name].to_pylist() for name in ("predicted_frames", "renditions", "gen_type"))
    return np.array([calibration.gpu_seconds(*row) for row in zip(*columns, strict=True)], dtype=np.float64)


def _write(run_dir: Path, table: pa.Table, n_shards: int, kept: _Kept | None) -> str:
    """Write shards.parquet from rows in shard order; returns the digest of everything in it but file and line."""
    digest = hashlib.blake2b(digest_size=32)
    bounds = np.searchsorted(table["shard"].to_numpy(), np.arange(n_shards + 1))
    with whole_file(run_dir / "plan" / "shards.parquet") as file:
        with pq.ParquetWriter(file, SHARD_SCHEMA, compression="zstd") as writer:
            for start, end in zip(bounds, bounds[1:], strict=False):
                rows = table.slice(start, end - start).cast(SHARD_SCHEMA)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))
                for text in _row_texts(rows):
                    digest.update(text.encode())
        if kept and kept.digest != digest.hexdigest():
            raise _refuse(run_dir, "they were planned from other songs, or from other predicted lengths")
    return digest.hexdigest()


def _row_texts(rows: pa.Table) -> Iterator[str]:
    for batch in rows.drop_columns(["file", "line"]).to_batches(max_chunksize=_BATCH_ROWS):
        yield from (json.dumps(row) + "\n" for row in batch.to_pylist())
