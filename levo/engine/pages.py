"""Memory of the songs in flight: a pool of key/value units, a pool of hidden pages, and each phase's tables.

A page is PAGE positions of one row. A unit is one page of `layers_per_unit` layers; a main page is several units and
a sub page fewer, so that both phases share one pool whatever their depths (three units and one in v2-large). Which
unit holds what stands in a table on the host, copied to the device when it has changed.
"""

from math import gcd

import torch
from torch import Tensor

from levo.model.config import LMConfig

PAGE = 128  # positions


class OutOfPages(Exception):
    """The forecast was wrong: fewer pages are free than the next ticks need."""


def pages_for(n_positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-n_positions // PAGE)


class Pool:
    """A tensor whose first axis is dealt out in parts."""

    def __init__(self, n_parts: int, shape: tuple[int, ...], like: Tensor) -> None:
        self.data = torch.zeros((n_parts, *shape), dtype=like.dtype, device=like.device)
        self.n_parts = n_parts
        self.free = list(range(n_parts))[::-1]

    def take(self, n: int) -> list[int]:
        """n parts. Raises OutOfPages, and then takes none."""
        if n > len(self.free):
            raise OutOfPages
        return [self.free.pop() for _ in range(n)]

    def give(self, parts: list[int]) -> None:
        """Back to the pool."""
        self.free += parts


def layers_per_unit(config: LMConfig) -> int:
    """Layers that share a unit: the most that divide both depths."""
    return gcd(config.num_layers, config.num_layers_sub)


def unit_shape(config: LMConfig) -> tuple[int, ...]:
    """[layers_per_unit, 2 (key, value), heads, PAGE, head_dim]."""
    return (layers_per_unit(config), 2, config.num_heads, PAGE, config.head_dim)


class Table:
    """Which parts of a pool the rows of a phase hold: int32 [rows, pages, parts of a page], host and device."""

    def __init__(self, pool: Pool, rows: int, n_pages: int, parts: int) -> None:
        self.pool, self.parts = pool, parts
        self.host = torch.zeros(rows, n_pages, parts, dtype=torch.int32, pin_memory=pool.data.is_cuda)
        self.device = torch.zeros_like(self.host, device=pool.data.device)
        self.owned: list[list[list[int]]] = [[] for _ in range(rows)]  # row -> page -> parts
        self.n_shared = [0] * rows
        self.is_stale = False

    def n_pages(self, row: int) -> int:
        """Pages that the row holds, shared ones included."""
        return self.n_shared[row] + len(self.owned[row])

    def grow(self, row: int, n_positions: int) -> None:
        """Own pages until the row holds so many positions. Raises OutOfPages, and then takes none."""
        missing = pages_for(n_positions) - self.n_pages(row)
        if missing <= 0:
            return
        taken = self.pool.take(missing * self.parts)
        self.adopt(row, [taken[i * self.parts : (i + 1) * self.parts] for i in range(missing)])

    def adopt(self, row: int, pages: list[list[int]]) -> None:
        """Append pages that already hold something."""
        if not pages:
            return
        have = self.n_pages(row)
        self.host[row, have : have + len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.owned[row] += pages
        self.is_stale = True

    def share(self, row: int, pages: list[list[int]]) -> None:
        """Begin an empty row with pages that stay somebody else's."""
        if pages:
            self.host[row, : len(pages)] = torch.tensor(pages, dtype=torch.int32)
        self.n_shared[row] = len(pages)
        self.is_stale = True

    def release(self, row: int) -> list[list[int]]:
        """Empty the row; its own pages go to the caller."""
        pages, self.owned[row], self.n_shared[row] = self.owned[row], [], 0
        return pages

    def drop(self, row: int) -> None:
        """Empty the row; its own pages go back to the pool."""
        self.pool.give([part for page in self.release(row) for part in page])

    def upload(self) -> None:
        """Let the device see it."""
        if self.is_stale:
            self.device.copy_(self.host, non_blocking=True)
            self.is_stale = False

    def units(self, row: int) -> Tensor:
        """The row's parts on the device, int64 [pages, parts]."""
        return self.host[row].long().to(self.pool.data.device)


class KVRows:
    """Keys and values of a few rows as plain torch sees them: positions in, positions out.

    units: integer [rows, pages, parts]. All rows are at the same position.
    """

    def __init__(self, pool: Tensor, units: Tensor) -> None:
        self.data, self.units = pool, units.long().to(pool.device)
        self.layers_per_unit = pool.shape[1]

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Put keys and values [rows, n, H, hd] of positions start ... into the rows' pages."""
        position = torch.arange(start, start + k.shape[1], device=k.device)
        unit = self.units[:, position // PAGE, layer // self.layers_per_unit]  # [rows, n]
        within, offset = layer % self.layers_per_unit, position % PAGE
        self.data[unit, within, 0, :, offset] = k
        self.data[unit, within, 1, :, offset] = v

    def read(self, layer: int, n: int) -> Tensor:
        """Keys and values [2, rows, H, n, hd] of the rows' first n positions."""
        part, within = divmod(layer, self.layers_per_unit)
        _, _, _, heads, _, head_dim = self.data.shape
        out = self.data.new_empty(2, len(self.units), heads, pages_for(n) * PAGE, head_dim)
        # Page by page: one copy each, where one indexed read of all would copy twice.
        for row, units in enumerate(self.units[:, : pages_for(n), part].tolist()):
            for page, unit in enumerate(units):
                out[:, row, :, page * PAGE : (page + 1) * PAGE] = self.data[unit, within]
        return out[:, :, :, :n]


def put_hidden(table: Table, row: int, start: int, values: Tensor) -> None:
    """Keep hidden states [n, d] of positions start ... in the row's pages."""
    position = torch.arange(start, start + len(values), device=values.device)
    table.pool.data[table.units(row)[position // PAGE, 0], position % PAGE] = values


def get_hidden(table: Table, row: int, start: int, n: int) -> Tensor:
    """Hidden states [n, d] of the row's positions start ... start + n - 1."""
    position = torch.arange(start, start + n, device=table.pool.data.device)
    return table.pool.data[table.units(row)[position // PAGE, 0], position % PAGE]
