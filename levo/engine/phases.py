"""The two phases of a song (design: The engine, 1): main makes codebook 0, sub makes codebooks 1 and 2.

Tensors and pages only: which song may enter, and when, is the decoder's business.
Letters: P prefix positions, D = max delay, e frames of the song, R = gemm_rows, d width, C code size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from levo.engine.graph import Graph
from levo.engine.pages import PAGE, Pool, Table, get_hidden, layers_per_unit, pages_for, put_hidden
from levo.engine.passes import Pass
from levo.engine.philox import split_seed
from levo.engine.request import Request, Sampling
from levo.engine.slots import Slots
from levo.engine.stack import Stack
from levo.engine.twins import ROWS
from levo.model.config import LMConfig
from levo.model.lm import LM, Transformer
from levo.model.prefix import prefix
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


class MainPhase(Phase):
    """Codebook 0, one tick a frame until EOS or the cap; then the known rest as one parallel chunk."""

    def __init__(self, setup: Setup, slots: int) -> None:
        self.head = padded_head(setup.lm.transformer.lm_head)
        super().__init__(setup, setup.lm.main, 1, setup.config.prefix_len, slots)
        self.shared: dict[TextIds, Shared] = {}

    def _tick(self) -> None:
        ids = self.slots.inputs[:, 0].repeat_interleave(ROWS)
        hidden = self.stack.run(self.setup.lm.main_input(ids), self._attend)
        self.setup.ops.store_hidden(hidden, self.hidden, self.slots)
        self.setup.ops.sample_main(linear(hidden, self.head), self.slots, self.setup.sampling)

    def _grow(self, row: int, n_positions: int) -> None:
        self.kv.grow(row, n_positions)
        self.hidden.grow(row, n_positions)

    def enter(self, request: Request, order: int) -> None:
        """Prefill the song's P prefix positions into a free slot."""
        slot, P = self.free.pop(0), self.config.prefix_len
        cond, uncond = rows_of(slot)
        text = request.conditioning
        main, sub = prefix(self.setup.lm, text.cond, request.prompt, self.setup.pad_id)
        self._grow(cond, P)
        put_hidden(self.hidden, cond, 0, self.prefix_pass(main[None], self.kv, (cond,), 0)[0])
        shared = self.unconditional(text.uncond)
        begin_with(self.kv, uncond, shared.kv, P)
        begin_with(self.hidden, uncond, shared.hidden, P)
        self.slots.banned[slot] = 0
        if request.prompt is not None:
            ids = torch.from_numpy(np.unique(request.prompt[0])).long().to(self.slots.banned.device)
            self.slots.banned[slot, ids[ids < self.config.code_size]] = 1
        self.slots.keys[slot] = torch.tensor(split_seed(request.seed)).to(self.slots.keys.device)
        self.start(slot, request.max_frames)
        self.seats[slot] = Seat(request, request.max_frames, order, prefix_sub=sub, shared=shared)

    def unconditional(self, text: TextIds) -> Shared:
        """Prefix of the unconditional row: it depends on no song, so it is computed once and its pages are shared."""
        if text not in self.shared:
            P, lm = self.config.prefix_len, self.setup.lm
            n_pages = pages_for(self.setup.n_positions)
            kv, hidden = Table(self.setup.kv, 1, n_pages, self.kv.parts), Table(self.setup.hidden, 1, n_pages, 1)
            kv.grow(0, P)
            hidden.grow(0, P)
            main, sub = prefix(lm, text, None, self.setup.pad_id)
            put_hidden(hidden, 0, 0, self.prefix_pass(main[None], kv, (0,), 0)[0])
            self.shared[text] = Shared(kv.owned[0], hidden.owned[0], sub)
        return self.shared[text]

    def need_to_finish(self, slot: int) -> Need:
        """What the chunk behind the song's end takes."""
        return self._need({slot: self.slots.base + self.seats[slot].count + 1 + self.config.max_delay})

    def finish(self, slot: int) -> Draft:
        """The D positions behind the last tick hold known ids (EOS or the last frame, then SPECIAL): one chunk."""
        config, seat, lm = self.config, self.seats[slot], self.setup.lm
        codes = self.slots.codes[slot, 0, : seat.count].tolist()
        at_cap = seat.count == seat.cap
        start = config.prefix_len + seat.count + (0 if at_cap else 1)
        device = self.slots.live.device
        ids = torch.full((config.max_delay,), config.special, dtype=torch.int64, device=device)
        ids[0] = codes[-1] if at_cap else config.eos
        rows = rows_of(slot)
        for row in rows:
            self._grow(row, start + config.max_delay)
        chunk = self.chunk_pass(lm.main_input(ids).expand(ROWS, -1, -1), self.kv, rows, start)
        held = []
        for row, hidden in zip(rows, chunk, strict=True):
            put_hidden(self.hidden, row, start, hidden)
            n_shared = self.hidden.n_shared[row]
            held.append(Held(self.hidden.host[row, :n_shared].tolist(), self.hidden.release(row)))
        self.leave(slot)
        assert seat.prefix_sub is not None and seat.shared is not None
        return Draft(seat.request, codes, at_cap, (held[0], held[1]), seat.prefix_sub, seat.shared, slot)


def begin_with(table: Table, row: int, pages: Pages, n_positions: int) -> None:
    """Begin a row with somebody's n positions: full pages are shared, the last part of one is copied."""
    n_full = n_positions // PAGE
    table.share(row, pages[:n_full])
    if n_positions % PAGE:
        table.grow(row, n_positions)
        device = table.pool.data.device
        source = torch.tensor(pages[n_full], device=device)
        table.pool.data[torch.tensor(table.owned[row][0], device=device)] = table.pool.data[source]


class SubPhase(Phase):
    """Codebooks 1 and 2, one tick a frame, from the main hidden states; stops at the earliest EOS of all codebooks."""

    def __init__(self, setup: Setup, slots: int) -> None:
        self.heads = torch.cat([padded_head(head) for head in setup.lm.linears])
        super().__init__(setup, setup.lm.sub, 2, setup.config.prefix_len + setup.config.max_delay, slots)
        self.shared: dict[TextIds, Pages] = {}

    def _tick(self) -> None:
        lm, ops = self.setup.lm, self.setup.ops
        table1, table2 = lm.layer2_emb["1"].weight, lm.layer2_emb["2"].weight
        y = lm.mlp(ops.gather_sub_input(self.slots, table1, table2, self.hidden))
        z = self.stack.run(y, self._attend)
        ops.sample_sub(linear(z, self.heads).unflatten(-1, (2, -1)), self.slots, self.setup.sampling)

    def enter(self, draft: Draft, order: int) -> None:
        """Prefix and steps 0 .. D-1 hold only SPECIAL in codebooks 1 and 2: P and then D positions in parallel."""
        slot, config, lm = self.free.pop(0), self.config, self.setup.lm
        P, D = config.prefix_len, config.max_delay
        rows = cond, uncond = rows_of(slot)
        for row, held in zip(rows, draft.hidden, strict=True):
            self.hidden.share(row, held.shared)
            self.hidden.adopt(row, held.own)
        self.kv.grow(cond, P + D)
        x = lm.fuse(draft.prefix_sub, get_hidden(self.hidden, cond, 0, P))
        self.prefix_pass(x[None], self.kv, (cond,), 0)
        begin_with(self.kv, uncond, self._unconditional(draft, uncond), P)
        self.kv.grow(uncond, P + D)
        special = torch.full((D,), config.special, dtype=torch.int64, device=self.slots.live.device)
        embedded = lm.sub_embed(special, special)
        chunk = torch.stack([lm.fuse(embedded, get_hidden(self.hidden, row, P, D)) for row in rows])
        self.chunk_pass(chunk, self.kv, rows, P)
        self.start(slot, len(draft.codes0))
        self.seats[slot] = Seat(draft.request, len(draft.codes0), order, draft=draft)

    def _unconditional(self, draft: Draft, row: int) -> Pages:
        """Pages of the unconditional prefix: its main hidden states are everybody's, so these are too."""
        text = draft.request.conditioning.uncond
        if text not in self.shared:
            P = self.config.prefix_len
            kv = Table(self.setup.kv, 1, pages_for(self.setup.n_positions), self.kv.parts)
            kv.grow(0, P)
            x = self.setup.lm.fuse(draft.shared.sub, get_hidden(self.hidden, row, 0, P))
            self.prefix_pass(x[None], kv, (0,), 0)
            self.shared[text] = kv.owned[0]
        return self.shared[text]

    def finish(self, slot: int) -> tuple[Draft, np.ndarray, int]:
        """The song's draft, its tokens int32 [3, e], and the slot."""
        seat = self.seats[slot]
        assert seat.draft is not None
        codes = self.slots.codes[slot, :, : seat.count].cpu().numpy()
        tokens = np.concatenate((np.array([seat.draft.codes0[: seat.count]], dtype=np.int32), codes))
        self.leave(slot)
        return seat.draft, tokens, slot
