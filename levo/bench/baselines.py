"""The two ways that are public, rebuilt to be timed beside ours. Written from their descriptions, not their code.

upstream: one song, eager, keys and values grown by concatenation, explicit softmax attention in float32.
recipe: the brief's: a fixed batch, one static buffer written at a position index, SDPA with a mask over the whole
buffer, one CUDA graph over both transformers; sampling eager behind it.
Both run every step through both transformers, max_delay steps more than there are frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from levo.bench.decode import median_seconds
from levo.engine import sampling as rules
from levo.engine.request import Sampling
from levo.model.lm import LM, Attend


class CatCache:
    """Upstream's attention of one step: cache by concatenation, eager scores, softmax in float32. rows B."""

    def __init__(self, lm: LM, rows: int, positions: int, layers: int) -> None:
        config, like = lm.config, lm.transformer.lm_head.weight
        shape = (rows, config.num_heads, positions, config.head_dim)
        self.k = [torch.randn(shape, dtype=like.dtype, device=like.device) for _ in range(layers)]
        self.v = [torch.randn(shape, dtype=like.dtype, device=like.device) for _ in range(layers)]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: [rows, H, hd] of the new position."""
        self.k[layer] = torch.cat((self.k[layer], k[:, :, None]), dim=2)
        self.v[layer] = torch.cat((self.v[layer], v[:, :, None]), dim=2)
        scores = torch.matmul(q[:, :, None], self.k[layer].transpose(2, 3)) / q.shape[-1] ** 0.5
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.matmul(weights, self.v[layer])[:, :, 0]


class StaticBuffer:
    """The recipe's attention of one step over a buffer of fixed length."""

    def __init__(self, lm: LM, rows: int, length: int, layers: int) -> None:
        config, like = lm.config, lm.transformer.lm_head.weight
        shape = (layers, rows, config.num_heads, length, config.head_dim)
        self.k = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self.v = torch.zeros_like(self.k)
        self.position = torch.zeros(1, dtype=torch.int64, device=like.device)
        self.places = torch.arange(length, device=like.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q, k, v: [rows, H, hd] of the new position."""
        self.k[layer].index_copy_(2, self.position, k[:, :, None])
        self.v[layer].index_copy_(2, self.position, v[:, :, None])
        visible = (self.places <= self.position)[None, None, None]
        return scaled_dot_product_attention(q[:, :, None], self.k[layer], self.v[layer], attn_mask=visible)[:, :, 0]


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step of all songs, of its transformers and of its sampling tail.

    dispatches: operations that the host hands to the device in an eager step; 0 when the transformers were captured.
    """

    batch: int
    transformers: float
    sampling: float
    dispatches: int = 0

    @property
    def us_a_dispatch(self) -> float | None:
        """Microseconds from one operation to the next, where the host sets the pace."""
        return 1e6 * (self.transformers + self.sampling) / self.dispatches if self.dispatches else None

    def x_realtime(self, n_frames: int, max_delay: int, frame_rate: int) -> float:
        """Of songs that all have n_frames: the delay's steps are paid too; prefill is left out, in its favour."""
        steps = n_frames + max_delay
        return self.batch * n_frames / frame_rate / (steps * (self.transformers + self.sampling))


def one_step(lm: LM, ids: Tensor, position: Tensor, main_attend: Attend, sub_attend: Attend) -> Tensor:
    """Logits [rows, 3, C + 1] of one step of both transformers. ids [rows, 3]."""
    hidden = lm.main(lm.main_input(ids[:, 0]), position, main_attend)
    z = lm.sub(lm.sub_input(ids[:, 1], ids[:, 2], hidden), position, sub_attend)
    return torch.cat((lm.head0(hidden)[:, None], lm.heads12(z)), dim=1)


def sample_eagerly(logits: Tensor, sampling: Sampling, history: Tensor, generator: torch.Generator) -> Tensor:
    """Guidance, penalty, softmax, top-k and one shared random stream. logits [2B, 3, C + 1] -> ids [B, 3]."""
    n = logits.shape[-1]
    cond, uncond = logits.float().chunk(2)
    guided = uncond + (cond - uncond) * sampling.cfg
    seen = torch.zeros(len(guided), 3, n + 1, dtype=torch.bool, device=logits.device).scatter_(2, history, True)
    values = rules.penalise(guided.flatten(0, 1), seen[:, :, :n].flatten(0, 1), sampling.penalty).view_as(guided)
    probabilities = torch.softmax(values / sampling.temperature, dim=-1)
    first = probabilities[:, 0]
    kth = first.topk(sampling.top_k, dim=-1).values[:, -1:]
    kept = torch.where(first >= kth, first, 0)
    drawn = torch.multinomial(kept / kept.sum(-1, keepdim=True), 1, generator=generator)
    return torch.cat((drawn, probabilities[:, 1:].argmax(-1)), dim=1)


def time_upstream(lm: LM, positions: int, steps: int = 20, batch: int = 1) -> StepTime:
    """One song (or a batch, which upstream's code refuses) at `positions` filled positions, eager."""
    config, rows = lm.config, 2 * batch
    caches = CatCache(lm, rows, positions, config.num_layers), CatCache(lm, rows, positions, config.num_layers_sub)
    return _time(lm, batch, caches, steps, captured=False)


def time_recipe(lm: LM, batch: int, length: int, steps: int = 20, *, captured: bool = True) -> StepTime:
    """A fixed batch over a buffer of `length` positions."""
    config, rows = lm.config, 2 * batch
    caches = StaticBuffer(lm, rows, length, config.num_layers), StaticBuffer(lm, rows, length, config.num_layers_sub)
    return _time(lm, batch, caches, steps, captured=captured)


class _Dispatches(TorchDispatchMode):
    """Counts the operations in its context; a view is none, since it launches nothing."""

    n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        alias = [returned.alias_info for returned in func._schema.returns]
        self.n += not any(info is not None and not info.is_write for info in alias)
        return func(*args, **(kwargs or {}))


def count_dispatches(call: Callable[[], object]) -> int:
    """Operations that are no views, in one call."""
    with _Dispatches() as counter:
        call()
    return counter.n


def _time(lm: LM, batch: int, caches: tuple[Attend, Attend], steps: int, *, captured: bool) -> StepTime:
    device = lm.transformer.lm_head.weight.device
    ids = torch.ones(2 * batch, 3, dtype=torch.int64, device=device)
    position = torch.full((2 * batch,), 3000, dtype=torch.int64, device=device)
    history = torch.randint(0, lm.config.code_size, (batch, 3, 50), device=device)
    generator = torch.Generator(device).manual_seed(0)

    def forward() -> Tensor:
        return one_step(lm, ids, position, *caches)

    for _ in range(3):
        logits = forward()
    if captured and device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = forward()
        transformers = median_seconds(graph.replay, steps)
    else:
        transformers = median_seconds(forward, steps)

    def tail() -> None:
        ids.copy_(sample_eagerly(logits, Sampling(), history, generator).repeat(2, 1))

    tail()
    dispatches = 0 if captured else count_dispatches(forward) + count_dispatches(tail)
    return StepTime(batch, transformers, median_seconds(tail, steps), dispatches)
