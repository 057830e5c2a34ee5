"""Shapes of the codec's decoder side, read from tensor shapes and upstream's VAE json. Knows no tensors and no files.

Upstream keeps the flow model's sizes in its code, not in a file; so they are read off the weights. Two things cannot be
seen there: the number of attention heads and the silence codes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from levo.errors import ModelError

UPSTREAM_HEADS = 20
UPSTREAM_SILENCE_VOCAL, UPSTREAM_SILENCE_BGM = 3142, 9670

Shapes = Mapping[str, Sequence[int]]
ESTIMATOR = "cfm_wrapper.estimator"
VOCAL, BGM = "rvq_bestrq_emb.quantizers.0", "rvq_bestrq_bgm_emb.quantizers.0"


@dataclass(frozen=True)
class VAEConfig:
    """Shapes of the VAE decoder. strides and multipliers stand in config order; the decoder runs them backwards."""

    latent_dim: int
    audio_channels: int
    channels: int
    multipliers: tuple[int, ...]
    strides: tuple[int, ...]
    sample_rate: int

    @property
    def samples_per_frame(self) -> int:
        """Samples of one latent frame, per channel (1920 at full size)."""
        return prod(self.strides)

    @classmethod
    def from_upstream(cls, config: Mapping[str, Any]) -> "VAEConfig":
        """Read upstream's VAE json. Raises ModelError for a missing key or for another kind of decoder."""
        try:
            decoder = config["model"]["decoder"]
            shape = decoder["config"]
            found = cls(
                latent_dim=int(shape["latent_dim"]),
                audio_channels=int(shape["out_channels"]),
                channels=int(shape["channels"]),
                multipliers=tuple(int(m) for m in shape["c_mults"]),
                strides=tuple(int(s) for s in shape["strides"]),
                sample_rate=int(config["sample_rate"]),
            )
            kind = (decoder["type"], bool(shape["use_snake"]), bool(shape["final_tanh"]))
            ratio = int(config["model"]["downsampling_ratio"])
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"the VAE config cannot be read: {error!r}", where="vae.json") from error
        if kind != ("oobleck", True, False) or found.audio_channels != 2:
            raise ModelError(
                f"a VAE decoder of kind {kind} with {found.audio_channels} channels",
                where="vae.json",
                fix="use the stereo oobleck decoder with snake activations and no tanh",
            )
        # An odd stride would make a block one sample short (facts/vocoder.md section 10).
        if any(s < 2 or s % 2 for s in found.strides) or ratio != found.samples_per_frame:
            raise ModelError(
                f"strides {list(found.strides)} with downsampling_ratio {ratio}",
                where="vae.json",
                fix="strides must be even, and their product the ratio",
            )
        if len(found.strides) != len(found.multipliers):
            raise ModelError("c_mults and strides differ in length", where="vae.json")
        return found


@dataclass(frozen=True)
class CodecConfig:
    """Shapes of the flow model, with the VAE's.

    dim = mask_dim + latent_dim + 2 cond_dim + latent_dim is the width of the estimator; window is in frames.
    """

    mask_dim: int
    latent_dim: int
    cond_dim: int
    code_size: int
    code_dim: int
    dim: int
    heads: int
    layers: int
    inner_dim: int
    time_dim: int
    window: int
    silence_vocal: int
    silence_bgm: int
    vae: VAEConfig

    @property
    def hop(self) -> int:
        """Frames from one window's start to the next one's."""
        return self.window // 4 * 3

    @property
    def overlap(self) -> int:
        """Frames that a window shares with the one before it."""
        return self.window - self.hop

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.heads

    @classmethod
    def from_upstream(
        cls,
        shapes: Shapes,
        vae: VAEConfig,
        heads: int = UPSTREAM_HEADS,
        silence_vocal: int = UPSTREAM_SILENCE_VOCAL,
        silence_bgm: int = UPSTREAM_SILENCE_BGM,
    ) -> "CodecConfig":
        """Read the sizes off the shapes of upstream's flow tensors (before or after weight norm is folded).

        Raises ModelError for a missing tensor or sizes that do not fit together.
        """

        def size(name: str, axis: int) -> int:
            shape = shapes.get(name)
            if shape is None or len(shape) <= axis:
                raise ModelError(f"the flow model has no usable tensor {name}", where="flow.safetensors")
            return int(shape[axis])

        blocks = {name.split(".")[3] for name in shapes if name.startswith(f"{ESTIMATOR}.h.")}
        found = cls(
            mask_dim=size("mask_emb.weight", 1),
            latent_dim=size("normfeat.sum_x", 0),
            cond_dim=size("zero_cond_embedding1", 0),
            code_size=size(f"{VOCAL}.codebook.weight", 0),
            code_dim=size(f"{VOCAL}.codebook.weight", 1),
            dim=size(f"{ESTIMATOR}.wpe.weight", 1),
            heads=heads,
            layers=len(blocks),
            inner_dim=size(f"{ESTIMATOR}.h.0.mlp.c_fc.weight", 1),
            time_dim=size(f"{ESTIMATOR}.adaln_single.emb.timestep_embedder.linear_1.weight", 1),
            window=size(f"{ESTIMATOR}.wpe.weight", 0),
            silence_vocal=silence_vocal,
            silence_bgm=silence_bgm,
            vae=vae,
        )
        found._check()
        return found

    def _check(self) -> None:
        """Raises ModelError when the sizes do not fit together."""
        parts = self.mask_dim + 2 * self.latent_dim + 2 * self.cond_dim
        rules = {
            f"width {self.dim} is not the sum of its parts, {parts}": self.dim == parts,
            f"{self.heads} heads do not divide width {self.dim} evenly": self.dim % (2 * self.heads) == 0,
            f"latents of {self.latent_dim} and of {self.vae.latent_dim} channels": self.latent_dim
            == self.vae.latent_dim,
            f"silence codes {self.silence_vocal} and {self.silence_bgm} in a codebook of {self.code_size}": max(
                self.silence_vocal, self.silence_bgm
            )
            < self.code_size,
            f"a window of {self.window} frames": self.window >= 4,
        }
        for sentence, holds in rules.items():
            if not holds:
                raise ModelError(
                    f"the codec's sizes do not fit together: {sentence}",
                    where="flow.safetensors and vae.json",
                    fix="use the flow model, the VAE and the silence codes of the same checkpoint",
                )
