"""A whole model at the released size with random weights, made on the device in seconds: what an end-to-end bench runs.

Lyrics are read by a byte-level tokenizer (the tiny model's), so that songs begin as text here too.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from levo.bench.random_checkpoint import VAE_JSON, fixed_value, full_codec, spread
from levo.bench.sizes import random_lm, v2_large
from levo.model import tiny
from levo.model.checkpoint import Model
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.config import LMConfig, ModelConfig
from levo.model.flow import Flow
from levo.model.upstream_names import flow_shapes, vae_shapes
from levo.model.vae import VAE
from levo.songs.text import TextEncoder, TextLimits

LOUDNESS = 0.1  # RMS of the samples: a quiet song would be packed and hashed too fast
NAME = "random weights, v2-large"


def random_model(device: torch.device, dtype: torch.dtype) -> tuple[Model, TextEncoder]:
    """The released v2-large; no song ends before its cap."""
    return random_model_of(v2_large(), full_codec(VAEConfig.from_upstream(VAE_JSON)), device, dtype)


def random_model_of(
    config: LMConfig, codec: CodecConfig, device: torch.device, dtype: torch.dtype
) -> tuple[Model, TextEncoder]:
    """The same at other sizes."""
    encoder = _encoder(config)
    lm = random_lm(config, device, dtype, endless=True)
    flow, vae = random_codec(codec, device, dtype)
    both = ModelConfig(config, codec)
    return Model(NAME, "0" * 64, both, encoder.pad_id, device, dtype, lm, flow, vae), encoder


def random_codec(config: CodecConfig, device: torch.device, dtype: torch.dtype) -> tuple[Flow, VAE]:
    """Flow and VAE with weights that keep every layer near 1, and songs at LOUDNESS. dtype: of the flow's products."""
    flow = Flow.from_state(config, _state(flow_shapes(config), device), dtype).eval().requires_grad_(False)
    vae = VAE.from_state(config.vae, _state(vae_shapes(config.vae), device)).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(1)
    some = torch.randn(config.latent_dim, 50, generator=generator, device=device)
    last = [part for part in vae.modules() if isinstance(part, nn.Conv1d)][-1]
    factor = LOUDNESS / float(vae.decode(some).square().mean().sqrt())
    last.weight.mul_(float(f"{factor:.2g}"))  # rounded: a convolution's last bits may differ between two runs
    return flow, vae


def _state(shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    return {name: _tensor(name, shape, generator) for name, shape in shapes.items()}


def _tensor(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """As random_checkpoint fills it, from the device's own numbers."""
    value = fixed_value(name)
    if value is not None:
        return torch.full(shape, value, device=generator.device)
    return torch.randn(shape, generator=generator, device=generator.device).mul_(spread(name, shape))


def _encoder(config: LMConfig) -> TextEncoder:
    limits = TextLimits(
        "v2", config.lyric_len, config.style_len, config.max_seconds, config.prompt_frames, config.code_size
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, content in tiny.tokenizer().items():
            (Path(folder) / name).write_bytes(content)
        return TextEncoder.of_files(Path(folder), limits)
