"""Rolling admission over main and sub slots: requests in, tokens out.

When a song ends, the next one is prefilled into its slot while the others go on. The sub phase goes first, so that
songs leave as early as they can; at most WAITING_LIMIT songs wait between the phases (design: The engine, 2). A song
enters when the forecast of everybody's pages fits; if the forecast was wrong, the newest song in the main phase goes
back to the queue and starts again from its prefix, which gives the same bits.
"""

from collections import deque

from levo.engine.forecast import Ahead, Costs, fits
from levo.engine.main_phase import MainPhase
from levo.engine.pages import PAGE
from levo.engine.phases import Draft, Need, Phase, Setup
from levo.engine.request import Book, Finished, Request
from levo.engine.sub_phase import SubPhase

WAITING_LIMIT = 8
EMPTY = "the model ended the song before its first frame"
BROKEN = "logits are not finite"

Done = tuple[Request, Finished]


class Decoder:
    """The language model's side of the engine. sync_ticks: ticks of a phase between two looks at the device."""

    def __init__(self, setup: Setup, slots: int, sync_ticks: int, book: Book) -> None:
        self.book, self.setup, self.sync_ticks = book, setup, sync_ticks
        self.queue: deque[Request] = deque()
        self.drafts: deque[Draft] = deque()
        self.main, self.sub = MainPhase(setup, slots), SubPhase(setup, slots)
        config = setup.config
        n_shared = config.prefix_len // PAGE
        self.costs = Costs(config.prefix_len, config.max_delay, self.main.kv.parts, self.sub.kv.parts, n_shared)
        self.n_admitted = 0
        self.n_preempted = 0

    @property
    def live(self) -> int:
        """Songs inside, queued ones included."""
        return len(self.queue) + len(self.main.seats) + len(self.drafts) + len(self.sub.seats)

    @property
    def room(self) -> int:
        """Songs that it would like to be given now."""
        if len(self.drafts) >= WAITING_LIMIT:
            return 0
        return max(0, len(self.main.free) - len(self.queue))

    def step(self) -> list[Done]:
        """sync_ticks ticks of each phase at most. Returns the songs that have their tokens, or have failed."""
        return self._sub_step() + self._main_step()

    def _sub_step(self) -> list[Done]:
        while self.drafts and self.sub.free and self._sub_fits(self.drafts[0]):
            draft = self.drafts[0]
            if not self._secure(Need(self.sub.need_to_enter(draft.request.conditioning.uncond).units, 0)):
                break
            self.sub.enter(self.drafts.popleft(), self._order())
            self.book("prefill", [draft.request.key])
        ended, broken = self._run(self.sub, "sub")
        done = [_failed(self.sub.leave(slot).request, BROKEN) for slot in broken]
        for slot in ended:
            draft, tokens, _ = self.sub.finish(slot)
            if tokens.shape[1] == 0:
                done.append(_failed(draft.request, EMPTY))
                continue
            stop_reason = "cap" if draft.at_cap and tokens.shape[1] == len(draft.codes0) else "eos"
            key = draft.request.key
            done.append((draft.request, Finished(key, None, tokens, stop_reason, draft.main_slot, slot)))
        return done

    def _main_step(self) -> list[Done]:
        done = self._admit()
        ended, broken = self._run(self.main, "main")
        done += [_failed(self.main.leave(slot).request, BROKEN) for slot in broken]
        for slot in ended:
            seat = self.main.seats.get(slot)
            if seat is None:
                continue  # it gave way to another song that ended with it
            if seat.count == 0:
                done.append(_failed(self.main.leave(slot).request, EMPTY))
                continue
            if not self._secure(self.main.need_to_finish(slot), keep=slot):
                continue  # it stays in its slot, frozen, and is looked at again when a sub song has given pages back
            self.drafts.append(self.main.finish(slot))
            self.book("main", [seat.request.key])
        return done

    def _run(self, phase: Phase, stage: str) -> tuple[list[int], list[int]]:
        self._secure(phase.need(self.sync_ticks))
        if not phase.seats:
            return [], []
        live = phase.live
        phase.run(self.sync_ticks)
        ended = phase.ended()
        self.book(stage, live)
        return ended

    def _admit(self) -> list[Done]:
        refused = []
        longest = self.setup.config.max_frames
        while self.queue and self.main.free and len(self.drafts) < WAITING_LIMIT:
            request = self.queue[0]
            if request.max_frames > longest:
                sentence = f"asks for up to {request.max_frames} frames; the model makes at most {longest}"
                refused.append(_failed(self.queue.popleft(), sentence))
                continue
            if not (self.fits(request) and self._has(self.main.need_to_enter(request.conditioning.uncond))):
                break
            self.main.enter(self.queue.popleft(), self._order())
            self.book("prefill", [request.key])
        return refused

    def fits(self, request: Request) -> bool:
        """Whether the pools will hold everybody's pages when this song is in too. A song alone always enters."""
        songs = [Ahead(False, 0, request.predicted_frames), *self._in_sub()]
        songs += [Ahead(False, seat.count, seat.request.predicted_frames) for seat in self.main.seats.values()]
        songs += [Ahead(True, 0, len(draft.codes0)) for draft in self.drafts]
        return len(songs) == 1 or self._peak_fits(songs)

    def _sub_fits(self, draft: Draft) -> bool:
        """Whether the sub songs' own growth fits: their lengths are known, so they never run out of pages."""
        songs = [Ahead(True, 0, len(draft.codes0)), *self._in_sub()]
        return len(songs) == 1 or self._peak_fits(songs)

    def _in_sub(self) -> list[Ahead]:
        return [Ahead(True, seat.count, seat.cap) for seat in self.sub.seats.values()]

    def _peak_fits(self, songs: list[Ahead]) -> bool:
        n_units = self.setup.kv.n_parts - self.main.n_shared_units - self.sub.n_shared_units
        return fits(songs, self.costs, n_units, self.setup.hidden.n_parts)

    def _has(self, need: Need) -> bool:
        return len(self.setup.kv.free) >= need.units and len(self.setup.hidden.free) >= need.hidden

    def _secure(self, need: Need, keep: int | None = None) -> bool:
        """Make room by sending the newest main songs back to the queue. False when that is not enough."""
        while not self._has(need):
            others = [slot for slot in self.main.seats if slot != keep]
            if not others:
                return False
            newest = max(others, key=lambda slot: self.main.seats[slot].order)
            self.queue.appendleft(self.main.leave(newest).request)
            self.n_preempted += 1
        return True

    def _order(self) -> int:
        self.n_admitted += 1
        return self.n_admitted


def _failed(request: Request, error: str) -> Done:
    return request, Finished(request.key, error)
