"""The codec at full size with random weights: milliseconds a window, x realtime, beside the plain networks, and errors.

x realtime counts the 30 s that a window adds to a song, not the 40 s that it spans. Knows the engine's parts and the
plain networks of levo.model; the plain ones run eagerly, unfused, with weights in halves, as upstream's autocast does.
"""

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from levo.bench.card import show
from levo.bench.decode import GIB, median_seconds
from levo.bench.device import forget
from levo.bench.random_checkpoint import VAE_JSON, Fill, full_codec
from levo.engine.codec import Renderer, to_pcm
from levo.engine.request import no_book
from levo.engine.vae_decoder import exact_convolutions
from levo.model.codec import Noise, join, window_codes, window_latents
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.flow import Flow, solve
from levo.model.upstream_names import flow_shapes, vae_shapes
from levo.model.vae import VAE
from levo.songs.song import FRAME_RATE

SONG_FRAMES = 4500  # 3 minutes: six windows
CHECKED_FRAMES = 1750  # two windows
LONGEST_FRAMES = 6750
BATCH = 4
STEPS = (10, 50)
GUIDANCE = 1.5
FFT, HOP = 2048, 512
REPEATS = 5

Codes = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class CodecTime:
    """One line of the table. ms: of one window, median."""

    what: str
    ms: float
    x_realtime: float


def random_codec(device: torch.device, dtype: torch.dtype) -> tuple[Flow, VAE]:
    """Both networks at full size, always with the same weights; flow products in dtype, VAE in float32."""
    config = full_codec(VAEConfig.from_upstream(VAE_JSON))
    fill = Fill(0)
    flow = {name: fill.tensor(name, shape).to(device) for name, shape in flow_shapes(config).items()}
    vae = {name: fill.tensor(name, shape).to(device) for name, shape in vae_shapes(config.vae).items()}
    return Flow.from_state(config, flow, dtype), VAE.from_state(config.vae, vae)


def random_codes(config: CodecConfig, n: int, device: torch.device) -> Codes:
    """Codes of both streams."""
    generator = torch.Generator().manual_seed(1)
    vocal, bgm = torch.randint(config.code_size, (2, n), generator=generator).to(device)
    return vocal, bgm


@torch.inference_mode()
def run(*, kernels: bool) -> None:
    """`levo bench codec`: the engine's codec, the plain one, what batching would gain, and errors against float32."""
    device = torch.device("cuda")
    flow, vae = random_codec(device, torch.float16)
    before = _used(device)
    renderer = Renderer(flow, vae, LONGEST_FRAMES, STEPS[0], GUIDANCE, no_book)
    renderer.warm_up()
    forget()
    held = _used(device) - before
    torch.cuda.reset_peak_memory_stats()
    rows = time_engine(renderer)
    result: dict[str, Any] = {
        "held_gib": held / GIB,
        "peak_allocated_gib": torch.cuda.max_memory_allocated() / GIB,
        "reserved_gib": torch.cuda.memory_reserved() / GIB,
        "errors": errors(renderer, flow, vae),
    }
    if kernels:
        result["kernels"] = list_kernels(renderer)
    del renderer
    forget()
    plain = copy.deepcopy(vae).half()
    rows += time_plain(flow, plain)
    result["batching"] = batching(flow, plain)
    show("codec", [asdict(row) for row in rows], result)


def _used(device: torch.device) -> int:
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def _time(what: str, call: Callable[[], object], config: CodecConfig, n_windows: int = 1) -> CodecTime:
    call()
    seconds = median_seconds(call, REPEATS) / n_windows
    return CodecTime(what, seconds * 1e3, config.hop / FRAME_RATE / seconds)


def time_engine(renderer: Renderer) -> list[CodecTime]:
    """Flow at each number of steps, VAE, PCM, and whole songs of six windows."""
    config, solver = renderer.config, renderer.solver
    codes, noise = random_codes(config, SONG_FRAMES, renderer.device), renderer.noise(0, 0)
    window = window_codes(codes[0], 0, config.window), window_codes(codes[1], 0, config.window)
    n_windows = len(range(0, SONG_FRAMES - config.overlap, config.hop))
    drawn = noise(0)
    latents = solver.solve(window, None, drawn)
    context = latents[-config.overlap :]
    rows = []
    for steps in STEPS:
        solver.set_steps(steps)
        rows.append(_time(f"flow, {steps} steps", lambda: solver.solve(window, context, drawn), config))
        rows.append(_time(f"song, {steps} steps", lambda: song(renderer, codes, noise), config, n_windows))
    solver.set_steps(STEPS[0])
    wave = renderer.samples(codes, noise)[0]
    rows.append(_time("vae", lambda: renderer.vae.start(latents), config))
    rows.append(_time("cross-fade", lambda: renderer.wave.place(1, renderer.vae.wave), config))
    rows.append(_time("pcm", lambda: to_pcm(wave), config, n_windows))
    rows.append(_time("noise", lambda: noise(0), config))
    return rows


def song(renderer: Renderer, codes: Codes, noise: Noise) -> None:
    """Codes to PCM, as the engine does it."""
    to_pcm(renderer.samples(codes, noise)[0])


def time_plain(flow: Flow, vae: VAE) -> list[CodecTime]:
    """The networks of levo.model as they stand, VAE in the dtype of its weights."""
    config = flow.config
    vocal, bgm = random_codes(config, config.window, flow.device)
    noise = torch.randn(config.window, config.latent_dim, device=flow.device)
    latents = solve(flow, vocal, bgm, None, noise, STEPS[0], GUIDANCE)
    context = latents[:, -config.overlap :].t()

    def flow_window() -> Tensor:
        return solve(flow, vocal, bgm, context, noise, STEPS[0], GUIDANCE)

    with exact_convolutions():
        return [
            _time(f"plain flow, {STEPS[0]} steps", flow_window, config),
            _time("plain vae", lambda: vae.decode(latents), config),
            _time(f"plain together, {STEPS[0]} steps", lambda: vae.decode(flow_window()), config),
        ]


def batching(flow: Flow, vae: VAE) -> dict[str, float]:
    """How much faster a window is when BATCH of them run at once: plain networks, one estimator call, one decode."""
    config, device = flow.config, flow.device
    times = {}
    for n in (1, BATCH):
        x = torch.randn(2 * n, config.window, config.dim, device=device)
        t = torch.full((2 * n,), 0.5, device=device)
        z = torch.randn(n, config.latent_dim, config.window, device=device, dtype=torch.float16)
        with exact_convolutions():
            times["flow", n] = _time("", partial(flow.velocity, x, t), config, n).ms
            times["vae", n] = _time("", partial(vae.decoder, z), config, n).ms
    return {part: times[part, 1] / times[part, BATCH] for part in ("flow", "vae")} | {"windows": BATCH}


def errors(renderer: Renderer, flow: Flow, vae: VAE) -> dict[str, dict[str, float]]:
    """Two windows from the same codes and noise, against everything in float32: the engine's, and the plain halves'."""
    codes, noise = random_codes(flow.config, CHECKED_FRAMES, flow.device), renderer.noise(0, 0)
    wide, _ = random_codec(flow.device, torch.float32)
    exact = plain_wave(wide, vae, codes, noise)
    del wide
    found = {
        "engine": renderer.samples(codes, noise)[0].clone(),
        "plain halves": plain_wave(flow, copy.deepcopy(vae).half(), codes, noise),
    }
    return {
        name: {"snr_db": snr_db(wave, exact), "log_spectral_distance_db": log_spectral_distance_db(wave, exact)}
        for name, wave in found.items()
    }


def plain_wave(flow: Flow, vae: VAE, codes: Codes, noise: Noise) -> Tensor:
    """Samples [2, N] by levo.model alone, at the default number of steps."""
    wave, rate = None, flow.config.vae.samples_per_frame
    with exact_convolutions():
        for latents in window_latents(flow, codes, noise, STEPS[0], GUIDANCE):
            wave = join(wave, vae.decode(latents), flow.config.overlap * rate)
    assert wave is not None, "there is at least one window"
    return wave[:, : len(codes[0]) * rate]


def snr_db(found: Tensor, exact: Tensor) -> float:
    """Power of the signal over that of the difference."""
    exact = exact.double()
    return float(10 * torch.log10(exact.square().sum() / (found.double() - exact).square().sum()))


def log_spectral_distance_db(found: Tensor, exact: Tensor) -> float:
    """Root mean square over bins of the difference of log power spectra, mean over frames (Gray and Markel 1976).

    Bins more than 100 dB below the loudest one count as that quiet.
    """
    window = torch.hann_window(FFT, device=exact.device)
    power = [
        torch.stft(wave.float(), FFT, HOP, window=window, return_complex=True).abs().square() for wave in (found, exact)
    ]
    floor = power[1].max() * 1e-10
    one, other = (10 * torch.log10(p.clamp(min=floor)) for p in power)
    return float((one - other).square().mean(dim=-2).sqrt().mean())


def list_kernels(renderer: Renderer) -> dict[str, list[dict[str, Any]]]:
    """Kernels of one Euler step and of one VAE window, the longest first."""
    found = {}
    for name, graph in (("flow step", renderer.solver.graph), ("vae", renderer.vae.graph)):
        graph.run()
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            graph.run()
            torch.cuda.synchronize()
        events = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
        events.sort(key=lambda event: -event.self_device_time_total)
        found[name] = [
            {"kernel": event.key[:90], "launches": event.count, "us": event.self_device_time_total} for event in events
        ]
    return found
