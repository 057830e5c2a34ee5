"""Does a long run stay as it began? Memory, speed, pages, queues and file handles, looked at every 30 s."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from levo.bench.device import memory
from levo.bench.song_line import Line, held_parts
from levo.node.writing import ROOM

EVERY_S = 30.0
FEWEST = 4  # looks that a verdict needs
SLACK_GIB, SLACK_HANDLES, SLACK_SPEED = 0.1, 4, 0.03
HOST_SLACK_GIB = 0.5  # finished songs on their way to disk come and go


@dataclass(frozen=True)
class Look:
    """One look. speed: frames of both phases a second, halved, over the frame rate, since the look before.

    lost_*: parts of a pool that are neither free nor held by anybody.  in_queues: waiting songs, drafts, songs to
    render, songs on their way to disk.
    """

    at_s: float
    speed: float
    device_gib: float | None
    host_gib: float
    handles: int
    free_units: int
    free_hidden: int
    lost_units: int
    lost_hidden: int
    in_queues: tuple[int, int, int, int]


class Soak:
    """Looks at a line while it runs."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.begin = self.last = time.perf_counter()
        self.frames = self._frames()
        self.looks: list[Look] = []

    def look(self) -> None:
        """Look when it is time, and say what was seen."""
        now = time.perf_counter()
        if now - self.last < EVERY_S:
            return
        decoder, frames = self.line.decoder, self._frames()
        units, hidden = held_parts(decoder)
        used = memory(None)
        kv, states = decoder.setup.kv, decoder.setup.hidden
        look = Look(
            at_s=round(now - self.begin, 1),
            speed=(frames - self.frames) / 2 / decoder.setup.config.frame_rate / (now - self.last),
            device_gib=used.used_gib if used else None,
            host_gib=resident_gib(),
            handles=len(os.listdir("/proc/self/fd")),
            free_units=len(kv.free),
            free_hidden=len(states.free),
            lost_units=kv.n_parts - len(kv.free) - units,
            lost_hidden=states.n_parts - len(states.free) - hidden,
            in_queues=self._queues(),
        )
        self.looks.append(look)
        self.last, self.frames = now, frames
        print(look, flush=True)

    def _frames(self) -> int:
        return self.line.decoder.main.n_frames + self.line.decoder.sub.n_frames

    def _queues(self) -> tuple[int, int, int, int]:
        line = self.line
        waiting = len(line.decoder.queue), len(line.decoder.drafts), len(line.engine.to_render)
        return (*waiting, len(line.writing.uncommitted))

    def verdict(self) -> dict[str, Any] | None:
        """Whether it is flat, and why not; None when the run was too short to say."""
        if len(self.looks) < FEWEST:
            return None
        half = len(self.looks) // 2
        first, last = self.looks[:half], self.looks[-half:]
        node = self.line.load.settings.node
        growth = {
            "device_gib": max(x.device_gib or 0 for x in last) - max(x.device_gib or 0 for x in first) <= SLACK_GIB,
            "host_gib": min(x.host_gib for x in last) - min(x.host_gib for x in first) <= HOST_SLACK_GIB,
            "handles": min(x.handles for x in last) - min(x.handles for x in first) <= SLACK_HANDLES,
            "pages": not any(x.lost_units or x.lost_hidden for x in self.looks),
            "queues": max(x.in_queues[-1] for x in self.looks) <= 2 * (ROOM + node.part_songs),
            "speed": _mean(last) >= (1 - SLACK_SPEED) * _mean(first),
        }
        return {"flat": all(growth.values()), **growth, "looks": [asdict(look) for look in self.looks]}


def _mean(looks: list[Look]) -> float:
    return sum(look.speed for look in looks) / len(looks)


def resident_gib() -> float:
    """Host memory of this process that is its own."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 2**20
