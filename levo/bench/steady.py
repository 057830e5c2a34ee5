"""A decoder in the middle of a long run: every slot taken, at a drawn place of its song, pages filled.

Starting from an empty machine would time the ramp: songs that start together end together (design: slots, pages).
"""

import random
from dataclasses import dataclass
from typing import Protocol

from levo.engine.decoder import Decoder
from levo.engine.main_phase import MainPhase
from levo.engine.phases import Draft, Held, Seat, Shared, begin_with, rows_of
from levo.engine.request import Request
from levo.engine.sub_phase import SubPhase
from levo.songs.text import Conditioning, TextIds

UNCOND = TextIds(lyric_ids=(1,), structure_ids=(0,), style_ids=(1,))


class Supply(Protocol):
    """Songs without end, which share one unconditional text."""

    seed: int
    uncond: TextIds

    def next(self) -> Request: ...


@dataclass
class Songs:
    """An endless supply of songs of forced lengths, uniform between two numbers of frames."""

    shortest: int
    longest: int
    seed: int = 0
    lyrics: int = 243  # tokens; the mean of upstream's published requests
    made: int = 0
    uncond: TextIds = UNCOND

    def next(self) -> Request:
        """The next song; its cap is its length, since a bench model never ends by itself."""
        frames = random.Random(f"{self.seed}.{self.made}").randint(self.shortest, self.longest)
        self.made += 1
        text = TextIds(tuple(range(100, 100 + self.lyrics)), (1,) * self.lyrics, tuple(range(20)))
        return Request(self.made, Conditioning(text, self.uncond), self.made, frames, frames)


def fill(decoder: Decoder, songs: Supply) -> None:
    """Seat a song in every slot that memory allows, each somewhere in the middle of its phase."""
    draw = random.Random(songs.seed)
    shared = decoder.main.unconditional(songs.uncond)
    parts = decoder.sub.kv.parts
    taken = decoder.setup.kv.take(parts * len(shared.kv))
    decoder.sub.shared[songs.uncond] = [taken[i : i + parts] for i in range(0, len(taken), parts)]
    for _ in range(len(decoder.main.free)):
        for phase in (decoder.main, decoder.sub):
            request = songs.next()
            if not decoder.fits(request):
                return
            seat(phase, request, draw.randrange(request.max_frames), shared)


def seat(phase: MainPhase | SubPhase, request: Request, count: int, shared: Shared) -> None:
    """One song at `count` frames, its pages holding whatever the pool holds."""
    slot, base, P = phase.free.pop(0), phase.slots.base, phase.config.prefix_len
    cond, uncond = rows_of(slot)
    is_main = isinstance(phase, MainPhase)
    begin_with(
        phase.kv, uncond, phase.shared[request.conditioning.uncond] if isinstance(phase, SubPhase) else shared.kv, P
    )
    begin_with(phase.hidden, uncond, shared.hidden, P)
    for row in (cond, uncond):
        phase.kv.grow(row, base + count)
        phase.hidden.grow(row, base + (count if is_main else request.max_frames))
    phase.start(slot, request.max_frames)
    phase.slots.count[slot] = count
    held = Held([], [])
    draft = Draft(request, [0] * request.max_frames, True, (held, held), shared.sub, shared, slot)
    phase.seats[slot] = Seat(
        request, request.max_frames, 0, count, shared.sub, shared, draft=None if is_main else draft
    )
