"""What a tick reads and writes of its slots, on the device: G slots, two rows each (2s conditional, 2s + 1 not)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from levo.model.config import LMConfig


@dataclass
class Slots:
    """One phase's slots. A tick changes live ones only; a dead slot is inert and its rows are zeros.

    base: position of the first tick (P in the main phase, P + D in the sub phase); a tick fills base + count.
    state: int32 [4, G]; its rows are live, count, cap and failed, so that the host reads them at once.
    K codebooks: 1 or 2.
    inputs: int64 [G, K], ids of the step that the next tick reads.  history: int32 [G, K, window], a ring.
    seen: uint8 [G, K, C + 2], how often each id stands in the ring, so that a tick need not search it.
    codes: int32 [G, K, longest].  keys: int64 [G, 2] (split_seed).  banned: uint8 [G, C + 1], codebook 0 only.
    n_used: slots that songs may sit in; the rows of the others are computed by the GEMMs alone.
    """

    base: int
    n_used: int
    state: Tensor
    inputs: Tensor
    history: Tensor
    seen: Tensor
    codes: Tensor
    keys: Tensor
    banned: Tensor

    @property
    def live(self) -> Tensor:
        """1 while its song goes on."""
        return self.state[0]

    @property
    def count(self) -> Tensor:
        """Frames so far."""
        return self.state[1]

    @property
    def cap(self) -> Tensor:
        """Frames at most."""
        return self.state[2]

    @property
    def failed(self) -> Tensor:
        """1 when its logits were not finite."""
        return self.state[3]

    @classmethod
    def empty(
        cls, config: LMConfig, groups: int, n_used: int, books: int, base: int, window: int, device: torch.device
    ) -> "Slots":
        """All dead; ids are SPECIAL where nothing is written."""
        long, int32, uint8 = torch.int64, torch.int32, torch.uint8
        slots = cls(
            base,
            n_used,
            state=torch.zeros(4, groups, dtype=int32, device=device),
            inputs=torch.zeros(groups, books, dtype=long, device=device),
            history=torch.zeros(groups, books, window, dtype=int32, device=device),
            seen=torch.zeros(groups, books, config.code_size + 2, dtype=uint8, device=device),
            codes=torch.zeros(groups, books, config.max_frames, dtype=int32, device=device),
            keys=torch.zeros(groups, 2, dtype=long, device=device),
            banned=torch.zeros(groups, config.code_size + 1, dtype=uint8, device=device),
        )
        for slot in range(groups):
            slots.forget(slot, config.special)
        return slots

    def forget(self, slot: int, special: int) -> None:
        """Nothing written yet: the next input and the whole ring are SPECIAL."""
        self.inputs[slot] = special
        self.history[slot] = special
        self.seen[slot] = 0
        self.seen[slot, :, special] = self.history.shape[-1]
