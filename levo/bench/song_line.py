"""The whole way of songs, as a rank has it: lyrics, engine, FLAC, parts on disk, ledger; without a parent.

A bench's songs are named by number. Their audio is written to a folder that the caller throws away.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from levo.bench.song_model import random_model
from levo.bench.steady import fill
from levo.engine.decoder import Decoder
from levo.engine.engine import Engine
from levo.engine.request import Finished, Request
from levo.errors import NodeError
from levo.model import checkpoint
from levo.model.checkpoint import Model
from levo.model.codec import window_starts
from levo.node.devices import Place
from levo.node.ledger import Ledger
from levo.node.machine import machine, peak_memory_bytes
from levo.node.making import Recipe, making_of, recipe_of, request_of
from levo.node.messages import RankOrder
from levo.node.parts import PartWriter
from levo.node.paths import RunPaths
from levo.node.rows import RowMaker, Taken
from levo.node.writing import Encoded, Limits, Writing
from levo.settings import CodecSettings, EngineSettings, Settings
from levo.songs.song import FRAME_RATE, STEMS, Song
from levo.songs.text import TextEncoder, TextIds

LYRICS = (
    "[intro-short] ; [verse] Salt on the window and light on the floor. Boats in the harbour are knocking once more "
    "; [chorus] Carry me over the water tonight. Carry me over and out of the light ; [verse] Rope in my hand ; "
    "[outro-short]"
)
DESCRIPTION = "folk, calm, acoustic guitar"


@dataclass(frozen=True)
class Load:
    """What is run. Lengths in frames, uniform between two numbers; a trained model may end a song earlier.

    model: None is the released size with random weights, whose songs never end by themselves.
    """

    shortest: int
    longest: int
    slots: int = 48
    memory_gib: float | None = None
    steps: int = 10
    model: Path | None = None
    seed: int = 0

    @property
    def mean(self) -> float:
        """Frames of a song."""
        return (self.shortest + self.longest) / 2

    @property
    def settings(self) -> Settings:
        """The same as a RUN would say it."""
        return Settings(
            model=str(self.model or "random"),
            engine=EngineSettings(slots=self.slots, memory_gib=self.memory_gib),
            codec=CodecSettings(steps=self.steps),
        )


def device() -> str:
    """The GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def get_model(load: Load) -> tuple[Model, TextEncoder]:
    """The model directory's, or random weights."""
    recipe = recipe_of(load.settings, device())
    dtype = getattr(torch, recipe.dtype)
    if load.model is None:
        return random_model(torch.device(recipe.device), dtype)
    return checkpoint.load(load.model, recipe.device, dtype), TextEncoder(load.model)


class Supply:
    """Songs of drawn lengths, as rows of a manifest; each request is made from its lyrics, as a rank makes it."""

    def __init__(self, load: Load, encoder: TextEncoder, name: Callable[[int, str], None]) -> None:
        self.load, self.encoder, self.name = load, encoder, name
        self.seed, self.n_made = load.seed, 0
        self.uncond: TextIds = encoder.prepare(LYRICS, DESCRIPTION, "mixed").uncond
        self.songs: dict[int, Song] = {}

    def song(self, frames: int, *, seed: int | None = None, renditions: int = 1) -> Song:
        """A song of so many frames at most; without a seed it has one of its own."""
        self.n_made += 1
        number, seconds = self.n_made, (frames + 0.5) / FRAME_RATE  # half a frame, lest rounding make it one short
        return Song(
            f"bench {number}", LYRICS, DESCRIPTION, "mixed", renditions, number if seed is None else seed, seconds,
            "en", 60, 9, frames, "bench", number,
        )  # fmt: skip

    def request(self, song: Song) -> Request:
        """What the engine is asked for."""
        key = song.line
        self.songs[key] = song
        self.name(key, song.song_id)
        return request_of(song, key, self.encoder)

    def next(self) -> Request:
        """The next song of the load."""
        draw = random.Random(f"{self.seed}.{self.n_made}")
        return self.request(self.song(draw.randint(self.load.shortest, self.load.longest)))


class _TimedParts(PartWriter):
    """Parts, and how long the writer's thread was at them."""

    seconds = 0.0

    def add(self, row: Any, files: list[tuple[str, bytes]]) -> None:
        begin = time.perf_counter()
        super().add(row, files)
        self.seconds += time.perf_counter() - begin

    def commit(self) -> int:
        begin = time.perf_counter()
        n_songs = super().commit()
        self.seconds += time.perf_counter() - begin
        return n_songs


class Line(AbstractContextManager["Line"]):
    """One rank's worth of machinery on a model in memory."""

    def __init__(self, load: Load, model: Model, encoder: TextEncoder, folder: Path) -> None:
        self.load, self.model = load, model
        self.recipe: Recipe = recipe_of(load.settings, device())
        paths = RunPaths(folder).shard(0)
        paths.work.mkdir(parents=True)
        self.ledger = Ledger(paths, 1, 0, age_s=0)
        begin = time.perf_counter()
        making = making_of(model, encoder, self.recipe, self.ledger.book)
        engine = making.new_engine()
        assert isinstance(engine, Engine) and engine.decoder is not None
        self.engine, self.decoder = engine, engine.decoder
        self.engine_s = time.perf_counter() - begin
        order = RankOrder(folder, 0, 1, 0, Place(), "levo.bench", load.settings, os.getpid())
        self.rows = RowMaker(order, self.recipe, making, machine(self.recipe.device))
        self.parts = _TimedParts(paths, 1, 0)
        node = load.settings.node
        limits = Limits(node.part_songs, node.part_seconds, node.retries)
        self.writing = Writing(self.parts, limits, self._committed)
        self.supply = Supply(load, encoder, self.ledger.name)
        self.n_done = self.n_ticks = self.frames_done = self.n_windows = 0
        self.encode_s: list[float] = []
        self.hashes: dict[int, list[str]] = {}
        self.ledger.book("load", [])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.writing.close()
        self.ledger.close()

    def warm_up(self) -> None:
        """One window through the codec and to disk, then every slot in the middle of a song, then ticks."""
        tokens = torch.zeros(3, 25, dtype=torch.int32).numpy()
        request = self.supply.request(self.supply.song(25))
        self.make([replace(request, tokens=tokens)])
        with torch.inference_mode():
            if self.recipe.device != "cpu":
                self.decoder.setup.kv.data.normal_()  # zeros would draw less power than numbers
                self.decoder.setup.hidden.data.normal_()
            fill(self.decoder, self.supply)
        self.step()
        self.step()

    def step(self) -> list[Finished]:
        """One step of the engine with its queue kept full, as a rank does it."""
        while self.engine.room:
            self.engine.submit(self.supply.next())
        return self._step()

    def make(self, requests: list[Request]) -> list[Finished]:
        """These songs alone, until they are on disk."""
        for request in requests:
            self.engine.submit(request)
        done: list[Finished] = []
        while self.engine.live:
            done += self._step()
        self.writing.flush()
        while self.writing.uncommitted:
            time.sleep(0.001)
            self.writing.check()
            self.writing.flush()
        return done

    def _step(self) -> list[Finished]:
        self.writing.check()
        self.ledger.book("idle", [])
        finished = self.engine.step()
        self.n_ticks += self.decoder.sync_ticks
        for done in finished:
            self._leave(done)
        return finished

    def _leave(self, done: Finished) -> None:
        song = self.supply.songs.pop(done.key)
        if done.error is not None or done.tokens is None:
            raise NodeError(f"a song failed: {done.error}", where=song.song_id, fix="a bench needs songs that are ok")
        frames = done.tokens.shape[1]
        self.n_done += 1
        self.frames_done += frames * song.renditions
        n_windows = len(window_starts(frames, self.model.config.codec.window))
        self.n_windows += n_windows * song.renditions * len(STEMS[song.gen_type])
        peak = peak_memory_bytes(self.recipe.device)
        self.writing.put(done.key, self._timed(self.rows.encoder(song, done, Taken(), peak)))
        self.ledger.book("encode", [done.key])

    def _timed(self, encode: Callable[[], Encoded]) -> Callable[[], Encoded]:
        def timed() -> Encoded:
            begin = time.perf_counter()
            encoded = encode()
            self.encode_s.append(time.perf_counter() - begin)
            return encoded

        return timed

    def _committed(self, done: list[Encoded]) -> None:
        for encoded in done:
            if encoded.row["outcome"] != "ok":
                raise NodeError(encoded.row["error"], where=encoded.song_id, fix="a bench needs songs that are ok")
            self.hashes[encoded.row["line"]] = [file["pcm_sha256"] for file in encoded.row["files"]]


def held_parts(decoder: Decoder) -> tuple[int, int]:
    """Units and hidden pages that somebody holds: rows, songs between the phases, shared prefixes."""
    tables = decoder.main, decoder.sub
    units = sum(len(page) for phase in tables for row in phase.kv.owned for page in row)
    units += sum(len(page) for shared in decoder.main.shared.values() for page in shared.kv)
    units += sum(len(page) for pages in decoder.sub.shared.values() for page in pages)
    hidden = sum(len(page) for phase in tables for row in phase.hidden.owned for page in row)
    hidden += sum(len(page) for shared in decoder.main.shared.values() for page in shared.hidden)
    hidden += sum(len(page) for draft in decoder.drafts for held in draft.hidden for page in held.own)
    return units, hidden
