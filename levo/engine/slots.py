"""What a tick reads and writes of its slots, on the device: G slots, two rows each (2s conditional, 2s + 1 not)."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Slots:
    """One phase's slots. A tick changes live ones only; a dead slot is inert and its rows are zeros.

    base: position of the first tick (P in the main phase, P + D in the sub phase); a tick fills base + count.
    live, count (frames so far), cap (frames at most), failed: int32 [G], the rows of `state` [4, G], so that the
    host reads them at once.  K codebooks: 1 or 2.
    inputs: int64 [G, K], ids of the step that the next tick reads.  history: int32 [G, K, window], a ring.
    codes: int32 [G, K, longest].  keys: int64 [G, 2] (split_seed).  banned: uint8 [G, C + 1], codebook 0 only.
    """

    base: int
    state: Tensor
    live: Tensor
    count: Tensor
    cap: Tensor
    failed: Tensor
    inputs: Tensor
    history: Tensor
    codes: Tensor
    keys: Tensor
    banned: Tensor

    @classmethod
    def empty(cls, groups: int, books: int, base: int, longest: int, window: int, n_codes: int, device: torch.device) -> "Slots":
        """All dead. n_codes is C; ids are SPECIAL where nothing is written."""
        long, int32 = torch.int64, torch.int32
        state = torch.zeros(4, groups, dtype=int32, device=device)
        return cls(
            base,
            state,
            *state.unbind(0),
            inputs=torch.full((groups, books), n_codes + 1, dtype=long, device=device),
            history=torch.full((groups, books, window), n_codes + 1, dtype=int32, device=device),
            codes=torch.zeros(groups, books, longest, dtype=int32, device=device),
            keys=torch.zeros(groups, 2, dtype=long, device=device),
            banned=torch.zeros(groups, n_codes + 1, dtype=torch.uint8, device=device),
        )
