"""A parallel pass over known positions, at one fixed shape: the prefix of a row, or the D positions behind a song.

Captured once like a tick. Its inputs are copied into buffers that stay where they are; what leaves is a copy.
"""

import torch
from torch import Tensor

from levo.engine.graph import Graph
from levo.engine.pages import Table
from levo.engine.stack import Stack


class Pass:
    """Runs n positions of each of `rows` rows of a table."""

    def __init__(self, stack: Stack, table: Table, rows: int, n: int, *, captured: bool) -> None:
        like, pool = stack.norm.weight, table.pool.data
        self.stack, self.pool, self.shape = stack, pool, (rows, n)
        self.x = like.new_zeros(rows * n, len(like))
        self.hidden = torch.zeros_like(self.x)
        # Page 0 of the pool takes what the warm-up writes; nobody holds it yet.
        self.units = torch.zeros((rows, *table.host.shape[1:]), dtype=torch.int32, device=pool.device)
        self.starts = torch.zeros(rows, dtype=torch.int32, device=pool.device)
        self.graph = Graph(self._run, pool.device, captured=captured)

    def _run(self) -> None:
        def attend(layer: int, qkv: Tensor) -> Tensor:
            per_row = qkv.unflatten(0, self.shape)
            return self.stack.ops.attend_pass(per_row, self.pool, self.units, layer, self.starts, self.stack.rope)

        self.hidden.copy_(self.stack.run(self.x.clone(), attend, len(self.x)))

    def __call__(self, x: Tensor, table: Table, rows: tuple[int, ...], start: int) -> Tensor:
        """x [rows, n, d] at positions start ... of these rows of the table -> hidden [rows, n, d]."""
        self.x.copy_(x.flatten(0, 1))
        self.units.copy_(table.host[list(rows)])
        self.starts.fill_(start)
        self.graph.run()
        return self.hidden.clone().unflatten(0, self.shape)
