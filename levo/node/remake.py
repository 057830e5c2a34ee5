"""Songs made again from their provenance rows alone, and compared bit for bit.

A song's bits depend on its row's inputs, the model, the code, the precision, the kind of device, and the versions below
it (design: The engine, 3). Where these differ from the row's, a song is "not comparable", never "different".
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from levo.engine.request import Finished, Sampling, no_book
from levo.node.audio import pcm_sha256
from levo.node.machine import Machine, best_device, machine
from levo.node.making import Making, Recipe, find_maker, need_model, request_of
from levo.node.provenance import tokens_sha256
from levo.songs.song import Song

SHAPING = (
    "device",
    "gpu_name",
    "torch_version",
    "cuda_version",
    "cublas_version",
    "cudnn_version",
    "triton_version",
    "driver_version",
)
"""Columns of the machine that bits depend on."""

Row = dict[str, Any]


@dataclass
class Remade:
    """A sentence a song."""

    equal: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    not_comparable: list[str] = field(default_factory=list)


def remake(rows: list[Row], model_dir: Path | None, where: Path, maker: str) -> Remade:
    """Make these songs again, in this process. Raises ModelError when there is no model to make them with."""
    result = Remade()
    here = machine(best_device())
    groups: dict[Recipe, list[Row]] = {}
    for row in rows:
        reason = _difference(row, here)
        if reason is not None:
            result.not_comparable.append(f"song {row['song_id']!r}: {reason}")
            continue
        recipe = _recipe(row, need_model(model_dir, row["model_dir"], where))
        groups.setdefault(recipe, []).append(row)
    for recipe, group in groups.items():
        _remake_group(recipe, group, maker, here, result)
    return result


def _difference(row: Row, here: Machine) -> str | None:
    """Why this machine may give other bits than the row's; None if it must give the same."""
    for name in SHAPING:
        then, now = row[name], getattr(here, name)
        if then != now:
            return f"{name} was {then}, here it is {now}"
    return None


def _code_difference(row: Row, here: Machine) -> str | None:
    """The same for the code; such a song is made again all the same, since most changes change no bits."""
    for name in ("levo_version", "git_commit"):
        then, now = row[name], getattr(here, name)
        if then != now:
            return f"{name} was {then}, here it is {now}"
    return None


def _recipe(row: Row, model_dir: Path) -> Recipe:
    return Recipe(
        model_dir=model_dir,
        device=row["device"],
        dtype=row["dtype"],
        slots=row["batch_size"],
        gemm_rows=row["gemm_rows"],
        sampling=Sampling(**{f.name: row[f.name] for f in fields(Sampling)}),
        codec_steps=row["codec_steps"],
        codec_guidance=row["codec_guidance"],
    )


def _remake_group(recipe: Recipe, rows: list[Row], maker: str, here: Machine, result: Remade) -> None:
    making = find_maker(maker)(recipe, no_book)
    comparable = []
    for row in rows:
        if row["model_digest"] == making.model_digest:
            comparable.append(row)
        else:
            then, now = row["model_digest"][:12], making.model_digest[:12]
            reason = f"made by model {then}, and {recipe.model_dir} is {now}"
            result.not_comparable.append(f"song {row['song_id']!r}: {reason}")
    for row, done in _make(making, comparable):
        trouble = compare(row, done)
        code = _code_difference(row, here)
        name = f"song {row['song_id']!r}"
        if not trouble:
            result.equal.append(f"{name}: {row['frames']} frames, {len(row['files'])} audio files")
        elif code is not None:
            result.not_comparable.append(f"{name}: {'; '.join(trouble)}, but {code}")
        else:
            result.different.append(f"{name}: made again, {'; '.join(trouble)}")


def _make(making: Making, rows: list[Row]) -> Iterable[tuple[Row, Finished]]:
    engine = making.new_engine()
    waiting = list(enumerate(rows))
    while waiting or engine.live:
        while waiting and engine.room:
            key, row = waiting.pop(0)
            engine.submit(request_of(song_of(row), key, making.encoder, prompt_of(row)))
        for done in engine.step():
            yield rows[done.key], done


def song_of(row: Row) -> Song:
    """The song that a provenance row describes."""
    return Song(**{f.name: row[f.name] for f in fields(Song)})


def prompt_of(row: Row) -> np.ndarray | None:
    """Audio prompt tokens int32 [3, n], if the song had any."""
    return None if row["prompt"] is None else np.array(row["prompt"], dtype=np.int32)


def compare(row: Row, done: Finished) -> list[str]:
    """What differs between a row and its song made again; empty if nothing does."""
    if done.error is not None or done.tokens is None:
        return [f"it failed: {done.error}"]
    trouble = []
    if tokens_sha256(done.tokens) != row["tokens_sha256"]:
        trouble.append(f"tokens differ ({done.tokens.shape[1]} frames, recorded {row['frames']})")
    found = {(audio.rendition, audio.stem): pcm_sha256(audio.pcm) for audio in done.audio}
    recorded = {(file["rendition"], file["stem"]): file["pcm_sha256"] for file in row["files"]}
    for rendition, stem in sorted(found.keys() | recorded.keys()):
        if found.get((rendition, stem)) != recorded.get((rendition, stem)):
            trouble.append(f"samples differ (rendition {rendition}, {stem})")
    return trouble
