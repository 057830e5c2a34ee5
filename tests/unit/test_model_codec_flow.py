"""Layouts and rules of the flow model and the VAE that a golden number alone would not explain."""

import math
from dataclasses import replace

import torch
from golden.codec_golden import case, flow, tensors
from torch import Tensor

from levo.model.codec_config import VAEConfig
from levo.model.estimator import TransposedLinear, rotary_tables, rotate_pairs, sinusoid
from levo.model.flow import Flow, Statistics, solve
from levo.model.vae import VAE


def window() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Codes, context and noise of a golden window."""
    s2 = case("solve", "s2")
    return s2["codes_vocal"][0, 0].long(), s2["codes_bgm"][0, 0].long(), s2["context"][0, :10], s2["noise"][0]


def test_time_zero_is_cosines_of_one_and_sines_of_zero() -> None:
    assert sinusoid(torch.zeros(1), 512)[0].tolist() == [1.0] * 256 + [0.0] * 256


def test_rotary_turns_neighbouring_channels() -> None:
    cos, sin = rotary_tables(2, 4, torch.device("cpu"))
    turned = rotate_pairs(torch.tensor([[[[1.0, 0, 0, 2], [1, 0, 0, 2]]]]), cos, sin)[0, 0]
    slow = 10000 ** (-2 / 4)
    wanted = [math.cos(1), math.sin(1), -2 * math.sin(slow), 2 * math.cos(slow)]
    torch.testing.assert_close(turned, torch.tensor([[1.0, 0, 0, 2], wanted]))


def test_block_weights_are_stored_input_first() -> None:
    layer = TransposedLinear(2, 3)
    layer.load_state_dict({"weight": torch.tensor([[1.0, 2, 3], [10, 20, 30]]), "bias": torch.tensor([0.0, 0, 0.5])})
    assert layer(torch.tensor([1.0, 1.0])).tolist() == [11.0, 22.0, 33.5]


def test_statistics_of_few_items_are_not_used() -> None:
    statistics = Statistics(flow().config)
    statistics.load_state_dict({"counts": torch.tensor([9.0]), "sum_x": torch.ones(10), "sum_x2": torch.ones(10)})
    mean, std = statistics.moments()
    assert mean.tolist() == [0.0] * 10 and std.tolist() == [1.0] * 10


def test_context_frames_come_back_as_they_were_given() -> None:
    vocal, bgm, context, noise = window()
    latents = solve(flow(), vocal, bgm, context, noise, 4, 1.5)
    torch.testing.assert_close(latents[:, :10], context.T, atol=1e-6, rtol=0)


def test_solving_changes_none_of_its_inputs() -> None:
    given = window()
    before = [t.clone() for t in given]
    solve(flow(), *given, 2, 1.5)
    assert all(torch.equal(a, b) for a, b in zip(given, before, strict=True))


def test_guidance_of_one_is_the_conditional_velocity_alone() -> None:
    """Just above 1 both halves run, and give nearly what the conditional one alone gives."""
    vocal, bgm, context, noise = window()
    alone = solve(flow(), vocal, bgm, context, noise, 2, 1.0)
    both = solve(flow(), vocal, bgm, context, noise, 2, 1.0 + 1e-6)
    torch.testing.assert_close(alone, both, atol=1e-4, rtol=0)
    assert not torch.allclose(alone, solve(flow(), vocal, bgm, context, noise, 2, 1.5), atol=1e-2)


def test_half_precision_keeps_the_state_in_float32() -> None:
    half = Flow.from_state(flow().config, tensors("flow_state"), torch.float16)
    assert half.estimator.h[0].attn.c_attn.weight.dtype == torch.float16
    kept = (half.estimator.h[0].ln_1.weight, half.estimator.wpe.weight, half.normfeat.sum_x, half.mask_emb.weight)
    assert all(t.dtype == torch.float32 for t in kept)
    given = window()
    latents, exact = solve(half, *given, 4, 1.5), solve(flow(), *given, 4, 1.5)
    assert latents.dtype == torch.float32
    # float16 has 11 bits: 5e-4 of a value; the latents reach 5, through 4 steps of 3 blocks.
    assert 0 < float((latents - exact).abs().max()) < 0.1


def full_strides_vae() -> VAE:
    """A narrow decoder with the real strides and random weights."""
    config = VAEConfig(4, 2, channels=2, multipliers=(1, 1, 1, 2, 2), strides=(2, 4, 4, 6, 10), sample_rate=48000)
    vae = VAE(config)
    generator = torch.Generator().manual_seed(3)
    for parameter in vae.parameters():
        torch.nn.init.normal_(parameter, std=0.25, generator=generator)
    return vae.requires_grad_(False)


def test_vae_makes_1920_samples_a_frame_at_the_real_strides() -> None:
    assert full_strides_vae().decode(torch.zeros(4, 3)).shape == (2, 3 * 1920)


def test_vae_tiles_with_nine_frames_of_margin_equal_the_whole() -> None:
    vae = full_strides_vae()
    latents = torch.randn(4, 45, generator=torch.Generator().manual_seed(4))
    whole = vae.decode(latents)
    scale = float(whole.abs().max())
    assert float((vae.decode_tiled(latents, 24, 18) - whole).abs().max()) < 1e-5 * scale
    assert float((vae.decode_tiled(latents, 24, 16) - whole).abs().max()) > 1e-4 * scale
    assert torch.equal(vae.decode_tiled(latents, 64, 18), whole)


def test_vae_in_half_precision_gives_float32() -> None:
    vae = full_strides_vae().to(torch.float16)
    assert vae.decode(torch.zeros(4, 3)).dtype == torch.float32


def test_config_is_hashable_and_frozen() -> None:
    config = flow().config
    assert hash(config) == hash(replace(config))
