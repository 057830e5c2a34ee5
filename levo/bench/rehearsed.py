"""What a rehearsal's songs took, and what that says of the RUN. From the files of the rehearsal; runs nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from levo.node.ledger import LOAD, read_ledgers
from levo.node.paths import RunPaths
from levo.node.provenance import PROVENANCE_SCHEMA
from levo.node.seal import read_bill
from levo.node.tables import read_table
from levo.reports.cost import by_stage, made_seconds, unit_of
from levo.reports.estimate import predict
from levo.reports.formulas import HOUR_S, MILLION_SONGS_S, x_realtime
from levo.settings import Settings
from levo.songs.plan import load_calibration, read_shard
from levo.songs.rows import read_rows

GIB = 2**30


@dataclass(frozen=True)
class RankFigures:
    """load_s: imports, weights and capture, until it asked for songs. peak_gib: null on a CPU."""

    rank: int
    device: str
    load_s: float
    songs: int
    peak_gib: float | None


@dataclass(frozen=True)
class Figures:
    """x_realtime: seconds of audio a GPU-second, for the songs alone; with the load it is x_realtime_with_load.

    slots_used: share of the ranks' slots that the songs could fill.  unit: what a rank takes the place of.
    """

    ranks: tuple[RankFigures, ...]
    audio_s: float
    x_realtime: float
    x_realtime_with_load: float
    seconds_by_stage: Mapping[str, float]
    slots_used: float
    unit: str

    def __str__(self) -> str:
        lines = []
        for rank in self.ranks:
            memory = "" if rank.peak_gib is None else f", peak {rank.peak_gib:.1f} GiB"
            lines.append(
                f"  rank {rank.rank} on {rank.device}: ready after {rank.load_s:.1f} s, {rank.songs} songs{memory}"
            )
        total = sum(self.seconds_by_stage.values())
        shares = (f"{name} {s / total:.0%}" for name, s in self.seconds_by_stage.items() if s > 0.005 * total)
        lines += [
            f"  {self.audio_s:.0f} s of audio: {self.x_realtime:.2f}x realtime a {self.unit}, "
            f"{self.x_realtime_with_load:.2f}x with the load",
            f"  time of the ranks: {', '.join(shares)}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Forecast:
    """Hours of the songs alone, at the rehearsal's speed and at that of the speed file which the plan uses.

    hours_at_most: full slots are faster than the rehearsal's.  planned_hours: null without a plan.
    """

    what: str
    n_songs: int
    hours_at_most: float
    planned_hours: float | None
    million_hours_at_most: float
    unit: str
    slots_used: float

    def __str__(self) -> str:
        unit = f"{self.unit}-hours"
        lines = [
            f"{self.what}: {self.n_songs} songs, at most {self.hours_at_most:,.2f} {unit} at this speed; "
            f"1 M songs of 3 min: {self.million_hours_at_most:,.0f}"
        ]
        if self.planned_hours is not None:
            lines.append(f"  by the speed file of the settings: {self.planned_hours:,.2f} {unit}")
        if self.slots_used < 1:
            more = "a rehearsal with more --songs comes closer"
            lines.append(f"  {self.slots_used:.0%} of the slots had a song; full ones are faster: {more}")
        if self.unit != "GPU":
            lines.append("  made on CPU ranks: it says nothing about a GPU")
        return "\n".join(lines)


def read_figures(folder: Path) -> Figures:
    """Of the one shard of a rehearsal, which is sealed."""
    paths = RunPaths(folder).shard(0)
    songs = read_table(paths.provenance, PROVENANCE_SCHEMA)
    bill = read_bill(paths.provenance)
    audio_s = made_seconds(songs.filter(pc.equal(songs["outcome"], "ok")))
    ledgers = read_ledgers(paths)
    rows = songs.select(["rank", "gpu_name", "peak_memory_bytes", "batch_size"]).to_pylist()
    ranks = []
    for ledger in ledgers:
        own = [row for row in rows if row["rank"] == ledger.rank]
        peaks = [row["peak_memory_bytes"] / GIB for row in own if row["peak_memory_bytes"]]
        device = next((row["gpu_name"] for row in own if row["gpu_name"]), "a CPU core")
        peak = max(peaks, default=None)
        ranks.append(RankFigures(ledger.rank, device, ledger.nobody[LOAD], len(own), peak))
    return Figures(
        ranks=tuple(ranks),
        audio_s=audio_s,
        x_realtime=x_realtime(audio_s, bill.songs_s) or 0.0,
        x_realtime_with_load=x_realtime(audio_s, bill.wall_s) or 0.0,
        seconds_by_stage=by_stage(bill),
        slots_used=min(1.0, len(rows) / (len(ledgers) * max(row["batch_size"] for row in rows))),
        unit=unit_of(songs)["name"],
    )


def forecast(settings: Settings, run_dir: Path | None, folder: Path, figures: Figures) -> Forecast:
    """For the RUN as it is planned, or, without a plan, for the rows of the settings' manifest."""
    speeds = load_calibration(RunPaths(folder).reports / "calibration.json")
    planned = None
    if run_dir is not None and RunPaths(run_dir).plan.exists():
        estimate = predict(run_dir, speeds)
        what, n_songs, songs_s = str(run_dir), sum(shard.n_songs for shard in estimate.shards), estimate.songs_s
        planned = predict(run_dir, load_calibration(Path(settings.cost.calibration))).songs_s / HOUR_S
    else:
        what, n_songs = settings.manifest, sum(1 for _ in read_rows(Path(settings.manifest)))
        sample = read_shard(RunPaths(folder).plan, 0)
        each = [speeds.gpu_seconds(song.predicted_frames, song.renditions, song.gen_type) for song in sample]
        songs_s = n_songs * float(np.mean(each))
    return Forecast(
        what=what,
        n_songs=n_songs,
        hours_at_most=songs_s / HOUR_S,
        planned_hours=planned,
        million_hours_at_most=MILLION_SONGS_S / figures.x_realtime / HOUR_S,
        unit=figures.unit,
        slots_used=figures.slots_used,
    )
