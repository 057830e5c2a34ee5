"""The flow model in serving form: one window at a time, always of one shape; its Euler step is captured once.

The mathematics is that of levo.model.flow and levo.model.estimator. What is done once instead of in every step: the
time path, the rotary tables, the padding of heads to a multiple of 8 (for the attention kernel), and everything of the
input but the latents. Matrix products and attention run in the dtype of the weights, the rest in float32.

Letters: R rows (unconditional and conditional, or conditional alone), W frames, d width, H heads, P padded head size.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from levo.engine.graph import Graph
from levo.model.codec_config import CodecConfig
from levo.model.estimator import Block, rotary_tables
from levo.model.flow import SIGMA_MIN, Flow, window_inputs

HEAD_MULTIPLE = 8

Matrix = tuple[Tensor, Tensor]
"""Weight [out, in] and bias [out]."""


@dataclass(frozen=True)
class Layer:
    """A block's matrices, and weight and bias of its norms."""

    qkv: Matrix
    out: Matrix
    fc: Matrix
    proj: Matrix
    norm_1: Matrix
    norm_2: Matrix

    @classmethod
    def of(cls, block: Block, config: CodecConfig, size: int) -> "Layer":
        """Heads of queries, keys and values padded with zeros to `size`; the MLP's weights are shared, not copied."""
        attn, mlp, pad = block.attn, block.mlp, size - config.head_dim
        rows = attn.c_attn.weight.t().unflatten(0, (-1, config.head_dim))  # [3 H, hd, d]
        bias = attn.c_attn.bias.unflatten(0, (-1, config.head_dim))
        columns = attn.c_proj.weight.t().unflatten(1, (-1, config.head_dim))  # [d, H, hd]
        return cls(
            qkv=(F.pad(rows, (0, 0, 0, pad)).flatten(0, 1).contiguous(), F.pad(bias, (0, pad)).flatten()),
            out=(F.pad(columns, (0, pad)).flatten(1).contiguous(), attn.c_proj.bias),
            fc=(mlp.c_fc.weight.t(), mlp.c_fc.bias),
            proj=(mlp.c_proj.weight.t(), mlp.c_proj.bias),
            norm_1=(block.ln_1.weight, block.ln_1.bias),
            norm_2=(block.ln_2.weight, block.ln_2.bias),
        )


class FlowSolver:
    """Codes of one window to latents. ops: levo.engine.kernels or levo.engine.codec_twins."""

    def __init__(self, flow: Flow, steps: int, guidance: float, ops: ModuleType, *, captured: bool) -> None:
        config, estimator, device = flow.config, flow.estimator, flow.device
        self.flow, self.guidance, self.ops = flow, guidance, ops
        self.heads, self.size = config.heads, -(-config.head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE
        blocks: Any = estimator.h
        self.layers = [Layer.of(block, config, self.size) for block in blocks]
        self.tables = torch.stack([block.scale_shift_table for block in blocks])  # [layers, 6, d]
        latent = config.latent_dim
        self.head = estimator.proj_out.weight[-latent:], estimator.proj_out.bias[-latent:]
        pad = (0, (self.size - config.head_dim) // 2)
        self.cos, self.sin = (F.pad(t, pad) for t in rotary_tables(config.window, config.head_dim, device))
        # One plain kernel for float32 on a GPU, where flash attention does not exist.
        wide_on_gpu = device.type == "cuda" and self.dtype == torch.float32
        self.backend = SDPBackend.MATH if wide_on_gpu else SDPBackend.FLASH_ATTENTION
        rows = 2 if guidance > 1 else 1
        shape = config.window, latent
        self.fixed = torch.zeros(rows, config.window, config.dim, device=device)
        self.x, self.start, self.goal = (torch.zeros(shape, device=device) for _ in range(3))
        self.known = torch.zeros(config.window, 1, dtype=torch.bool, device=device)
        self.now = torch.zeros(8 * config.dim + 2, device=device)
        self.set_steps(steps)
        self.graph = Graph(self._step, device, captured=captured)

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products and attention."""
        weight: Tensor = self.flow.estimator.proj_out.weight
        return weight.dtype

    def set_steps(self, steps: int) -> None:
        """Plan `steps` Euler steps: of each the modulation (6 d), the head's shift and scale (2 d), t and dt."""
        estimator = self.flow.estimator
        times = torch.linspace(0, 1, steps + 1, dtype=torch.float32, device=self.flow.device)
        embedding, modulation = estimator.adaln_single(times[:-1])
        head = estimator.scale_shift_table + embedding[:, None]
        columns = modulation.float().flatten(1), head.flatten(1), times[:-1, None], times.diff()[:, None]
        self.plan = torch.cat(columns, dim=1)

    def solve(self, codes: tuple[Tensor, Tensor], context: Tensor | None, noise: Tensor) -> Tensor:
        """Codes (vocal, bgm) int64 [W] each, context [L, latent] in VAE space or None, noise [W, latent] float32.

        Gives latents [W, latent] float32 in VAE space; the first L frames are the context again.
        """
        self._load(codes, context, noise)
        for row in self.plan:
            self.now.copy_(row)
            self.graph.run()
        latents: Tensor = self.flow.normfeat.restore(torch.where(self.known, self.goal, self.x))
        return latents

    def _load(self, codes: tuple[Tensor, Tensor], context: Tensor | None, noise: Tensor) -> None:
        vocal, bgm = codes
        window = window_inputs(self.flow, vocal[None], bgm[None], None if context is None else context[None])
        mu, wpe = window.mu[0], self.flow.estimator.wpe.weight
        conditions = (mu,) if len(self.fixed) == 1 else (torch.zeros_like(mu), mu)
        for row, condition in zip(self.fixed, conditions, strict=True):
            row.copy_(torch.cat([window.mask_emb[0], window.context[0], condition, torch.zeros_like(self.x)], dim=-1))
        self.fixed += wpe
        self.start.copy_(noise)
        self.x.copy_(noise)
        self.goal.copy_(window.context[0])
        self.known.copy_(torch.arange(len(mu), device=mu.device)[:, None] < window.n_context)

    def _step(self) -> None:
        """One Euler step of self.x, with the modulation and times in self.now."""
        d, latent = self.fixed.shape[-1], self.x.shape[-1]
        modulation, head = self.now[: 6 * d].view(6, d), self.now[6 * d : 8 * d].view(2, d)
        t, dt = self.now[8 * d :].unbind()
        x = torch.where(self.known, (1 - (1 - SIGMA_MIN) * t) * self.start + t * self.goal, self.x)
        h = self.fixed.clone()
        h[..., -latent:] += x
        ln_f = self.flow.estimator.ln_f
        h, gated = h.flatten(0, 1), None
        for layer, mod in zip(self.layers, self.tables + modulation, strict=True):
            y = self.ops.modulate(h, gated, mod[0:2], layer.norm_1, self.dtype)
            y = self.ops.modulate(h, (mod[2], self._attend(layer, y)), mod[3:5], layer.norm_2, self.dtype)
            y = F.gelu(F.linear(y, *layer.fc), approximate="tanh")
            gated = mod[5], F.linear(y, *layer.proj)
        y = self.ops.modulate(h, gated, head, (ln_f.weight, ln_f.bias), self.dtype)
        v = F.linear(y, *self.head).view(*self.fixed.shape[:2], latent)
        v = v[0] if len(v) == 1 else v[0] + self.guidance * (v[1] - v[0])
        self.x.copy_(x + dt * v)

    def _attend(self, layer: Layer, y: Tensor) -> Tensor:
        """y [R W, d] -> projected attention [R W, d]."""
        config = self.flow.config
        qkv = F.linear(y, *layer.qkv).view(-1, config.window, 3, self.heads, self.size)
        self.ops.rotate_heads(qkv, self.cos, self.sin)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each [R, H, W, P]
        with sdpa_kernel(self.backend):
            attended = F.scaled_dot_product_attention(q, k, v, scale=config.head_dim**-0.5)
        return F.linear(attended.transpose(1, 2).reshape(len(y), -1), *layer.out)
