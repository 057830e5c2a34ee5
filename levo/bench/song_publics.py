"""The public ways end to end, beside ours in one run: put together from their measured parts.

recipe: a fixed batch through the captured step until its longest song ends, then the codec eagerly, window by window,
then the file. upstream: one song, eager, the same codec. Prefill is left out, in their favour.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from levo.bench.baselines import StepTime, time_recipe, time_upstream
from levo.bench.song_line import Load
from levo.engine.pages import PAGE
from levo.model.checkpoint import Model
from levo.model.codec import window_starts
from levo.model.config import LMConfig
from levo.model.flow import solve
from levo.songs.song import FRAME_RATE

RECIPE_BATCH = 16
WARM_UPS, REPEATS = 2, 5


@dataclass(frozen=True)
class Way:
    """One public way. song_s: seconds of the device (and, where it waits, the host) that a song costs."""

    name: str
    batch: int
    step_ms: float
    tokens_s: float
    codec_s: float
    file_s: float
    x_realtime: float


@dataclass(frozen=True)
class Publics:
    """Both, and their common codec: seconds of one window's flow and VAE."""

    recipe: Way
    upstream: Way
    flow_s: float
    vae_s: float


def time_publics(model: Model, load: Load, file_s: float) -> Publics:
    """Measure the parts. file_s: encoding a song's file, as our threads do it."""
    assert model.lm is not None
    config = model.lm.config
    mean, longest = load.mean, recipe_frames(load)
    with torch.inference_mode():
        flow_s, vae_s = time_eager_codec(model, load.steps)
        recipe = time_recipe(model.lm, RECIPE_BATCH, buffer_length(model.lm.config, load))
        upstream = time_upstream(model.lm, config.prefix_len + int(mean) // 2)
    n_windows = len(window_starts(max(1, int(mean)), model.config.codec.window))
    codec_s = n_windows * (flow_s + vae_s)

    def way(name: str, step: StepTime, frames: float) -> Way:
        step_s = step.transformers + step.sampling
        tokens_s = (frames + config.max_delay) * step_s / step.batch
        speed = mean / FRAME_RATE / (tokens_s + codec_s + file_s)
        return Way(name, step.batch, 1e3 * step_s, tokens_s, codec_s, file_s, speed)

    return Publics(way("recipe", recipe, longest), way("upstream", upstream, mean), flow_s, vae_s)


def recipe_frames(load: Load) -> float:
    """A batch runs until its longest song has ended: the expected largest of so many uniform draws."""
    return load.shortest + RECIPE_BATCH / (RECIPE_BATCH + 1) * (load.longest - load.shortest)


def buffer_length(config: LMConfig, load: Load) -> int:
    """Positions of the recipe's buffer: room for the longest song, in whole pages."""
    return -(-(config.prefix_len + load.longest + config.max_delay + 1) // PAGE) * PAGE


def time_eager_codec(model: Model, steps: int) -> tuple[float, float]:
    """Seconds of one window's flow and VAE as upstream runs them: explicit attention, eager, VAE in float32."""
    config, device = model.config.codec, model.device
    codes = torch.zeros(config.window, dtype=torch.int64, device=device)
    noise = torch.randn(config.window, config.latent_dim, device=device)
    context = torch.randn(config.overlap, config.latent_dim, device=device)
    with mock.patch("torch.nn.functional.scaled_dot_product_attention", explicit_attention):
        flow_s = median_wall(lambda: solve(model.flow, codes, codes, context, noise, steps, 1.5), device)
    latents = torch.randn(config.latent_dim, config.window, device=device)
    return flow_s, median_wall(lambda: model.vae.decode(latents), device)


def explicit_attention(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Scores, softmax in float32, and back: what attention is without a fused kernel. q, k, v [R, H, W, hd]."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    scores = scores.float() if attn_mask is None else scores.float() + attn_mask
    return torch.matmul(torch.softmax(scores, dim=-1).to(v.dtype), v)


def median_wall(call: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Seconds of a call by the wall, the device waited for; median after two runs to warm up."""
    times = []
    for _ in range(WARM_UPS + repeats):
        begin = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return sorted(times[WARM_UPS:])[repeats // 2]
