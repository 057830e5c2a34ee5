"""A decoder in the middle of a long run: every slot taken, at a drawn place of its song, pages filled.

Starting from an empty machine would time the ramp: songs that start together end together (design: slots, pages).
"""

import random
from dataclasses import dataclass

import torch

from levo.engine.decoder import Decoder
from levo.engine.phases import Draft, Held, Phase, Seat, begin_with, rows_of
from levo.engine.request import Request
from levo.songs.text import Conditioning, TextIds

TEXT = TextIds(lyric_ids=tuple(range(100, 343)), structure_ids=(1,) * 243, style_ids=tuple(range(20)))
UNCOND = TextIds(lyric_ids=(151644,), structure_ids=(0,), style_ids=(151644,))


@dataclass
class Songs:
    """An endless supply of songs of forced lengths, uniform between two numbers of frames."""

    shortest: int
    longest: int
    seed: int = 0
    made: int = 0

    def next(self) -> Request:
        """The next song; its cap is its length, since a bench model never ends by itself."""
        frames = random.Random(f"{self.seed}.{self.made}").randint(self.shortest, self.longest)
        self.made += 1
        return Request(self.made, Conditioning(TEXT, UNCOND), self.made, frames, frames)


def fill(decoder: Decoder, songs: Songs) -> None:
    """Seat a song in every slot that memory allows, each somewhere in the middle of its phase."""
    draw = random.Random(songs.seed)
    shared = decoder.main.unconditional(UNCOND)
    for _ in range(len(decoder.main.free)):
        for phase in (decoder.main, decoder.sub):
            request = songs.next()
            if not decoder.fits(request):
                return
            seat(phase, request, draw.randrange(request.max_frames), shared)


def seat(phase: Phase, request: Request, count: int, shared) -> None:  # noqa: ANN001
    """One song at `count` frames, its pages holding whatever the pool holds."""
    slot, base = phase.free.pop(0), phase.slots.base
    cond, uncond = rows_of(slot)
    is_main = phase.slots.codes.shape[1] == 1
    phase.kv.grow(cond, base + count)
    begin_with(phase.hidden, uncond, shared.hidden, phase.config.prefix_len)
    end = base + (count if is_main else request.max_frames)
    for row in rows_of(slot):
        phase.hidden.grow(row, end)
    begin_with(phase.kv, uncond, shared.kv, phase.config.prefix_len) if is_main else None
    phase.kv.grow(uncond, base + count)
    phase.start(slot, request.max_frames)
    phase.slots.count[slot] = count
    held = Held([], [])
    draft = Draft(request, [0] * request.max_frames, True, (held, held), torch.empty(0), slot)
    prefix_sub = torch.stack((shared.sub, shared.sub))
    phase.seats[slot] = Seat(request, request.max_frames, 0, count, prefix_sub, None if is_main else draft)
