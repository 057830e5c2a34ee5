"""A song's tokens to PCM: one window at a time, always at one shape, noise by counter (design: The engine, 4).

The audio of a song depends on its tokens, seed and rendition, so renditions and stems share the tokens, and the
stems of one rendition share the noise. Latents, samples and PCM stay on the device until the file is complete.
"""

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from levo.engine import codec_twins
from levo.engine.flow_solver import FlowSolver
from levo.engine.philox import normals
from levo.engine.request import Audio, Book, Request
from levo.engine.vae_decoder import VAEDecoder
from levo.model.codec import Noise, stem_codes, window_codes, window_starts
from levo.model.codec_config import CodecConfig
from levo.model.flow import Flow
from levo.model.vae import VAE
from levo.songs.song import STEMS

PEAK_CEILING = 0.999
FULL_SCALE = 32767
PIECE = 2**20
"""Samples that are turned into integers at a time: bounds the float64 copies."""


class NotFinite(Exception):
    """The codec gave a value that is not a number. Made again it would come back with equal bits."""


def no_book(stage: str) -> None:
    """For work that belongs to no song."""


class Renderer:
    """The codec's side of the engine. max_frames: of the longest song, for which the samples have room."""

    def __init__(self, flow: Flow, vae: VAE, max_frames: int, steps: int, guidance: float, book: Book) -> None:
        config, on_gpu = flow.config, flow.device.type == "cuda"
        ops: ModuleType = codec_twins
        if on_gpu:
            from levo.engine import kernels as ops  # Triton lives where a GPU does
        self.config, self.device, self.book = config, flow.device, book
        self.solver = FlowSolver(flow, steps, guidance, ops, captured=on_gpu)
        # On a GPU the VAE has the dtype of the flow's products; a CPU gains nothing by halves.
        dtype = self.solver.dtype if on_gpu else torch.float32
        self.vae = VAEDecoder(vae, config.window, dtype, ops, captured=on_gpu)
        self.wave = Waveform(config, max_frames, flow.device)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """On a GPU: what is not captured, once, so that its kernels and memory are there: noise, cross-fade, PCM."""
        if self.device.type == "cuda":
            codes = torch.zeros(self.config.window + 1, dtype=torch.int64, device=self.device)
            self.samples((codes, codes), self.noise(0, 0))
            to_pcm(self.wave.samples)

    def noise(self, seed: int, rendition: int) -> Noise:
        """The noise of a rendition's windows."""
        shape = self.config.window, self.config.latent_dim
        return lambda window: normals(seed, window, rendition, shape, self.device)

    def render(self, request: Request, tokens: np.ndarray) -> list[Audio]:
        """tokens: int32 [3, e], e >= 1. One Audio a rendition and stem. Raises NotFinite."""
        return list(self._render(request, tokens))

    def _render(self, request: Request, tokens: np.ndarray) -> Iterator[Audio]:
        def book(stage: str) -> None:
            self.book(stage, [request.key])

        dtype = str(self.vae.dtype).removeprefix("torch.")
        for rendition in range(request.renditions):
            for stem in STEMS[request.gen_type]:
                vocal, bgm = (codes.to(self.device) for codes in stem_codes(self.config, tokens, stem))
                try:
                    wave, again = self.samples((vocal, bgm), self.noise(request.seed, rendition), book)
                except NotFinite as error:
                    raise NotFinite(f"{error} (rendition {rendition}, stem {stem})") from None
                pcm, gain, peak, clipped_share = to_pcm(wave)
                book("vae")
                used = f"{dtype}+float32" if again else dtype
                yield Audio(rendition, stem, pcm, gain, peak, clipped_share, used)

    def samples(
        self, codes: tuple[Tensor, Tensor], noise: Noise, book: Callable[[str], None] = no_book
    ) -> tuple[Tensor, bool]:
        """One file: codes (vocal, bgm) int64 [n] on the device -> samples float32 [2, n samples_per_frame].

        They are valid until the next call. Also tells whether a window was decoded again in float32. Raises NotFinite.
        """
        config, context, again = self.config, None, False
        starts = window_starts(len(codes[0]), config.window)
        self.wave.begin(len(starts))
        start_noise = noise(0)
        for index, start in enumerate(starts):
            vocal, bgm = (window_codes(stream, start, config.window) for stream in codes)
            latents = self.solver.solve((vocal, bgm), context, start_noise)
            self._wait()
            book("flow")
            self.vae.start(latents)
            if index + 1 < len(starts):
                start_noise = noise(index + 1)  # its many small kernels are launched while the VAE runs
            decoded = self.vae.result()
            if decoded is None:
                raise NotFinite("audio is not finite")
            piece, in_float32 = decoded
            self.wave.place(index, piece)
            book("vae")
            again |= in_float32
            context = latents[-config.overlap :]
        return self.wave.samples[:, : len(codes[0]) * config.vae.samples_per_frame], again

    def _wait(self) -> None:
        """For the device, so that the ledger books a stage's own time."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()


class Waveform:
    """Samples of one file, window by window: one buffer for all files. Joins as levo.model.codec.join."""

    def __init__(self, config: CodecConfig, max_frames: int, device: torch.device) -> None:
        rate = config.vae.samples_per_frame
        self.n_window, self.n_hop = config.window * rate, config.hop * rate
        n_overlap = self.n_window - self.n_hop
        self.ramp = torch.linspace(0, 1, n_overlap, dtype=torch.float64, device=device)
        self.samples = torch.zeros(config.vae.audio_channels, 0, device=device)
        self.begin(len(window_starts(max_frames, config.window)))

    def begin(self, n_windows: int) -> None:
        """Make room for a file; only one longer than the model's longest song needs more than there is."""
        n_samples = (n_windows - 1) * self.n_hop + self.n_window
        if n_samples > self.samples.shape[1]:
            self.samples = self.samples.new_zeros(len(self.samples), n_samples)

    def place(self, index: int, piece: Tensor) -> None:
        """Window `index` [2, M]: faded over the end of the one before it, then what is new."""
        into = self.samples[:, index * self.n_hop :][:, : self.n_window]
        if index == 0:
            into.copy_(piece)
            return
        n = len(self.ramp)
        into[:, :n] = into[:, :n].double() * (1 - self.ramp) + piece[:, :n].double() * self.ramp
        into[:, n:] = piece[:, n:]


def to_pcm(wave: Tensor) -> tuple[np.ndarray, float, float, float]:
    """Samples float32 [2, N] -> (int16 [N, 2], gain, peak, clipped share), the last two before the gain.

    gain = min(1, 0.999 / peak) for the whole file; 16 bit, rounded half to even, no dither (design: The engine, 4).
    All is computed where the samples are, and leaves through pinned memory with one wait.
    """
    # Channel by channel, since aminmax copies what is not contiguous.
    peak = torch.stack([torch.stack(torch.aminmax(channel)) for channel in wave]).abs().amax().double()
    # A true division: a number over a tensor would be a product with the rounded reciprocal. Silence gives 1.
    gain = (torch.full_like(peak, PEAK_CEILING) / peak).clamp(max=1.0)
    n_beyond = torch.zeros((), dtype=torch.int64, device=wave.device)
    pcm = torch.empty(wave.shape[1], len(wave), dtype=torch.int16, pin_memory=wave.is_cuda)
    # Of one size whatever the song's length, so that the allocator finds the same blocks again.
    wide, beyond = (wave.new_empty(len(wave), PIECE, dtype=dtype) for dtype in (torch.float64, torch.bool))
    whole = torch.empty(PIECE, len(wave), dtype=torch.int16, device=wave.device)
    for source, target in zip(wave.split(PIECE, dim=1), pcm.split(PIECE), strict=True):
        n = source.shape[1]
        n_beyond += torch.gt(wide[:, :n].copy_(source).abs_(), 1, out=beyond[:, :n]).sum()
        scaled = wide[:, :n].copy_(source).mul_(gain).mul_(FULL_SCALE).round_()
        target.copy_(whole[:n].copy_(scaled.t()), non_blocking=True)
    peak_, gain_, n_beyond_ = torch.stack([peak, gain, n_beyond.double()]).tolist()  # waits, so the copies are done
    return pcm.numpy(), gain_, peak_, n_beyond_ / wave.numel()
