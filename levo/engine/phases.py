"""The two phases of a song (design: The engine, 1): main makes codebook 0, sub makes codebooks 1 and 2.

Tensors only: which song sits in which slot, and when it may enter, is the scheduler's business.
Letters: P prefix positions, D = max delay, e frames of the song, G = gemm_rows, d width, C code size.
"""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from levo.engine import sampling
from levo.engine.cache import ROWS, Sequence, SlotCache, Tick
from levo.engine.philox import split_seed
from levo.engine.request import Request, Sampling
from levo.model.lm import LM
from levo.model.prefix import prefix
from levo.songs.text import TextIds


@dataclass
class Draft:
    """A song after the main phase. codes0 [e]; hidden [2, P + e + D, d]; prefix_sub [2, P, d]."""

    request: Request
    codes0: list[int]
    at_cap: bool
    hidden: Tensor
    prefix_sub: Tensor
    main_slot: int


Ended = tuple[Draft, np.ndarray, int]  # the draft, tokens int32 [3, e], the sub slot


@dataclass
class MainSeat:
    """What a main slot holds on the host. prefix_sub: [2, P, d], for the sub phase."""

    request: Request
    prefix_sub: Tensor
    codes: list[int] = field(default_factory=list)


@dataclass
class SubSeat:
    """What a sub slot holds on the host: the draft, and the codes [frames, 2] so far."""

    draft: Draft
    codes: list[list[int]] = field(default_factory=list)

    @property
    def request(self) -> Request:
        """The song."""
        return self.draft.request


SeatT = TypeVar("SeatT", MainSeat, SubSeat)


class _Phase(Generic[SeatT]):
    """Slots and their caches. One tick advances every live slot by one step."""

    def __init__(self, lm: LM, layers: int, slots: int, gemm_rows: int, sampling_: Sampling) -> None:
        config, weight = lm.config, lm.transformer.lm_head.weight
        self.lm, self.config, self.sampling, self.rows = lm, config, sampling_, gemm_rows
        self.device, self.dtype = weight.device, weight.dtype
        self.n_positions = config.prefix_len + config.max_frames + config.max_delay + 1
        self.cache = SlotCache(config, layers, slots, self.n_positions, weight)
        self.seats: dict[int, SeatT] = {}
        self.free = list(range(slots))
        self.groups = gemm_rows // ROWS  # slots that a tick computes, live or not

    @property
    def live(self) -> list[int]:
        """Keys of the songs in the slots."""
        return [seat.request.key for seat in self.seats.values()]

    def _positions(self, start: int, n: int) -> Tensor:
        return torch.arange(start, start + n, device=self.device)

    def _row_positions(self, positions: dict[int, int]) -> Tensor:
        rows = torch.zeros(self.rows, dtype=torch.int64)
        for slot, position in positions.items():
            rows[ROWS * slot : ROWS * slot + ROWS] = position
        return rows.to(self.device)

    def _leave(self, slot: int) -> SeatT:
        self.free.append(slot)
        self.free.sort()
        return self.seats.pop(slot)


class MainPhase(_Phase[MainSeat]):
    """Codebook 0, one tick a frame until EOS or the cap; then the known rest as one parallel chunk."""

    def __init__(self, lm: LM, pad_id: int, slots: int, gemm_rows: int, sampling_: Sampling) -> None:
        config = lm.config
        super().__init__(lm, config.num_layers, slots, gemm_rows, sampling_)
        self.pad_id, groups = pad_id, self.groups
        self.hidden = torch.zeros(slots, ROWS, self.n_positions, config.dim, dtype=self.dtype, device=self.device)
        self.inputs = torch.full((groups,), config.special, dtype=torch.int64, device=self.device)
        self.history = torch.full((groups, sampling_.window), config.special, dtype=torch.int64, device=self.device)
        self.banned = torch.zeros(groups, config.code_size + 1, dtype=torch.bool, device=self.device)
        self.keys = torch.zeros(groups, 2, dtype=torch.int64, device=self.device)
        self.steps = torch.zeros(groups, dtype=torch.int64, device=self.device)
        self.shared: dict[TextIds, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def enter(self, request: Request) -> None:
        """Prefill the song's P prefix positions into a free slot."""
        slot, P = self.free.pop(0), self.config.prefix_len
        conditioning = request.conditioning
        main, sub = prefix(self.lm, conditioning.cond, request.prompt, self.pad_id)
        positions = self._positions(0, P)
        self.hidden[slot, 0, :P] = self.lm.main(main, positions, Sequence(self.cache, slot, 0, 0))
        k, v, hidden, uncond_sub = self._unconditional(conditioning.uncond)
        self.cache.k[:, slot, 1, :, :P], self.cache.v[:, slot, 1, :, :P] = k, v
        self.hidden[slot, 1, :P] = hidden
        self.inputs[slot] = self.config.special
        self.history[slot] = self.config.special
        self.banned[slot] = False
        if request.prompt is not None:
            ids = torch.from_numpy(np.unique(request.prompt[0])).to(self.device, torch.int64)
            self.banned[slot, ids[ids < self.config.code_size]] = True
        self.keys[slot] = torch.tensor(split_seed(request.seed), device=self.device)
        self.steps[slot] = 0
        self.seats[slot] = MainSeat(request, torch.stack((sub, uncond_sub)))

    def _unconditional(self, text: TextIds) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """k, v, hidden and sub prefix of the unconditional row: equal for all songs with the same style rule."""
        if text not in self.shared:
            P, config = self.config.prefix_len, self.config
            cache = SlotCache(config, config.num_layers, 1, P, self.hidden)
            main, sub = prefix(self.lm, text, None, self.pad_id)
            hidden = self.lm.main(main, self._positions(0, P), Sequence(cache, 0, 1, 0))
            self.shared[text] = (cache.k[:, 0, 1], cache.v[:, 0, 1], hidden, sub)
        return self.shared[text]

    def tick(self) -> tuple[list[Draft], list[Request]]:
        """One frame for every live slot. Returns the songs that ended here, and those whose logits were not finite."""
        P, C = self.config.prefix_len, self.config.code_size
        positions = {slot: P + len(seat.codes) for slot, seat in self.seats.items()}
        x = self.lm.main_input(self.inputs.repeat_interleave(ROWS))
        hidden = self.lm.main(x, self._row_positions(positions), Tick(self.cache, positions))
        logits = sampling.guide(self.lm.head0(hidden), self.sampling.cfg)
        finite = torch.isfinite(logits).all(dim=1).tolist()
        logits = sampling.penalise(logits, self.history, self.sampling.penalty, C).masked_fill(self.banned, -torch.inf)
        ids = sampling.draw(logits, self.sampling.temperature, self.sampling.top_k, self.keys, self.steps)
        chosen = ids.clamp(max=C).tolist()
        ended: list[int] = []
        broken: list[int] = []
        for slot, position in positions.items():
            self.hidden[slot, :, position] = hidden[ROWS * slot : ROWS * slot + ROWS]
            codes, request = self.seats[slot].codes, self.seats[slot].request
            if not finite[slot]:
                broken.append(slot)
                continue
            self.inputs[slot] = chosen[slot]
            self.history[slot, len(codes) % self.sampling.window] = chosen[slot]
            self.steps[slot] += 1
            if chosen[slot] < C:
                codes.append(chosen[slot])
            if chosen[slot] == C or len(codes) == request.max_frames:
                ended.append(slot)
        drafts = [self._finish(slot, eos=chosen[slot] == C) for slot in ended]
        return drafts, [self._leave(slot).request for slot in broken]

    def _finish(self, slot: int, *, eos: bool) -> Draft:
        """The D positions behind the last tick hold known ids (EOS or the last frame, then SPECIAL): one chunk."""
        config, codes = self.config, self.seats[slot].codes
        start = config.prefix_len + len(codes) + (1 if eos else 0)
        ids = torch.full((config.max_delay,), config.special, dtype=torch.int64, device=self.device)
        ids[0] = config.eos if eos else codes[-1]
        x, positions = self.lm.main_input(ids), self._positions(start, config.max_delay)
        for row in range(ROWS):
            out = self.lm.main(x, positions, Sequence(self.cache, slot, row, start))
            self.hidden[slot, row, start : start + config.max_delay] = out
        end = config.prefix_len + len(codes) + config.max_delay
        hidden = self.hidden[slot, :, :end].clone()
        seat = self._leave(slot)
        return Draft(seat.request, codes, not eos, hidden, seat.prefix_sub, slot)


class SubPhase(_Phase[SubSeat]):
    """Codebooks 1 and 2, one tick a frame, from the main hidden states; stops at the earliest EOS of all codebooks."""

    def __init__(self, lm: LM, slots: int, gemm_rows: int, sampling_: Sampling) -> None:
        super().__init__(lm, lm.config.num_layers_sub, slots, gemm_rows, sampling_)
        special, long = lm.config.special, torch.int64
        self.inputs = torch.full((self.groups, 2), special, dtype=long, device=self.device)
        self.history = torch.full((self.groups, 2, sampling_.window), special, dtype=long, device=self.device)

    def enter(self, draft: Draft) -> None:
        """Prefix and steps 0 .. D-1 hold only SPECIAL in codebooks 1 and 2: one parallel prefill of P + D positions."""
        slot, config = self.free.pop(0), self.config
        special = torch.full((config.max_delay,), config.special, dtype=torch.int64, device=self.device)
        n = config.prefix_len + config.max_delay
        for row in range(ROWS):
            x = torch.cat((draft.prefix_sub[row], self.lm.sub_embed(special, special)))
            y = self.lm.fuse(x, draft.hidden[row, :n])
            self.lm.sub(y, self._positions(0, n), Sequence(self.cache, slot, row, 0))
        self.inputs[slot] = config.special
        self.history[slot] = config.special
        self.seats[slot] = SubSeat(draft)

    def tick(self) -> tuple[list[Ended], list[Request]]:
        """One frame for every live slot. Returns the songs that ended here, and those whose logits were not finite."""
        config, C = self.config, self.config.code_size
        start = config.prefix_len + config.max_delay
        positions = {slot: start + len(seat.codes) for slot, seat in self.seats.items()}
        hidden = torch.zeros(self.rows, config.dim, dtype=self.dtype, device=self.device)
        for slot, position in positions.items():
            hidden[ROWS * slot : ROWS * slot + ROWS] = self.seats[slot].draft.hidden[:, position]
        ids = self.inputs.repeat_interleave(ROWS, dim=0)
        y = self.lm.sub_input(ids[:, 0], ids[:, 1], hidden)
        z = self.lm.sub(y, self._row_positions(positions), Tick(self.cache, positions))
        logits = sampling.guide(self.lm.heads12(z), self.sampling.cfg)  # [G / 2, 2, C + 1]
        finite = torch.isfinite(logits).flatten(1).all(dim=1).tolist()
        flat = sampling.penalise(logits.flatten(0, 1), self.history.flatten(0, 1), self.sampling.penalty, C)
        chosen = sampling.greedy(flat).clamp(max=C).reshape(-1, 2)
        return self._advance(chosen.tolist(), finite)

    def _advance(self, chosen: list[list[int]], finite: list[bool]) -> tuple[list[Ended], list[Request]]:
        ended: list[Ended] = []
        broken: list[Request] = []
        for slot, seat in list(self.seats.items()):
            pair = chosen[slot]
            if not finite[slot]:
                broken.append(self._leave(slot).request)
                continue
            written = torch.tensor(pair, device=self.device)
            self.inputs[slot] = written
            self.history[slot, :, len(seat.codes) % self.sampling.window] = written
            is_eos = self.config.eos in pair
            if not is_eos:
                seat.codes.append(pair)
            if is_eos or len(seat.codes) == len(seat.draft.codes0):
                rows = [seat.draft.codes0[: len(seat.codes)], *([codes[k] for codes in seat.codes] for k in (0, 1))]
                ended.append((seat.draft, np.array(rows, dtype=np.int32), slot))
                self._leave(slot)
        return ended, broken
