"""A RUN of many shards in every state, as `levo shard` would leave its files. One template a state, then hard links.

Journals and ledgers are written by their own classes and have a real shard's size; parts and tables are only counted
and looked for, so they are small. A link of a lease has its template's age.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from levo.node.journal import Journal
from levo.node.lease import Holder
from levo.node.ledger import Bill, RankLedger
from levo.node.paths import RunPaths, ShardPaths
from levo.node.tally import Tally
from levo.settings import PlanSettings, Settings, freeze

N_SONGS, N_RANKS, PART_SONGS = 500, 4, 4
AUDIO_S = 180.0
STAGES = {"prefill": 0.25, "main": 4.0, "sub": 1.4, "flow": 1.4, "vae": 0.5, "encode": 0.25, "write": 0.2}
SONG_S = sum(STAGES.values())
LOAD_S = 60.0
SONGS_PER_S = N_RANKS / SONG_S


def tally(n_ok: int, n_failed: int = 0) -> Tally:
    """Songs of three minutes."""
    rows = [{"outcome": "ok", "error": None, "seconds": AUDIO_S, "renditions": 1, "predicted_frames": 4500}] * n_ok
    bad = {"outcome": "failed", "error": "the audio is not finite", "seconds": None, "renditions": 1}
    return Tally.of_rows([*rows, *[{**bad, "predicted_frames": 4500}] * n_failed])


class Template:
    """One shard's files, filled step by step; times are set back, as if it had run for a while."""

    def __init__(self, run_dir: Path, number: int, began_s: float, attempt: int = 1) -> None:
        self.paths = RunPaths(run_dir).shard(number)
        self.paths.work.mkdir(parents=True, exist_ok=True)
        self.now_s, self.attempt, self.n_done = began_s, attempt, 0

    def event(self, name: str, **fields: object) -> None:
        """A journal's line at the template's own time; not synced one by one, there are hundreds."""
        line = json.dumps({"event": name, "time_s": round(self.now_s, 3), **fields}) + "\n"
        with self.paths.journal(self.attempt).open("a") as file:
            file.write(line)

    def start(self, n_done: int = 0) -> None:
        self.n_done = n_done
        so_far = tally(n_done).as_json()
        self.event("start", done=n_done, missing=N_SONGS - n_done, in_flight=0, so_far=so_far)
        self.now_s += LOAD_S

    def make(self, n_songs: int, songs_per_s: float = SONGS_PER_S, in_work: int = 96) -> None:
        """Give and commit so many songs; in_work are given on top."""
        for first in range(0, n_songs, PART_SONGS):
            ids = [f"song-{self.paths.number:05d}-{self.n_done + i:06d}" for i in range(PART_SONGS)]
            for song_id in ids:
                self.event("give", song=song_id, rank=first // PART_SONGS % N_RANKS)
            self.now_s += PART_SONGS / songs_per_s
            self.n_done += PART_SONGS
            missing, so_far = N_SONGS - self.n_done, tally(self.n_done).as_json()
            done = {"outcomes": ["ok"] * PART_SONGS, "missing": missing, "in_work": in_work, "so_far": so_far}
            self.event("commit", rank=0, songs=ids, **done)
            self.paths.part(self.attempt, 0, self.n_done // PART_SONGS).touch()

    def ledgers(self) -> None:
        wall_s = LOAD_S + self.n_done * SONG_S / N_RANKS
        for rank in range(N_RANKS):
            songs = {f"song-{rank}-{n:06d}": STAGES for n in range(self.n_done // N_RANKS)}
            state = RankLedger(self.attempt, rank, wall_s, 0.0, {"load": LOAD_S, "idle": 0.0}, {}, songs)
            self.paths.ledger(self.attempt, rank).write_text(json.dumps(asdict(state)))
            self.paths.log(self.attempt, rank).touch()

    def lease(self, age_s: float = 0.0, is_released: bool = False) -> None:
        self.paths.lease.mkdir(exist_ok=True)
        holder = Holder("m", "nid001", 1, "1", self.attempt, "4711", is_released)
        path = self.paths.lease / f"{self.attempt:06d}.json"
        path.write_text(json.dumps(asdict(holder)))
        os.utime(path, (time.time() - age_s,) * 2)

    def seal(self, n_failed: int = 1) -> None:
        wall_s = self.n_done * SONG_S + N_RANKS * LOAD_S
        stages = {name: seconds * self.n_done for name, seconds in STAGES.items()}
        bill = Bill(wall_s, self.n_done * SONG_S, N_RANKS * LOAD_S, 0.0, 0.0, stages, [])
        so_far = tally(self.n_done - n_failed, n_failed).as_json()
        self.event("sealed", so_far=so_far, bill=json.loads(bill.as_json()))
        self.paths.out.mkdir(parents=True, exist_ok=True)
        for path in (self.paths.tokens, self.paths.audio, self.paths.provenance):
            path.touch()


def done(run_dir: Path, number: int) -> None:
    shard = Template(run_dir, number, time.time() - 7200)
    shard.start()
    shard.make(N_SONGS)
    shard.ledgers()
    shard.seal()
    shard.lease(3600, is_released=True)


def running(run_dir: Path, number: int, age_s: float = 0.0, n_songs: int = 400) -> None:
    shard = Template(run_dir, number, time.time() - age_s - LOAD_S - n_songs / SONGS_PER_S)
    shard.start()
    shard.make(n_songs)
    shard.ledgers()
    shard.lease(age_s)


def silent(run_dir: Path, number: int) -> None:
    running(run_dir, number, age_s=400.0)


def stopped(run_dir: Path, number: int) -> None:
    running(run_dir, number, 3600.0, n_songs=100)
    Journal(RunPaths(run_dir).shard(number), 1).write("stop", signal="SIGTERM")
    release(run_dir, number)


def failed(run_dir: Path, number: int, for_good: bool = False) -> None:
    running(run_dir, number, 3600.0, n_songs=100)
    error = "every rank is lost" if not for_good else "2 attempts in a row made no song"
    Journal(RunPaths(run_dir).shard(number), 1).write("failed", error=error, for_good=for_good)
    release(run_dir, number)


def failed_for_good(run_dir: Path, number: int) -> None:
    failed(run_dir, number, for_good=True)


def release(run_dir: Path, number: int) -> None:
    Template(run_dir, number, 0.0).lease(3600.0, is_released=True)


def make_campaign(run_dir: Path, n_shards: int, counts: Sequence[tuple[str, int]]) -> Path:
    """counts: (name of a function here, shards of that kind); the rest waits."""
    freeze(Settings(run=run_dir.name, plan=PlanSettings(n_shards=n_shards)), run_dir)
    plan(run_dir, n_shards)
    first = 0
    for kind, n in counts:
        globals()[kind](run_dir, first)
        paths = RunPaths(run_dir)
        for number in range(first + 1, first + n):
            _link(paths.shard(first), paths.shard(number))
        first += n
    return run_dir


def plan(run_dir: Path, n_shards: int) -> None:
    """What `levo status` reads of a plan and its estimate."""
    folder = run_dir / "plan"
    folder.mkdir(parents=True)
    n_songs = n_shards * N_SONGS
    (folder / "kept.json").write_text(json.dumps({"n_shards": n_shards, "n_songs": n_songs}))
    planned = {"format": 1, "audio_hours": n_songs * AUDIO_S / 3600, "gpu_hours": n_songs * SONG_S / 3600}
    (folder / "estimate.json").write_text(json.dumps(planned))


def _link(template: ShardPaths, shard: ShardPaths) -> None:
    for source, goal in ((template.work, shard.work), (template.out, shard.out), (template.lease, shard.lease)):
        if source.is_dir():
            os.makedirs(goal, exist_ok=True)
            for entry in os.scandir(source):
                if entry.is_file():
                    os.link(entry.path, f"{goal}/{entry.name}")
