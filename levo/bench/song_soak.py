"""Does a long run stay as it began? Memory, speed, pages, queues and file handles, looked at every 30 s.

Songs a minute say little about slowing down: they rise and fall with the lengths that were drawn. So speed is judged by
what the company does not change: bytes that a second of decode reads, and windows that a second of the codec renders.
"""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from levo.bench.decode import bytes_of_position, weight_bytes
from levo.bench.device import memory
from levo.bench.song_line import Line, held_parts
from levo.node.writing import ROOM

EVERY_S = 30.0
FEWEST = 4  # looks that a verdict needs
SLACK_GIB, SLACK_HANDLES, SLACK_SPEED = 0.1, 4, 0.03
HOST_SLACK_GIB = 0.5  # finished songs on their way to disk come and go


@dataclass(frozen=True)
class Look:
    """One look; speeds are since the look before. x_realtime: frames of both phases, halved, for what was drawn.

    decode_tb_s: weights and filled positions that the ticks read, a second of them.  windows_a_second: of the codec.
    lost_*: parts of a pool that are neither free nor held by anybody.  in_queues: waiting songs, drafts, songs to
    render, songs on their way to disk.
    """

    at_s: float
    x_realtime: float
    decode_tb_s: float
    windows_a_second: float
    device_gib: float | None
    host_gib: float
    handles: int
    free_units: int
    free_hidden: int
    lost_units: int
    lost_hidden: int
    in_queues: tuple[int, int, int, int]


@dataclass(frozen=True)
class Work:
    """What was done until a moment, and the seconds it took."""

    at_s: float
    frames: int
    tick_bytes: int
    decode_s: float
    windows: int
    codec_s: float


class Soak:
    """Looks at a line while it runs."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.phases = (line.decoder.main, line.decoder.sub)
        self.costs = [(weight_bytes(phase), bytes_of_position(phase)) for phase in self.phases]
        self.tick_bytes = 0
        self.looks: list[Look] = []
        self.last = self._work()
        self.begin = self.last.at_s

    def look(self) -> None:
        """After every step: count what it read. When it is time: look, and say what was seen."""
        self.tick_bytes += self.line.decoder.sync_ticks * sum(
            weights + position * sum(phase.slots.base + seat.count for seat in phase.seats.values())
            for phase, (weights, position) in zip(self.phases, self.costs, strict=True)
            if phase.seats
        )
        if time.perf_counter() - self.last.at_s < EVERY_S:
            return
        now, last = self._work(), self.last
        decoder = self.line.decoder
        units, hidden = held_parts(decoder)
        used = memory(None)
        kv, states = decoder.setup.kv, decoder.setup.hidden
        wall = now.at_s - last.at_s
        look = Look(
            at_s=round(now.at_s - self.begin, 1),
            x_realtime=(now.frames - last.frames) / 2 / decoder.setup.config.frame_rate / wall,
            decode_tb_s=(now.tick_bytes - last.tick_bytes) / max(now.decode_s - last.decode_s, 1e-9) / 1e12,
            windows_a_second=(now.windows - last.windows) / max(now.codec_s - last.codec_s, 1e-9),
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
        self.last = now
        print(look, flush=True)

    def _work(self) -> Work:
        spent = self.line.ledger.state().by_stage
        return Work(
            at_s=time.perf_counter(),
            frames=sum(phase.n_frames for phase in self.phases),
            tick_bytes=self.tick_bytes,
            decode_s=spent.get("main", 0.0) + spent.get("sub", 0.0),
            windows=self.line.n_windows,
            codec_s=spent.get("flow", 0.0) + spent.get("vae", 0.0),
        )

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
            "decode": _steady("decode_tb_s", first, last),
            "codec": _steady("windows_a_second", first, last),
        }
        return {"flat": all(growth.values()), **growth, "looks": [asdict(look) for look in self.looks]}


def _steady(name: str, first: list[Look], last: list[Look]) -> bool:
    before, after = (sum(getattr(look, name) for look in looks) / len(looks) for looks in (first, last))
    return bool(after >= (1 - SLACK_SPEED) * before)


def resident_gib() -> float:
    """Host memory of this process that is its own."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 2**20
