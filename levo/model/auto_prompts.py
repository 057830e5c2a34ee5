"""Upstream's automatic prompts: token tensors by genre and language, from one torch file into two of ours.

The released file was not at hand (facts/lm.md sections 5 and 9): its structure is what upstream's code expects of it,
{genre: {"zh" | "en": sequence of integer tensors [1, 3, n]}}; a tensor [m, 3, n] as the sequence, and the older
{genre: sequence} for both languages, are taken as well. Anything else is refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save
from torch import Tensor

from levo.errors import ModelError
from levo.model.tensor_source import load_pickle
from levo.songs.prompts import INDEX_FORMAT, LANGUAGES, prompt_trouble
from levo.songs.text import TextLimits

FIX = "use tools/new_auto_prompt.pt of upstream's repository (a Git LFS file), or leave it out"


def read_auto_prompts(path: Path, limits: TextLimits) -> dict[str, bytes]:
    """prompts/index.json and prompts/tokens.safetensors as bytes. Raises ModelError for another structure.

    tokens: int32 [prompts, 3, longest], filled with the absent id; index: genre -> language -> [first, count].
    """
    content = load_pickle(path)
    if not isinstance(content, Mapping) or not content:
        raise ModelError("no mapping of genres to prompts", where=str(path), fix=FIX)
    index: dict[str, dict[str, list[int]]] = {}
    rows: list[np.ndarray] = []
    for genre in sorted(content, key=str):
        for language, prompts in _languages(content[genre], str(genre), path):
            first = len(rows)
            rows += [_prompt(prompt, limits, f"{path}: {genre}, {language}") for prompt in prompts]
            if len(rows) == first:
                raise ModelError(f"no prompts for {genre} in {language}", where=str(path), fix=FIX)
            index.setdefault(str(genre), {})[language] = [first, len(rows) - first]
    lengths = np.array([row.shape[1] for row in rows], dtype=np.int32)
    tokens = np.full((len(rows), 3, lengths.max()), limits.absent, dtype=np.int32)
    for into, row in zip(tokens, rows, strict=True):
        into[:, : row.shape[1]] = row
    head = {"format": INDEX_FORMAT, "genres": index}
    return {
        "prompts/index.json": (json.dumps(head, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode(),
        "prompts/tokens.safetensors": save({"lengths": lengths, "tokens": tokens}),
    }


def _languages(prompts: Any, genre: str, path: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(prompts, Mapping):
        unknown = sorted(str(key) for key in prompts if key not in LANGUAGES)
        if unknown or not prompts:
            raise ModelError(
                f"genre {genre} has the languages {', '.join(unknown)}, not {' and '.join(LANGUAGES)}",
                where=str(path),
                fix=FIX,
            )
        yield from ((language, prompts[language]) for language in LANGUAGES if language in prompts)
    else:
        yield from ((language, prompts) for language in LANGUAGES)


def _prompt(prompt: Any, limits: TextLimits, where: str) -> np.ndarray:
    if not isinstance(prompt, Tensor) or prompt.is_floating_point() or prompt.ndim not in (2, 3):
        kind = f"{prompt.dtype} {list(prompt.shape)}" if isinstance(prompt, Tensor) else type(prompt).__name__
        raise ModelError(f"a prompt is {kind}, not integers [1, 3, frames]", where=where, fix=FIX)
    tokens = prompt.numpy()
    if tokens.ndim == 3 and tokens.shape[0] == 1:
        tokens = tokens[0]
    tokens = tokens[:, : limits.prompt_frames]  # as upstream cuts what the model has no place for
    trouble = prompt_trouble(tokens, limits)
    if trouble:
        raise ModelError(f"a prompt {trouble}", where=where, fix=FIX)
    return tokens.astype(np.int32)
