"""The velocity estimator: a bidirectional, time-modulated transformer with upstream's state-dict names.

Pure mathematics (facts/vocoder.md section 3.6). Residual stream, norms, modulation and tables are float32; matrix
products and attention run in the dtype of the weights (section 3.7: what upstream does under fp16 autocast).

Letters: R rows (unconditional and conditional of each item), W frames of a call, d width, H heads, hd head size.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from levo.model.codec_config import CodecConfig
from levo.model.table import embedding_table

LAYER_NORM_EPS = 1e-5
ROTARY_BASE = 10000.0
TIME_SCALE = 1000.0


class Linear(nn.Linear):
    """Linear layer whose input is rounded to the dtype of the weight."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class TransposedLinear(nn.Module):
    """As Linear, but the weight is stored [in, out]: upstream's layout inside the blocks."""

    def __init__(self, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_in, n_out))
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight.t(), self.bias)


def sinusoid(t: Tensor, dim: int) -> Tensor:
    """Times [R] in 0..1 -> [R, dim] float32: cosines, then sines. (t w) 1000 in this order, as upstream."""
    half = dim // 2
    index = torch.arange(half, dtype=torch.float32, device=t.device)
    frequency = torch.exp(index * (-math.log(10000.0) / half))
    angle = t.float()[:, None] * frequency * TIME_SCALE  # [R, dim/2]
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def rotary_tables(n_frames: int, head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [W, hd/2] float32 for frames 0..W-1 of a window."""
    even = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
    frame = torch.arange(n_frames, dtype=torch.float32, device=device)
    angle = frame[:, None] * ROTARY_BASE ** (-even / head_dim)
    return angle.cos(), angle.sin()


def rotate_pairs(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [R, H, W, hd] on neighbouring channels (2i, 2i+1); float32 inside, dtype kept."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)  # [R, H, W, hd/2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class _TimestepMLP(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.linear_1 = Linear(config.time_dim, config.dim)
        self.linear_2 = Linear(config.dim, config.dim)


class _TimeEmbedding(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.timestep_embedder = _TimestepMLP(config)


class TimePath(nn.Module):
    """Times to the head's vector and to the modulation that all blocks share."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.time_dim, self.dim = config.time_dim, config.dim
        self.emb = _TimeEmbedding(config)
        self.linear = Linear(config.dim, 6 * config.dim)

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """t [R] -> (embedding [R, d], modulation [R, 6, d])."""
        mlp = self.emb.timestep_embedder
        embedding: Tensor = mlp.linear_2(F.silu(mlp.linear_1(sinusoid(t, self.time_dim))))
        modulation: Tensor = self.linear(F.silu(embedding))
        return embedding, modulation.unflatten(-1, (6, self.dim))


class Attention(nn.Module):
    """Full attention over the frames of a window."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.heads = (config.heads, config.head_dim)
        self.c_attn = TransposedLinear(config.dim, 3 * config.dim)
        self.c_proj = TransposedLinear(config.dim, config.dim)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        q, k, v = (part.unflatten(-1, self.heads).transpose(1, 2) for part in self.c_attn(x).chunk(3, dim=-1))
        q, k = rotate_pairs(q, *rotary), rotate_pairs(k, *rotary)  # [R, H, W, hd]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask.to(q.dtype))
        projected: Tensor = self.c_proj(out.transpose(1, 2).flatten(-2))
        return projected


class MLP(nn.Module):
    """Two linear layers with the tanh form of GELU between them."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.c_fc = TransposedLinear(config.dim, config.inner_dim)
        self.c_proj = TransposedLinear(config.inner_dim, config.dim)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return out


class Block(nn.Module):
    """h + gate Attention(modulated norm), then the same with the MLP. The output biases are gated too."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.scale_shift_table = nn.Parameter(torch.empty(6, config.dim))
        self.ln_1 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPS)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPS)
        self.mlp = MLP(config)

    def forward(self, h: Tensor, modulation: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = (self.scale_shift_table + modulation)[:, :, None].unbind(1)
        h = h + gate1 * self.attn(self.ln_1(h) * (1 + scale1) + shift1, rotary, mask)  # each of the six: [R, 1, d]
        return h + gate2 * self.mlp(self.ln_2(h) * (1 + scale2) + shift2)


class Estimator(nn.Module):
    """Windows [R, W, d] and times [R] to outputs [R, W, d]. There is no input projection: the input is the residual."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.scale_shift_table = nn.Parameter(torch.empty(2, config.dim))
        self.wpe = embedding_table(config.window, config.dim)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.dim, eps=LAYER_NORM_EPS)
        self.proj_out = Linear(config.dim, config.dim)
        self.adaln_single = TimePath(config)

    def forward(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [R, W, d] float32, t [R] in 0..1 -> [R, W, d] in the dtype of the weights.

        mask: float32 [R, 1, W, W] added to the scores, for items with padding frames; None: all frames see all.
        """
        n_frames = x.shape[1]
        rotary = rotary_tables(n_frames, self.config.head_dim, x.device)
        embedding, modulation = self.adaln_single(t)
        h = x + self.wpe.weight[:n_frames]
        for block in self.h:
            h = block(h, modulation, rotary, mask)
        shift, scale = (self.scale_shift_table + embedding[:, None])[:, :, None].unbind(1)
        out: Tensor = self.proj_out(self.ln_f(h) * (1 + scale) + shift)
        return out
