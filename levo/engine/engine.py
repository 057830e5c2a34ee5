"""Requests in, finished songs out: the language model and the codec, in turns on one device.

A song's tokens and PCM depend on its request, the model and gemm_rows; never on its neighbours, its slot, the
number of slots or the order of admission (design: The engine, 3).
"""

from collections import deque
from dataclasses import replace

import torch

from levo.engine.build import build_decoder
from levo.engine.codec import NotFinite, Renderer
from levo.engine.decoder import Decoder
from levo.engine.request import Book, Finished, Request, Sampling, no_book
from levo.errors import ConfigError
from levo.model.checkpoint import Model

DEFAULT_SAMPLING = Sampling()


class Engine:
    """Makes songs on one device: submit() what room allows, then step() until live is 0.

    A model loaded without its language model takes only requests that bring their tokens.
    """

    def __init__(
        self,
        model: Model,
        *,
        slots: int,
        gemm_rows: int,
        sampling: Sampling = DEFAULT_SAMPLING,
        codec_steps: int = 10,
        codec_guidance: float = 1.5,
        memory_gib: float | None = None,
        book: Book = no_book,
    ) -> None:
        if 2 * slots > gemm_rows:
            raise ConfigError(
                f"{slots} slots need {2 * slots} rows, but gemm_rows is {gemm_rows}",
                where="settings engine.slots and engine.gemm_rows",
                fix=f"set engine.gemm_rows to at least {2 * slots}, or engine.slots to at most {gemm_rows // 2}",
            )
        # The codec first: what it holds and captures is then no longer free when pages are planned from free memory.
        max_frames = model.config.lm.max_frames
        self.renderer = Renderer(model.flow, model.vae, max_frames, codec_steps, codec_guidance, book)
        self.decoder: Decoder | None = None
        if model.lm is not None:
            self.decoder = build_decoder(model.lm, model.pad_id, slots, gemm_rows, sampling, memory_gib, book)
        self.renderer.warm_up()
        self.to_render: deque[tuple[Request, Finished]] = deque()

    def submit(self, request: Request) -> None:
        """Take a song in. One that brings its tokens goes straight to the codec."""
        if request.tokens is not None:
            self.to_render.append((request, Finished(request.key, None, request.tokens, stop_reason="given")))
            return
        assert self.decoder is not None, "this model was loaded without its language model"
        self.decoder.queue.append(request)

    @property
    def live(self) -> int:
        """Songs inside, queued ones included."""
        return len(self.to_render) + (self.decoder.live if self.decoder else 0)

    @property
    def room(self) -> int:
        """Songs that it would like to be given now."""
        return self.decoder.room if self.decoder else max(0, 1 - len(self.to_render))

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """At most one tick of each phase, then the audio of the songs that have their tokens."""
        finished: list[Finished] = []
        for request, done in self.decoder.step() if self.decoder else []:
            if done.error is None:
                self.to_render.append((request, done))
            else:
                finished.append(done)
        while self.to_render:
            finished.append(self._render(*self.to_render.popleft()))
        return finished

    def _render(self, request: Request, done: Finished) -> Finished:
        assert done.tokens is not None
        try:
            return replace(done, audio=self.renderer.render(request, done.tokens))
        except NotFinite as error:
            return Finished(request.key, str(error))
