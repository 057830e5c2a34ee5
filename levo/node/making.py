"""The model and its engines, as a rank, verify, render and sing get them. The one place here that loads weights.

Tests put another maker in its place (a dotted path in the rank's order); everything else stays as it is.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from levo.engine.request import Book, Finished, Request, Sampling
from levo.errors import ModelError
from levo.node.kernel_cache import use_kernel_cache
from levo.settings import Settings
from levo.songs.prompts import Prompt, PromptBook
from levo.songs.song import Song
from levo.songs.text import Conditioning

if TYPE_CHECKING:  # torch takes seconds to import, and the parent of a shard needs none of it
    from levo.model.checkpoint import Model

GEMM_ROWS_GPU, GEMM_ROWS_CPU = 128, 16
"""Row counts at which rows do not depend on each other, by measurement (design: The engine, 3)."""

SLOTS_GPU, SLOTS_CPU = 64, 8
"""Slots where the settings name none. On a GPU as many as gemm_rows holds: memory decides how many are taken."""


@dataclass(frozen=True)
class Recipe:
    """Everything beside a song's own row that shapes its bits, and the slots, which do not.

    language: False leaves the language model on disk; such an engine takes only songs that bring their tokens.
    """

    model_dir: Path
    device: str
    dtype: str
    slots: int
    gemm_rows: int
    sampling: Sampling
    codec_steps: int
    codec_guidance: float
    language: bool = True
    memory_gib: float | None = None


class EngineLike(Protocol):
    """What this room asks of an engine (levo.engine.engine)."""

    @property
    def live(self) -> int: ...

    @property
    def room(self) -> int: ...

    def submit(self, request: Request) -> None: ...

    def step(self) -> list[Finished]: ...


class EncoderLike(Protocol):
    """What this room asks of a text encoder (levo.songs.text)."""

    def prepare(self, lyrics: str, description: str | None, gen_type: str) -> Conditioning: ...


@dataclass(frozen=True)
class Making:
    """A loaded model. new_engine: an empty engine on it; the former one must have been dropped.

    prompts: None for a stand-in that knows none.
    """

    encoder: EncoderLike
    new_engine: Callable[[], EngineLike]
    rate: int
    model_name: str
    model_digest: str
    prompts: PromptBook | None = None


Maker = Callable[[Recipe, Book], Making]
REAL = "levo.node.making:load"


def find_maker(path: str) -> Maker:
    """The maker that a dotted path "module:function" names."""
    module, _, name = path.partition(":")
    maker: Maker = getattr(importlib.import_module(module), name)
    return maker


def load(recipe: Recipe, book: Book) -> Making:
    """Load the real model. Raises ModelError when its directory is incomplete or damaged."""
    import torch

    from levo.model import checkpoint
    from levo.songs.text import TextEncoder

    if recipe.device == "cpu":
        torch.set_num_threads(1)  # the thread count changes bits (design: The engine, 3)
    model = checkpoint.load(recipe.model_dir, recipe.device, getattr(torch, recipe.dtype), language=recipe.language)
    encoder = TextEncoder(recipe.model_dir)
    return making_of(model, encoder, recipe, book, PromptBook(recipe.model_dir, encoder.limits))


def making_of(
    model: "Model", encoder: EncoderLike, recipe: Recipe, book: Book, prompts: PromptBook | None = None
) -> Making:
    """A model in memory as a rank gets it."""
    from levo.engine.engine import Engine

    booked = book
    if recipe.device != "cpu":
        use_kernel_cache()
        booked = after_the_device(book)

    def new_engine() -> EngineLike:
        return Engine(
            model,
            slots=recipe.slots,
            gemm_rows=recipe.gemm_rows,
            sampling=recipe.sampling,
            codec_steps=recipe.codec_steps,
            codec_guidance=recipe.codec_guidance,
            memory_gib=recipe.memory_gib,
            book=booked,
        )

    rate = model.config.codec.vae.sample_rate
    return Making(encoder, new_engine, rate, model.name, model.digest, prompts)


def after_the_device(book: Book) -> Book:
    """A book that first waits until the device has done what was asked of it.

    The engine only asks; without the wait a song's prefill or flow would be booked in whatever waits next, and to
    everybody in it. It costs an empty queue twice a song and twice a window: after ticks the engine has waited anyway.
    """
    import torch

    def booked(stage: str, keys: Sequence[int]) -> None:
        torch.cuda.synchronize()
        book(stage, keys)

    return booked


def recipe_of(settings: Settings, device: str) -> Recipe:
    """What a RUN's settings mean on a device."""
    on_gpu = device.startswith("cuda")
    node, engine = settings.node, settings.engine
    dtype = node.dtype if node.dtype != "auto" else ("float16" if on_gpu else "float32")
    rows = engine.gemm_rows or (GEMM_ROWS_GPU if on_gpu else GEMM_ROWS_CPU)
    return Recipe(
        model_dir=Path(settings.model),
        device=device,
        dtype=dtype,
        slots=slots_of(settings, on_gpu=on_gpu),
        gemm_rows=rows,
        sampling=Sampling(**settings.sampling.model_dump()),
        codec_steps=settings.codec.steps,
        codec_guidance=settings.codec.guidance,
        memory_gib=engine.memory_gib,
    )


def slots_of(settings: Settings, *, on_gpu: bool) -> int:
    """Slots of a rank."""
    return settings.engine.slots or (SLOTS_GPU if on_gpu else SLOTS_CPU)


def prompt_tokens(song: Song, making: Making) -> np.ndarray | None:
    """Audio prompt int32 [3, n] of a song as it was planned. Raises LevoError when it is not what was checked."""
    if song.prompt_source is None or song.prompt_sha256 is None or making.prompts is None:
        return None
    return making.prompts.checked(Prompt(song.prompt_source, song.prompt_sha256))


def request_of(
    song: Song, key: int, encoder: EncoderLike, prompt: np.ndarray | None = None, tokens: np.ndarray | None = None
) -> Request:
    """The engine's request for a song. prompt: int32 [3, n]; tokens: int32 [3, frames] if only audio is wanted."""
    return Request(
        key=key,
        conditioning=encoder.prepare(song.lyrics, song.description, song.gen_type),
        seed=song.seed,
        max_frames=song.max_frames,
        predicted_frames=song.predicted_frames,
        gen_type=song.gen_type,
        renditions=song.renditions,
        prompt=prompt,
        tokens=tokens,
    )


def need_model(model_dir: Path | None, recorded: str | None, where: Path) -> Path:
    """The model directory to use: the one given, else the one recorded with the songs. Raises ModelError if absent."""
    chosen = model_dir or (Path(recorded) if recorded else None)
    if chosen is None or not (chosen / "model.json").exists():
        raise ModelError(
            f"no model directory at {chosen}" if chosen else "it is not recorded which model directory was used",
            where=str(where),
            fix="name it with --model DIR",
        )
    return chosen
