"""The sub phase: codebooks 1 and 2, from the main hidden states. Letters as in phases.py."""

import numpy as np
import torch
from torch.nn.functional import linear

from levo.engine.pages import Table, get_hidden, pages_for
from levo.engine.phases import Draft, Pages, Phase, Seat, Setup, begin_with, padded_head, rows_of
from levo.songs.text import TextIds


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
        z = self.stack.run(y, self._attend, self.n_rows)
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
