"""Pages that the songs in flight will need at every future tick, from their predicted lengths (design: 2).

A song grows by one position a tick, so songs that started together would all be longest together. A song is admitted
when the peak of everybody's future demand, its own included, fits the pool; that staggers the start by itself.
Pure arithmetic: no tensors of a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from levo.engine.pages import PAGE

OVERRUN = PAGE  # frames that a song which outlived its prediction is expected to go on


@dataclass(frozen=True)
class Ahead:
    """A song's way from here. count: frames that its phase has made; predicted: frames of the whole song."""

    in_sub: bool
    count: int
    predicted: int

    @property
    def frames(self) -> int:
        """Predicted frames, or a little more than there are already."""
        return max(self.predicted, self.count + OVERRUN)


@dataclass(frozen=True)
class Costs:
    """What a page of each phase costs, in units of the key/value pool and pages of the hidden pool."""

    prefix_len: int
    max_delay: int
    main_parts: int
    sub_parts: int
    n_shared: int  # full pages of the unconditional prefix, which no song owns


def demand(songs: Sequence[Ahead], costs: Costs, ticks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Units and hidden pages of all songs together at each of the future ticks [n]. Two rows a song."""
    if not songs:
        return np.zeros(len(ticks)), np.zeros(len(ticks))
    in_sub = np.array([song.in_sub for song in songs])[:, None]
    count = np.array([song.count for song in songs])[:, None]
    frames = np.array([song.frames for song in songs])[:, None]
    to_sub = np.where(in_sub, 0, frames - count)  # ticks until the song changes phase
    main_pages = _pages(costs.prefix_len + np.minimum(count + ticks, frames) + costs.max_delay)
    in_main = ~in_sub & (ticks <= to_sub)
    sub_count = np.where(in_sub, count, 0) + ticks - to_sub
    is_sub = ~in_main & (sub_count <= frames)
    sub_pages = _pages(costs.prefix_len + costs.max_delay + np.clip(sub_count, 0, None))
    units = in_main * (2 * main_pages - costs.n_shared) * costs.main_parts
    units = units + is_sub * (2 * sub_pages - costs.n_shared) * costs.sub_parts
    whole = _pages(costs.prefix_len + frames + costs.max_delay)
    hidden = in_main * (2 * main_pages - costs.n_shared) + is_sub * (2 * whole - costs.n_shared)
    return units.sum(axis=0), hidden.sum(axis=0)


def fits(songs: Sequence[Ahead], costs: Costs, n_units: int, n_hidden: int) -> bool:
    """Whether the peak of the songs' demand stays within both pools."""
    horizon = 2 * max((song.frames for song in songs), default=0) + PAGE
    units, hidden = demand(songs, costs, np.arange(0, horizon, PAGE // 2))
    return bool(units.max() <= n_units and hidden.max() <= n_hidden)


def _pages(n_positions: np.ndarray) -> np.ndarray:
    return -(-n_positions // PAGE)
