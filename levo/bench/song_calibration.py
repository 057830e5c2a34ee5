"""What a bench found, into the speed file that estimates and plans read (levo.songs.plan): one GPU model a file."""

import json
from pathlib import Path

import levo
from levo.bench.song_line import Load
from levo.errors import ConfigError
from levo.node.saving import write_whole
from levo.songs.plan import Calibration, Point, load_calibration
from levo.songs.song import FRAME_RATE

THREE_MINUTES = 4500  # frames; the length that the file's own x_realtime is for
BRIEFS_UPSTREAM = 0.673


def point_of(load: Load, stage_s: dict[str, float], song_s: float) -> Point:
    """stage_s: seconds of the rank's time for a second of audio, by stage; song_s: mean length."""
    stages = {stage: seconds * song_s for stage, seconds in stage_s.items()}
    return Point(slots=load.slots, frames=song_s * FRAME_RATE, codec_steps=load.steps, stages=stages)


def write_calibration(path: Path, gpu: str, point: Point, load_s: float, upstream: float | None) -> Calibration:
    """Put a point into the file, in place of one at the same slots, length and steps; make the file if there is none.

    The figures at the top are those of the point nearest to three minutes. upstream: x realtime of upstream's loop if
    it was timed, else what the file says, else the brief's. Raises ConfigError when the file is another GPU's.
    """
    old = load_calibration(path) if path.exists() else None
    if old is not None and old.gpu != gpu:
        raise ConfigError(
            f"these are speeds of {old.gpu or 'no GPU model'}, and this is {gpu}",
            where=str(path),
            fix="give another file: one GPU model a file",
        )
    points = [other for other in (old.points if old else ()) if _place(other) != _place(point)] + [point]
    points.sort(key=_place)
    typical = min(points, key=lambda one: (abs(one.frames - THREE_MINUTES), _seconds(one) / one.frames))
    if upstream is None:
        upstream = old.upstream_x_realtime if old else BRIEFS_UPSTREAM
    made = Calibration(
        name=f"{gpu}, {typical.slots} slots, {typical.codec_steps} flow steps",
        source=f"levo bench song: {len(points)} measurement{'s' * (len(points) > 1)}, levo {levo.__version__}",
        x_realtime=typical.frames / FRAME_RATE / _seconds(typical),
        upstream_x_realtime=upstream,
        codec_share=typical.codec_s / _seconds(typical),
        load_seconds=load_s,
        gpu=gpu,
        points=tuple(points),
    )
    write_whole(path, (json.dumps(made.model_dump(), indent=1) + "\n").encode())
    return made


def _place(point: Point) -> tuple[int, int, int]:
    return point.slots, round(point.frames / FRAME_RATE), point.codec_steps


def _seconds(point: Point) -> float:
    return sum(point.stages.values())
