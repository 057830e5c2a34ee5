"""Codes of one window to latents: quantizer, normalisation, Euler solver (facts/vocoder.md section 3).

Knows no song and no window order: whoever calls gives codes, context and noise. Nothing is drawn here. Latents outside
are in VAE space; inside they are normalised per channel with frozen statistics (upstream's may drift, section 10).

Letters: B items (1 in production), W frames of the window, L context frames, c condition channels, R rows of a call.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from levo.model.codec_config import BGM, VOCAL, CodecConfig
from levo.model.codec_weights import cast_matrices, fold_weight_norm, take_over, without
from levo.model.estimator import Estimator, Linear, TransposedLinear
from levo.model.table import embedding_table

SIGMA_MIN = 1e-4
PADDING, CONTEXT, GENERATE = 0, 1, 2
"""Roles of a frame: rows of mask_emb."""

MIN_COUNTS = 10
MIN_STD = 1e-12

UNUSED = (
    "cfm_wrapper.estimator.wte.",
    "cfm_wrapper.mlp.",
    f"{VOCAL}.in_proj.",
    f"{VOCAL}.stale_counter",
    f"{BGM}.in_proj.",
    f"{BGM}.stale_counter",
    "normfeat.sum_target_x2",
    "bestrq.",
    "hubert.",
    "rsp48toclap.",
    "rsq48towav2vec.",
    "rsq48tobestrq.",
    "rsq48tohubert.",
)
"""Beginnings of the tensor names that the released file holds for encoding and training only."""


class Quantizer(nn.Module):
    """Codebook row, as stored, times a folded 1x1 convolution."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.codebook = embedding_table(config.code_size, config.code_dim)
        self.out_proj = Linear(config.code_dim, config.cond_dim)

    def forward(self, codes: Tensor) -> Tensor:
        """Code ids [..., W] -> condition [..., W, c], float32."""
        projected: Tensor = self.out_proj(self.codebook(codes))
        return projected.float()


class _QuantizerList(nn.Module):
    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList([Quantizer(config)])

    def forward(self, codes: Tensor) -> Tensor:
        out: Tensor = self.quantizers[0](codes)
        return out


class Statistics(nn.Module):
    """Mean and deviation of each latent channel, from running sums that stay as they are."""

    counts: Tensor
    sum_x: Tensor
    sum_x2: Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.register_buffer("counts", torch.empty(1))
        self.register_buffer("sum_x", torch.empty(config.latent_dim))
        self.register_buffer("sum_x2", torch.empty(config.latent_dim))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [latent]; 0 and 1 when fewer than ten items were counted."""
        few = self.counts < MIN_COUNTS
        mean = self.sum_x / self.counts
        std = (self.sum_x2 / self.counts - mean.square()).clamp(min=0).sqrt()
        return torch.where(few, 0.0, mean), torch.where(few, 1.0, std)

    def project(self, latents: Tensor) -> Tensor:
        """VAE space to normalised, channels last."""
        mean, std = self.moments()
        return (latents - mean) / std.clamp(min=MIN_STD)

    def restore(self, latents: Tensor) -> Tensor:
        """Normalised to VAE space, channels last."""
        mean, std = self.moments()
        return latents * std + mean


class _Wrapper(nn.Module):
    """Holds the estimator: upstream's names."""

    def __init__(self, estimator: Estimator) -> None:
        super().__init__()
        self.estimator = estimator


class Flow(nn.Module):
    """Everything that turns codes into latents."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.rvq_bestrq_emb = _QuantizerList(config)
        self.rvq_bestrq_bgm_emb = _QuantizerList(config)
        self.mask_emb = embedding_table(3, config.mask_dim)
        self.normfeat = Statistics(config)
        self.zero_cond_embedding1 = nn.Parameter(torch.empty(config.cond_dim))
        self.cfm_wrapper = _Wrapper(Estimator(config))

    @classmethod
    def from_state(cls, config: CodecConfig, state: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> "Flow":
        """Model from upstream's tensors of any float dtype; tensors that decoding never reads are left out.

        dtype is that of the matrix products. Raises ModelError when a tensor is missing, unknown or of another shape.
        """
        with torch.device("meta"):
            flow = cls(config)
        folded = fold_weight_norm(without(state, UNUSED))
        for name in (f"{VOCAL}.out_proj.weight", f"{BGM}.out_proj.weight"):
            if name in folded:
                folded[name] = folded[name].flatten(1)  # kernel size 1: [c, code, 1] -> [c, code]
        take_over(flow, folded, "flow.safetensors")
        cast_matrices(flow, (Linear, TransposedLinear), dtype)
        return flow

    @property
    def estimator(self) -> Estimator:
        """The network that gives velocities."""
        return self.cfm_wrapper.estimator

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.mask_emb.weight.device

    def condition(self, codes_vocal: Tensor, codes_bgm: Tensor) -> Tensor:
        """Code ids [..., W], int64 -> mu [..., W, 2c] float32, vocal first."""
        return torch.cat([self.rvq_bestrq_emb(codes_vocal), self.rvq_bestrq_bgm_emb(codes_bgm)], dim=-1)

    def velocity(self, x: Tensor, t: Tensor, mask: Tensor | None = None) -> Tensor:
        """Estimator input [R, W, d] and times [R] -> velocity [R, W, latent] in the dtype of the matrix products."""
        out: Tensor = self.estimator(x, t, mask)
        return out[..., -self.config.latent_dim :]


@dataclass(frozen=True)
class WindowInputs:
    """What stays the same over the steps of a window.

    mu [B, W, 2c]; mask_emb [B, W, mask]; context [B, W, latent] normalised, exactly 0 from frame n_context on;
    attention_mask [B, 1, W, W] added to the scores, or None when no frame is padding (always in production).
    """

    mu: Tensor
    mask_emb: Tensor
    context: Tensor
    n_context: int
    attention_mask: Tensor | None = None


def window_inputs(
    flow: Flow, codes_vocal: Tensor, codes_bgm: Tensor, context: Tensor | None, n_valid: int | None = None
) -> WindowInputs:
    """What conditions a window: codes [B, W], context [B, L, latent] in VAE space or None; padding from n_valid on."""
    n_items, n_frames = codes_vocal.shape
    n_valid = n_frames if n_valid is None else n_valid
    n_context = 0 if context is None else context.shape[1]
    roles = torch.full((n_items, n_frames), GENERATE, dtype=torch.int64, device=flow.device)
    roles[:, :n_context] = CONTEXT
    mu = flow.condition(codes_vocal.to(flow.device), codes_bgm.to(flow.device))
    attention_mask = None
    if n_valid < n_frames:
        roles[:, n_valid:] = PADDING
        mu[:, n_valid:] = flow.zero_cond_embedding1.repeat(2)
        valid = roles != PADDING
        hidden = ~(valid[:, None, :, None] & valid[:, None, None, :])
        # A finite minimum, as upstream: a padding frame then sees all frames alike, instead of turning into NaN.
        attention_mask = hidden * torch.finfo(torch.float32).min
    padded = mu.new_zeros(n_items, n_frames, flow.config.latent_dim)
    if context is not None:
        padded[:, :n_context] = flow.normfeat.project(context.to(flow.device, torch.float32))
    return WindowInputs(mu, flow.mask_emb(roles), padded, n_context, attention_mask)


def integrate(flow: Flow, window: WindowInputs, noise: Tensor, steps: int, guidance: float) -> Tensor:
    """Euler steps from noise [B, W, latent] (t = 0) to normalised latents [B, W, latent] (t = 1), float32.

    The context frames are put on the straight path from noise to context before every evaluation. Rows of a call:
    unconditional (mu = 0) first, then conditional; with guidance <= 1 the conditional ones only (facts 3.5).
    """
    mu, both = window.mu, guidance > 1
    fixed = torch.cat([window.mask_emb, window.context, mu, noise], dim=-1)  # [B, W, d]
    rows = torch.cat([fixed, fixed]) if both else fixed
    n_items, latent, n_context = len(mu), flow.config.latent_dim, window.n_context
    if both:
        rows[:n_items, :, -latent - mu.shape[-1] : -latent] = 0
    mask = window.attention_mask
    mask = torch.cat([mask, mask]) if both and mask is not None else mask
    times = torch.linspace(0, 1, steps + 1, dtype=torch.float32, device=noise.device)
    start, goal, x = noise[:, :n_context], window.context[:, :n_context], noise.clone()
    for step in range(steps):
        t = times[step]
        x[:, :n_context] = (1 - (1 - SIGMA_MIN) * t) * start + t * goal
        rows[..., -latent:] = x if not both else torch.cat([x, x])
        v = flow.velocity(rows, t.expand(len(rows)), mask)
        if both:
            v = v[:n_items] + guidance * (v[n_items:] - v[:n_items])
        x = x + (times[step + 1] - t) * v
    return x


def solve(
    flow: Flow,
    codes_vocal: Tensor,
    codes_bgm: Tensor,
    context: Tensor | None,
    noise: Tensor,
    steps: int,
    guidance: float,
) -> Tensor:
    """One window: codes [W] int64, context [L, latent] in VAE space or None, noise [W, latent] float32.

    Gives latents [latent, W] float32 in VAE space; the first L frames are the context again.
    """
    batched = None if context is None else context[None]
    window = window_inputs(flow, codes_vocal[None], codes_bgm[None], batched)
    x = integrate(flow, window, noise.to(flow.device, torch.float32)[None], steps, guidance)
    return restore(flow, window, x)[0]


def restore(flow: Flow, window: WindowInputs, x: Tensor) -> Tensor:
    """Solver's result [B, W, latent] -> latents [B, latent, W] in VAE space, context frames put back."""
    x = torch.cat([window.context[:, : window.n_context], x[:, window.n_context :]], dim=1)
    return flow.normfeat.restore(x).transpose(1, 2)
