"""The main phase: codebook 0, from the prefix to EOS or the cap. Letters as in phases.py."""

import numpy as np
import torch
from torch.nn.functional import linear

from levo.engine.pages import Table, pages_for, put_hidden
from levo.engine.phases import (
    Draft,
    Held,
    Need,
    Phase,
    Seat,
    Setup,
    Shared,
    begin_with,
    padded_head,
    rows_of,
)
from levo.engine.philox import split_seed
from levo.engine.request import Request
from levo.engine.twins import ROWS
from levo.model.prefix import prefix
from levo.songs.text import TextIds


class MainPhase(Phase):
    """Codebook 0, one tick a frame until EOS or the cap; then the known rest as one parallel chunk."""

    def __init__(self, setup: Setup, slots: int) -> None:
        self.head = padded_head(setup.lm.transformer.lm_head)
        super().__init__(setup, setup.lm.main, 1, setup.config.prefix_len, slots)
        self.shared: dict[TextIds, Shared] = {}

    def _tick(self) -> None:
        ids = self.slots.inputs[:, 0].repeat_interleave(ROWS)
        hidden = self.stack.run(self.setup.lm.main_input(ids), self._attend, self.n_rows)
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
