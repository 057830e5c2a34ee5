"""What a planned RUN will cost, before it runs: from the plan and a speed file, beside upstream's loop.

Assumed: every rank of a shard is busy until the shard's end; a rank loads the model once a shard; a node is held, and
so billed, by one shard from loading to its last song. Upstream's loop is given the same nodes and the same loading; it
makes one song at a time, and each further rendition by another run. The cost of a million songs leaves loading out, as
the brief does: in a run of that size it is nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from levo.disk import write_json
from levo.errors import ConfigError
from levo.node.paths import RunPaths
from levo.pace import duration
from levo.reports.formulas import HOUR_S, MILLION_SONGS_S, Hours, Node, ratio, x_realtime
from levo.settings import Settings, of_run
from levo.songs.plan import SHARD_SCHEMA, Calibration, load_calibration
from levo.songs.song import FRAME_RATE, STEMS

FORMAT = 1


@dataclass(frozen=True)
class ShardLoad:
    """What one shard holds. gpu_s: predicted for its songs, without loading; codec_s: the codec's part of it."""

    n_songs: int
    n_files: int
    audio_s: float
    gpu_s: float
    codec_s: float


@dataclass(frozen=True)
class Estimate:
    """The estimate of a RUN; prints as a table. wall_s: how long a node is held, by shard."""

    run: str
    calibration: Calibration
    node: Node
    ranks: int
    shards: tuple[ShardLoad, ...]

    @property
    def audio_s(self) -> float:
        """Seconds of audio, every rendition counted and stems not."""
        return sum(shard.audio_s for shard in self.shards)

    @property
    def songs_s(self) -> float:
        """GPU-seconds for the songs alone."""
        return sum(shard.gpu_s for shard in self.shards)

    @property
    def wall_s(self) -> list[float]:
        """Predicted wall time of each shard."""
        return [self.calibration.load_seconds + shard.gpu_s / self.ranks for shard in self.shards]

    @property
    def billed(self) -> Hours:
        """The whole of the nodes, loading included."""
        return self._billed(self.songs_s)

    @property
    def upstream(self) -> Hours:
        """The same for upstream's loop."""
        return self._billed(self.audio_s / self.calibration.upstream_x_realtime)

    def _billed(self, songs_s: float) -> Hours:
        wall_s = self.calibration.load_seconds * len(self.shards) + songs_s / self.ranks
        return Hours.of_gpu_seconds(wall_s * self.node.gpus, self.node)

    @property
    def million(self) -> Hours:
        """A million songs of three minutes at this run's speed, without loading."""
        return Hours.of_audio(MILLION_SONGS_S, self.audio_s / self.songs_s, self.node)

    def as_dict(self) -> dict[str, Any]:
        """plan/estimate.json."""
        load_s = self.calibration.load_seconds * self.ranks * len(self.shards)
        codec_s = sum(shard.codec_s for shard in self.shards)
        billed_s = self.billed.gpu_hours * HOUR_S
        return {
            "format": FORMAT,
            "run": self.run,
            "calibration": self.calibration.model_dump(),
            "gpus_per_node": self.node.gpus,
            "cores_per_node": self.node.cores,
            "ranks_per_shard": self.ranks,
            "n_songs": sum(shard.n_songs for shard in self.shards),
            "n_files": sum(shard.n_files for shard in self.shards),
            "n_shards": len(self.shards),
            "audio_hours": self.audio_s / HOUR_S,
            **self.billed.as_dict(),
            "x_realtime": x_realtime(self.audio_s, billed_s),
            "gpu_hours_by_stage": {
                "language model": (self.songs_s - codec_s) / HOUR_S,
                "codec": codec_s / HOUR_S,
                "load": load_s / HOUR_S,
                "GPUs without a rank": (billed_s - self.songs_s - load_s) / HOUR_S,
            },
            "shard_wall_s": {
                "longest": max(self.wall_s),
                "mean": sum(self.wall_s) / len(self.shards),
                "total": sum(self.wall_s),
            },
            "per_million_3_minute_songs": self.million.as_dict(),
            "upstream": {"x_realtime": self.calibration.upstream_x_realtime, **self.upstream.as_dict()},
            "saved": {
                **self.upstream.minus(self.billed).as_dict(),
                "times_less": ratio(self.upstream.gpu_hours, self.billed.gpu_hours),
            },
        }

    def __str__(self) -> str:
        n_songs, n_files = (sum(getattr(shard, name) for shard in self.shards) for name in ("n_songs", "n_files"))
        rows = [
            ("", "GPU-hours", "node-hours", "core-hours"),
            ("this run", *_figures(self.billed)),
            ("upstream's loop", *_figures(self.upstream)),
            ("saved", *_figures(self.upstream.minus(self.billed))),
            ("1 M songs of 3 min", *_figures(self.million)),
        ]
        table = [f"  {name:<19}" + "".join(f"{cell:>14}" for cell in cells) for name, *cells in rows]
        times = ratio(self.upstream.gpu_hours, self.billed.gpu_hours) or 0.0
        longest, total = max(self.wall_s), sum(self.wall_s)
        upstream_speed = f"{self.calibration.upstream_x_realtime:g}x realtime"
        return "\n".join(
            [
                f"{self.run}: {n_songs} songs, {n_files} files, {self.audio_s / HOUR_S:.2f} hours of audio",
                *table,
                f"  upstream's loop ({upstream_speed}) takes {times:.1f} times as much",
                f"  wall time: longest shard {duration(longest)}, all {len(self.shards)} one after another "
                f"{duration(total)}, with {self.ranks} ranks each",
                f"  speeds: {self.calibration.name}",
            ]
        )


def estimate_run(run_dir: Path) -> Estimate:
    """`levo estimate RUN`: read RUN/plan/shards.parquet and the speed file, write RUN/plan/estimate.json."""
    made = predict(run_dir, load_calibration(Path(of_run(run_dir).cost.calibration)))
    write_json(RunPaths(run_dir).estimate, made.as_dict())
    return made


def predict(run_dir: Path, calibration: Calibration) -> Estimate:
    """What a planned RUN will cost at these speeds."""
    settings = of_run(run_dir)
    calibration = calibration.of(settings)
    shards = tuple(_load(table, calibration) for table in _shards(RunPaths(run_dir).plan))
    return Estimate(settings.run, calibration, node_of(settings), ranks_of(settings), shards)


def node_of(settings: Settings) -> Node:
    """What the settings say of a node."""
    return Node(settings.cost.gpus_per_node, settings.cost.cores_per_node)


def ranks_of(settings: Settings) -> int:
    """Ranks of a shard on the node that is billed."""
    return settings.node.ranks or settings.cost.gpus_per_node


def _figures(hours: Hours) -> list[str]:
    return [
        f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}" if value else "0" for value in hours.as_dict().values()
    ]


def _shards(plan: Path) -> Iterator[pa.Table]:
    """The plan, a table a shard."""
    try:
        with pq.ParquetFile(plan) as file:
            if not file.schema_arrow.equals(SHARD_SCHEMA):
                raise ConfigError("this plan has another schema", where=str(plan), fix="run `levo plan RUN` again")
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=["predicted_frames", "renditions", "gen_type"])
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"no readable plan: {error}", where=str(plan), fix="run `levo plan RUN`") from None


def _load(shard: pa.Table, calibration: Calibration) -> ShardLoad:
    names = ("predicted_frames", "renditions", "gen_type")
    songs = list(zip(*(shard[name].to_pylist() for name in names), strict=True))
    return ShardLoad(
        n_songs=len(songs),
        n_files=sum(renditions * len(STEMS[kind]) for _, renditions, kind in songs),
        audio_s=sum(frames / FRAME_RATE * renditions for frames, renditions, _ in songs),
        gpu_s=sum(calibration.gpu_seconds(*song) for song in songs),
        codec_s=sum(calibration.codec_seconds(n) * renditions * len(STEMS[kind]) for n, renditions, kind in songs),
    )


def read_estimate(path: Path) -> dict[str, Any]:
    """RUN/plan/estimate.json as written by estimate_run. Raises ConfigError."""
    fix = "run `levo estimate RUN`"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"no readable estimate: {error}", where=str(path), fix=fix) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError("this estimate has another format", where=str(path), fix=fix)
    return content
