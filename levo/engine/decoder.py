"""Rolling admission over main and sub slots: requests in, tokens out.

When a song ends, the next one is prefilled into its slot while the others go on. The sub phase goes first, so that
songs leave as early as they can; at most WAITING_LIMIT songs wait between the phases (design: The engine, 2).
"""

from collections import deque

from levo.engine.phases import Draft, MainPhase, SubPhase
from levo.engine.request import Book, Finished, Request, Sampling
from levo.model.lm import LM

WAITING_LIMIT = 8
EMPTY = "the model ended the song before its first frame"


class Decoder:
    """The language model's side of the engine."""

    def __init__(self, lm: LM, pad_id: int, slots: int, gemm_rows: int, sampling: Sampling, book: Book) -> None:
        self.book = book
        self.queue: deque[Request] = deque()
        self.drafts: deque[Draft] = deque()
        self.main = MainPhase(lm, pad_id, slots, gemm_rows, sampling)
        self.sub = SubPhase(lm, slots, gemm_rows, sampling)

    @property
    def live(self) -> int:
        """Songs inside, queued ones included."""
        return len(self.queue) + len(self.main.seats) + len(self.drafts) + len(self.sub.seats)

    @property
    def room(self) -> int:
        """Songs that could enter a main slot at the next step."""
        if len(self.drafts) >= WAITING_LIMIT:
            return 0
        return max(0, len(self.main.free) - len(self.queue))

    def step(self) -> list[tuple[Request, Finished]]:
        """At most one sub tick and one main tick. Returns the songs that have their tokens, or have failed."""
        return self._sub_step() + self._main_step()

    def _sub_step(self) -> list[tuple[Request, Finished]]:
        while self.drafts and self.sub.free:
            draft = self.drafts.popleft()
            self.sub.enter(draft)
            self.book("prefill", [draft.request.key])
        if not self.sub.seats:
            return []
        live = self.sub.live
        ended, broken = self.sub.tick()
        self.book("sub", live)
        done = [_failed(request, "logits of codebooks 1 and 2 are not finite") for request in broken]
        for draft, tokens, slot in ended:
            request = draft.request
            if tokens.shape[1]:
                stop_reason = "cap" if draft.at_cap and tokens.shape[1] == len(draft.codes0) else "eos"
                finished = Finished(request.key, None, tokens, stop_reason, draft.main_slot, slot)
                done.append((request, finished))
            else:
                done.append(_failed(request, EMPTY))
        return done

    def _main_step(self) -> list[tuple[Request, Finished]]:
        done = self._admit()
        if not self.main.seats:
            return done
        live = self.main.live
        drafts, broken = self.main.tick()
        self.book("main", live)
        self.drafts += [draft for draft in drafts if draft.codes0]
        done += [_failed(draft.request, EMPTY) for draft in drafts if not draft.codes0]
        return done + [_failed(request, "logits of codebook 0 are not finite") for request in broken]

    def _admit(self) -> list[tuple[Request, Finished]]:
        refused = []
        longest = self.main.config.max_frames
        while self.queue and self.main.free and len(self.drafts) < WAITING_LIMIT:
            request = self.queue.popleft()
            if request.max_frames > longest:
                sentence = f"asks for up to {request.max_frames} frames; the model makes at most {longest}"
                refused.append(_failed(request, sentence))
                continue
            self.main.enter(request)
            self.book("prefill", [request.key])
        return refused


def _failed(request: Request, error: str) -> tuple[Request, Finished]:
    return request, Finished(request.key, error)
