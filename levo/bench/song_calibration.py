"""What `levo bench song` printed, into the speed file that estimates and plans read (levo.songs.plan).

One GPU model a file. Needs no GPU: a sweep's outputs can be put together afterwards, anywhere.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from levo.disk import write_json
from levo.errors import ConfigError
from levo.songs.plan import Calibration, Point, load_calibration
from levo.songs.song import FRAME_RATE

THREE_MINUTES = 4500  # frames; the length that the file's own x_realtime is for
BRIEFS_UPSTREAM = 0.673
FIX = "give files that hold the output of `levo bench song`"
Result = dict[str, Any]


def calibrate(speeds: Path, outputs: Sequence[Path]) -> str:
    """Put the outputs' measurements into the speed file, and say what is in it.

    A measurement takes the place of one at the same slots, length and steps. Raises ConfigError for an output of
    something else, and for another GPU's.
    """
    made = load_calibration(speeds) if speeds.exists() else None
    for output in outputs:
        made = merge(made, read_output(output), speeds)
    assert made is not None, "the command line asks for one output at least"
    write_json(speeds, made.model_dump())
    return f"{speeds}: {made.name}; {len(made.points)} measured"


def read_output(path: Path) -> Result:
    """The last line of an output. Raises ConfigError when it is not a song bench's."""
    try:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        result: Result = json.loads(lines[-1]) if lines else {}
        point_of(result)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"no song bench's output: {error!r}", where=str(path), fix=FIX) from None
    return result


def point_of(result: Result) -> Point:
    """A bench's result as a point: what it cost a song of its mean length, by stage."""
    song_s, load = result["seconds_of_a_song"], result["load"]
    stages = {stage: seconds * song_s for stage, seconds in result["stage_s_per_audio_s"].items()}
    return Point(slots=load["slots"], frames=song_s * FRAME_RATE, codec_steps=load["steps"], stages=stages)


def merge(old: Calibration | None, result: Result, where: Path) -> Calibration:
    """With this point in it. The figures at the top are those of the point nearest to three minutes.

    upstream_x_realtime: of upstream's loop if the bench timed it, else what was there, else the brief's.
    """
    gpu, point = result["card"]["gpu"] or result["card"]["cpu"], point_of(result)
    if old is not None and old.gpu != gpu:
        raise ConfigError(
            f"these are speeds of {old.gpu or 'no GPU model'}, and the output is of {gpu}",
            where=str(where),
            fix="give another speed file: one GPU model a file",
        )
    points = [other for other in (old.points if old else ()) if _place(other) != _place(point)] + [point]
    points.sort(key=_place)
    typical = min(points, key=lambda one: (abs(one.frames - THREE_MINUTES) // 250, _seconds(one) / one.frames))
    upstream = old.upstream_x_realtime if old else BRIEFS_UPSTREAM
    if "baselines" in result:
        upstream = result["baselines"]["upstream"]["x_realtime"]
    return Calibration(
        name=f"{gpu}, {typical.slots} slots, {typical.codec_steps} flow steps",
        source=f"levo bench song, {len(points)} measured",
        x_realtime=typical.frames / FRAME_RATE / _seconds(typical),
        upstream_x_realtime=upstream,
        codec_share=typical.codec_s / _seconds(typical),
        load_seconds=result["load_s"] + result["engine_s"],
        gpu=gpu,
        points=tuple(points),
    )


def _place(point: Point) -> tuple[int, int, int]:
    return point.slots, round(point.frames / FRAME_RATE / 5), point.codec_steps


def _seconds(point: Point) -> float:
    return sum(point.stages.values())
