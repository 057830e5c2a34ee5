"""The delay pattern: where frame t of codebook k stands in the sequence of steps (facts/lm.md section 3).

Step 0 is empty; step s >= 1 holds frame s - 1 - D_k of codebook k. Pure index arithmetic on numpy arrays.
Letters: K codebooks, T frames, S = T + max(D) + 1 steps.
"""

from collections.abc import Sequence

import numpy as np


def n_steps(frames: int, delays: Sequence[int]) -> int:
    """S, the steps of the whole layout."""
    return frames + max(delays) + 1


def n_valid_steps(frames: int, delays: Sequence[int]) -> int:
    """Steps before the first one that lacks a codebook at its end ("valid steps only"; generation uses all S)."""
    return n_steps(frames, delays) - max(delays)


def step_frames(frames: int, delays: Sequence[int]) -> np.ndarray:
    """Frame of every cell, int64 [K, S]; -1 where the cell is unfilled."""
    found = np.arange(n_steps(frames, delays))[None] - 1 - np.asarray(delays, dtype=np.int64)[:, None]
    return np.where((found >= 0) & (found < frames), found, -1)


def frame_steps(frames: int, delays: Sequence[int]) -> np.ndarray:
    """Step of every frame, int64 [K, T]."""
    return np.arange(frames)[None] + 1 + np.asarray(delays, dtype=np.int64)[:, None]


def build(codes: np.ndarray, delays: Sequence[int], fill: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes [..., K, T >= 1] -> sequence [..., K, S] with `fill` in unfilled cells, and mask [K, S] of filled ones."""
    at = step_frames(codes.shape[-1], delays)
    mask = at >= 0
    taken = np.take_along_axis(codes, np.broadcast_to(np.maximum(at, 0), (*codes.shape[:-2], *at.shape)), axis=-1)
    return np.where(mask, taken, np.asarray(fill, dtype=codes.dtype)), mask


def revert(values: np.ndarray, frames: int, delays: Sequence[int], fill: int) -> tuple[np.ndarray, np.ndarray]:
    """The first steps [..., K, n] of a sequence -> codes [..., K, T], and the mask [K, T] of those that they reach.

    Frames beyond the n >= 1 given steps get `fill`.
    """
    at = frame_steps(frames, delays)
    mask = at < values.shape[-1]
    at = np.broadcast_to(np.where(mask, at, 0), (*values.shape[:-2], *at.shape))
    return np.where(mask, np.take_along_axis(values, at, axis=-1), np.asarray(fill, dtype=values.dtype)), mask


def logit_pick(frames: int, delays: Sequence[int], steps: int) -> np.ndarray:
    """Flat index k * steps + s of the logits that predict each frame, int64 [K, T]; -1 beyond the given steps.

    The logits at step s predict step s + 1.
    """
    at = frame_steps(frames, delays) - 1
    return np.where(at < steps, np.arange(len(delays))[:, None] * steps + at, -1)


def pick_logits(logits: np.ndarray, frames: int, delays: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits of every step [K, n, C+1] -> those that predict each frame [K, T, C+1] (NaN where none), mask [K, T]."""
    pick = logit_pick(frames, delays, logits.shape[1])
    mask = pick >= 0
    taken = logits.reshape(-1, logits.shape[-1])[np.where(mask, pick, 0)]
    return np.where(mask[..., None], taken, np.asarray(np.nan, dtype=logits.dtype)), mask
