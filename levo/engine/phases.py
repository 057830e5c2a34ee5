"""What the two phases of a song have in common: slots, pages, passes and the captured tick (design: The engine, 1).

main_phase.py makes codebook 0, sub_phase.py codebooks 1 and 2. Tensors and pages only: which song may enter, and when,
is the decoder's business.
Letters: P prefix positions, D = max delay, e frames of the song, R = gemm_rows, d width, C code size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor, nn

from levo.engine.graph import Graph
from levo.engine.pages import PAGE, Pool, Table, layers_per_unit, pages_for
from levo.engine.passes import Pass
from levo.engine.request import Request, Sampling
from levo.engine.slots import Slots
from levo.engine.stack import Stack
from levo.engine.twins import ROWS
from levo.model.config import LMConfig
from levo.model.lm import LM, Transformer
from levo.songs.text import TextIds

Pages = list[list[int]]


@dataclass(frozen=True)
class Setup:
    """What both phases are built from: the model, where memory comes from, and how a tick runs."""

    lm: LM
    pad_id: int
    gemm_rows: int
    sampling: Sampling
    kv: Pool
    hidden: Pool
    ops: ModuleType
    captured: bool

    @property
    def config(self) -> LMConfig:
        """Shapes of the language model."""
        return self.lm.config

    @property
    def n_positions(self) -> int:
        """Positions of the longest song."""
        return self.config.prefix_len + self.config.max_frames + self.config.max_delay + 1


@dataclass
class Held:
    """Hidden pages of one row of a song between the phases."""

    shared: Pages
    own: Pages


@dataclass(frozen=True)
class Shared:
    """The unconditional prefix of one text, which depends on no song: pages of the main phase, and the sub prefix."""

    kv: Pages
    hidden: Pages
    sub: Tensor


@dataclass(frozen=True)
class Need:
    """Units of the key/value pool and pages of the hidden pool."""

    units: int
    hidden: int


@dataclass
class Draft:
    """A song after the main phase: its codebook 0 and its main hidden states of P + e + D positions.

    prefix_sub [P, d]: the conditional row's prefix of the sub phase.
    """

    request: Request
    codes0: list[int]
    at_cap: bool
    hidden: tuple[Held, Held]
    prefix_sub: Tensor
    shared: Shared
    main_slot: int


@dataclass
class Seat:
    """What a slot holds on the host. count: frames at the last look.  order: rises with every admission."""

    request: Request
    cap: int
    order: int
    count: int = 0
    prefix_sub: Tensor | None = None
    shared: Shared | None = None
    draft: Draft | None = None


class Phase:
    """Slots, their pages, and the captured tick."""

    shared: Mapping[TextIds, object]
    """Unconditional prefixes, by text."""

    def __init__(self, setup: Setup, transformer: Transformer, books: int, base: int, slots: int) -> None:
        config, n_pages = setup.config, pages_for(setup.n_positions)
        device = setup.kv.data.device
        self.setup, self.config, self.transformer = setup, config, transformer
        groups = setup.gemm_rows // ROWS
        self.n_rows = ROWS * slots  # the GEMMs' other rows are never looked at
        self.slots = Slots.empty(config, groups, slots, books, base, setup.sampling.window, device)
        parts = len(transformer.layers) // layers_per_unit(config)
        self.kv = Table(setup.kv, setup.gemm_rows, n_pages, parts)
        self.hidden = Table(setup.hidden, setup.gemm_rows, n_pages, 1)
        heads = (config.num_heads, config.head_dim)
        self.stack = Stack(transformer, setup.ops, setup.n_positions, heads)
        self.scratch = setup.ops.scratch(slots, setup.gemm_rows, *heads, setup.n_positions, self.stack.norm.weight)
        captured = setup.captured
        self.prefix_pass = Pass(self.stack, self.kv, 1, config.prefix_len, captured=captured)
        self.chunk_pass = Pass(self.stack, self.kv, ROWS, config.max_delay, captured=captured)
        self.seats: dict[int, Seat] = {}
        self.free = list(range(slots))
        self.n_frames = 0  # made so far, over all songs
        self.graph = Graph(self._tick, device, captured=captured)

    def _tick(self) -> None:
        raise NotImplementedError

    def _attend(self, layer: int, qkv: Tensor) -> Tensor:
        return self.setup.ops.attend(qkv, self.kv, layer, self.slots, self.stack.rope, self.scratch)

    @property
    def live(self) -> list[int]:
        """Keys of the songs in the slots."""
        return [seat.request.key for seat in self.seats.values()]

    def need(self, n_ticks: int) -> Need:
        """What the next n ticks take from the pools."""
        ends = {slot: self.slots.base + min(seat.count + n_ticks, seat.cap) for slot, seat in self.seats.items()}
        return self._need(ends)

    def _need(self, ends: dict[int, int]) -> Need:
        """What it takes to hold so many positions in these slots."""
        rows = [(row, pages_for(end)) for slot, end in ends.items() for row in rows_of(slot)]
        units, hidden = (
            sum(max(0, pages - table.n_pages(row)) for row, pages in rows) for table in (self.kv, self.hidden)
        )
        return Need(units * self.kv.parts, hidden)

    def need_to_enter(self, text: TextIds) -> Need:
        """What a song takes at its entry, the first one with its unconditional text the shared prefix too."""
        P = self.config.prefix_len
        n_pages = ROWS * pages_for(self.slots.base) - P // PAGE + (0 if text in self.shared else pages_for(P))
        return Need(n_pages * self.kv.parts, n_pages)

    def run(self, n_ticks: int) -> None:
        """n ticks without the host, then look at the slots. Pages are assigned before."""
        for slot, seat in self.seats.items():
            end = self.slots.base + min(seat.count + n_ticks, seat.cap)
            for row in rows_of(slot):
                self._grow(row, end)
        self.kv.upload()
        self.hidden.upload()
        for _ in range(n_ticks):
            self.graph.run()

    def _grow(self, row: int, n_positions: int) -> None:
        self.kv.grow(row, n_positions)

    def ended(self) -> tuple[list[int], list[int]]:
        """Slots whose song ended in the last ticks, and slots whose logits were not finite. Waits for the device."""
        live, count, _, failed = self.slots.state.tolist()
        for slot, seat in self.seats.items():
            self.n_frames += count[slot] - seat.count
            seat.count = count[slot]
        over = [slot for slot in self.seats if not live[slot]]
        return [slot for slot in over if not failed[slot]], [slot for slot in over if failed[slot]]

    def start(self, slot: int, cap: int) -> None:
        slots = self.slots
        slots.forget(slot, self.config.special)
        slots.count[slot] = 0
        slots.cap[slot] = cap
        slots.failed[slot] = 0
        slots.live[slot] = 1

    @property
    def n_shared_units(self) -> int:
        """Units of the pool that hold unconditional prefixes."""
        return len(self.shared) * pages_for(self.config.prefix_len) * self.kv.parts

    def empty(self, slot: int) -> None:
        """End whatever runs in the slot; its pages go back."""
        self.slots.live[slot] = 0
        for row in rows_of(slot):
            self.kv.drop(row)
            self.hidden.drop(row)

    def leave(self, slot: int) -> Seat:
        """Give the slot and its pages back."""
        self.empty(slot)
        self.free.append(slot)
        self.free.sort()
        return self.seats.pop(slot)


def padded_head(head: nn.Module) -> Tensor:
    """The head's weight with zero rows up to a multiple of 64: 16385 rows would take a slow GEMM kernel."""
    weight = head.get_parameter("weight")
    return torch.cat((weight, weight.new_zeros(-len(weight) % 64, weight.shape[1])))


def rows_of(slot: int) -> tuple[int, int]:
    """The conditional and the unconditional row of a slot."""
    return ROWS * slot, ROWS * slot + 1


def begin_with(table: Table, row: int, pages: Pages, n_positions: int) -> None:
    """Begin a row with somebody's n positions: full pages are shared, the last part of one is copied."""
    n_full = n_positions // PAGE
    table.share(row, pages[:n_full])
    if n_positions % PAGE:
        table.grow(row, n_positions)
        device = table.pool.data.device
        source = torch.tensor(pages[n_full], device=device)
        table.pool.data[torch.tensor(table.owned[row][0], device=device)] = table.pool.data[source]
