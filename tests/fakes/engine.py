"""A maker and an engine that need no model, with planned failures. The plan is JSON in the environment: FAKE_PLAN.

    nan: seeds whose song comes back as an error     empty: seeds whose song comes back without frames
    refuse: seeds that submit() refuses              die: seeds that kill their process when they reach the engine
    oom_over: steps raise MemoryError while more songs than this are inside
    tick_s: seconds a step takes                     load_s: seconds that loading takes

A song's tokens depend on its seed alone, its audio on the tokens, seed, rendition and stem.
"""

import hashlib
import json
import os
import signal
import time
from collections import deque

import numpy as np

from levo.engine.request import Audio, Book, Finished, Request
from levo.errors import ModelError
from levo.node.making import Making, Recipe
from levo.songs.song import STEMS
from levo.songs.text import Conditioning, TextIds

MAKER = "fakes.engine:load"
SAMPLES_PER_FRAME = 48


def load(recipe: Recipe, book: Book) -> Making:
    plan = json.loads(os.environ.get("FAKE_PLAN", "{}"))
    time.sleep(plan.get("load_s", 0))
    return Making(
        encoder=FakeEncoder(),
        new_engine=lambda: FakeEngine(recipe, book, plan),
        rate=1200,
        model_name="fake",
        model_digest="f" * 64,
    )


class FakeEncoder:
    def prepare(self, lyrics: str, description: str | None, gen_type: str) -> Conditioning:
        ids = TextIds((1,), (0,), (1,))
        return Conditioning(ids, ids)


class FakeEngine:
    def __init__(self, recipe: Recipe, book: Book, plan: dict) -> None:
        self.slots, self.book, self.plan = recipe.slots, book, plan
        self.queue: deque[Request] = deque()
        self.seats: dict[int, tuple[Request, int]] = {}

    @property
    def live(self) -> int:
        return len(self.queue) + len(self.seats)

    @property
    def room(self) -> int:
        return max(0, self.slots - self.live)

    def submit(self, request: Request) -> None:
        if request.seed in self.plan.get("refuse", []):
            raise ModelError("this song is refused")
        self.queue.append(request)

    def step(self) -> list[Finished]:
        while self.queue and len(self.seats) < self.slots:
            request = self.queue.popleft()
            self.seats[request.key] = (request, 0)
            self.book("prefill", [request.key])
        if self.live > self.plan.get("oom_over", 1 << 30):
            raise MemoryError("planned")
        if any(request.seed in self.plan.get("die", []) for request, _ in self.seats.values()):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.plan.get("tick_s", 0))
        self.book("main", list(self.seats))
        return [done for key in list(self.seats) if (done := self._tick(key)) is not None]

    def _tick(self, key: int) -> Finished | None:
        request, age = self.seats[key]
        if request.tokens is None and age < frames_of(request):
            self.seats[key] = (request, age + 1)
            return None
        del self.seats[key]
        if request.seed in self.plan.get("nan", []):
            return Finished(key, "the audio is not finite")
        tokens = request.tokens if request.tokens is not None else tokens_of(request)
        if request.seed in self.plan.get("empty", []):
            tokens = tokens[:, :0]
        stems = STEMS[request.gen_type]
        audio = [audio_of(request, tokens, r, stem) for r in range(request.renditions) for stem in stems]
        self.book("vae", [key])
        return Finished(key, None, tokens, "eos", key % self.slots, key % self.slots, audio)


def frames_of(request: Request) -> int:
    return min(request.max_frames, 10 + request.seed % 7)


def tokens_of(request: Request) -> np.ndarray:
    return np.random.default_rng(request.seed).integers(0, 16384, (3, frames_of(request)), dtype=np.int32)


def audio_of(request: Request, tokens: np.ndarray, rendition: int, stem: str) -> Audio:
    text = tokens.tobytes() + f"{request.seed}.{rendition}.{stem}".encode()
    seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    pcm = np.random.default_rng(seed).integers(-9000, 9000, (tokens.shape[1] * SAMPLES_PER_FRAME, 2), dtype=np.int16)
    return Audio(rendition, stem, pcm, gain=1.0, peak=0.27, clipped_share=0.0, vae_dtype="float32")
