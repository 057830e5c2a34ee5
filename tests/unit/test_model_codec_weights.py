"""Loading the codec: every tensor of the real files by name and shape, weight norm, and refusals that say why."""

import copy
from typing import Any

import pytest
import torch
from golden.codec_golden import flow, read_json, tensors, vae
from torch import Tensor, nn

from levo.errors import ModelError
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.codec_weights import fold_weight_norm
from levo.model.flow import Flow
from levo.model.vae import VAE

FULL = read_json("full_keys.json")


def meta_state(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}


def n_values(module: nn.Module) -> int:
    return sum(t.numel() for t in module.state_dict().values())


def full_config() -> CodecConfig:
    return CodecConfig.from_upstream(FULL["flow"]["needed_for_codes_to_latents"], full_vae_config())


def full_vae_config() -> VAEConfig:
    return VAEConfig.from_upstream(FULL["vae"]["config"])


def test_full_size_config_is_the_one_of_the_fact_sheet() -> None:
    config = full_config()
    assert (config.mask_dim, config.latent_dim, config.cond_dim, config.dim) == (24, 64, 1024, 2200)
    assert (config.layers, config.heads, config.head_dim, config.inner_dim) == (16, 20, 110, 4400)
    assert (config.window, config.hop, config.overlap) == (1000, 750, 250)
    assert (config.code_size, config.code_dim, config.time_dim) == (16384, 32, 512)
    assert (config.silence_vocal, config.silence_bgm) == (3142, 9670)
    assert (config.vae.samples_per_frame, config.vae.sample_rate) == (1920, 48000)


def test_full_size_flow_takes_every_tensor_of_the_released_file() -> None:
    needed = FULL["flow"]["needed_for_codes_to_latents"]
    assert len(needed) == FULL["flow"]["needed_tensor_count"] == 233
    ignored = FULL["flow"]["in_the_module_but_not_needed"]
    others = {"bestrq.model.x": [3], "hubert.y": [3], "rsp48toclap.kernel": [1], "rsq48tohubert.kernel": [1]}
    loaded = Flow.from_state(full_config(), meta_state(needed | ignored | others))
    assert n_values(loaded) == 663_310_785


def test_full_size_vae_takes_every_tensor_of_the_released_file() -> None:
    decoder = FULL["vae"]["decoder"]
    assert len(decoder) == 182
    loaded = VAE.from_state(full_vae_config(), meta_state(decoder | {"encoder.layers.0.bias": [128]}))
    assert len(loaded.state_dict()) == 145
    assert n_values(loaded) == 84_395_776


def test_weight_norm_runs_over_all_axes_but_the_first() -> None:
    v = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[0.0, 2.0], [0.0, 0.0]]], dtype=torch.float16)
    folded = fold_weight_norm({"up.weight_g": torch.tensor([10.0, 1.0]).view(2, 1, 1), "up.weight_v": v})
    assert folded["up.weight"].tolist() == [[[6.0, 0.0], [0.0, 8.0]], [[0.0, 1.0], [0.0, 0.0]]]
    assert folded["up.weight"].dtype == torch.float32


def test_missing_unknown_and_misshapen_tensors_are_named() -> None:
    state = dict(tensors("flow_state"))
    del state["mask_emb.weight"]
    with pytest.raises(ModelError, match=r"1 missing: mask_emb.weight"):
        Flow.from_state(flow().config, state)
    state = tensors("vae_state") | {"decoder.layers.9.bias": torch.zeros(1)}
    with pytest.raises(ModelError, match=r"1 unknown: decoder.layers.9.bias"):
        VAE.from_state(vae().config, state)
    state = tensors("flow_state") | {"zero_cond_embedding1": torch.zeros(3)}
    with pytest.raises(ModelError, match=r"zero_cond_embedding1 \(3,\) instead of \(16,\)"):
        Flow.from_state(flow().config, state)


@pytest.mark.parametrize("half", ["weight_g", "weight_v"])
def test_half_a_weight_norm_pair_is_refused(half: str) -> None:
    state = dict(tensors("vae_state"))
    del state[f"decoder.layers.0.{half}"]
    with pytest.raises(ModelError, match=f"without decoder.layers.0.{half}"):
        VAE.from_state(vae().config, state)


def test_half_precision_tensors_become_float32_masters() -> None:
    state = {name: t.half() for name, t in tensors("flow_state").items()}
    assert all(t.dtype == torch.float32 for t in Flow.from_state(flow().config, state).state_dict().values())


def changed(path: str, value: Any) -> dict[str, Any]:
    config: dict[str, Any] = copy.deepcopy(read_json("vae_config.json"))
    *parents, last = path.split(".")
    inner = config
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("model.decoder.config.strides", [2, 4, 5], "strides"),
        ("model.downsampling_ratio", 64, "downsampling_ratio 64"),
        ("model.decoder.config.final_tanh", True, "decoder of kind"),
        ("model.decoder.type", "dac", "decoder of kind"),
        ("model.decoder.config.c_mults", [1, 2], "differ in length"),
        ("model.decoder", {}, "cannot be read"),
    ],
)
def test_other_vaes_are_refused(path: str, value: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        VAEConfig.from_upstream(changed(path, value))


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    shapes = {name: tuple(t.shape) for name, t in tensors("flow_state").items()}
    with pytest.raises(ModelError, match="5 heads"):
        CodecConfig.from_upstream(shapes, vae().config, heads=5, silence_vocal=0, silence_bgm=0)
    with pytest.raises(ModelError, match="codebook of 64"):
        CodecConfig.from_upstream(shapes, vae().config, heads=4)
    with pytest.raises(ModelError, match="not the sum"):
        CodecConfig.from_upstream(shapes | {"mask_emb.weight": (3, 5)}, vae().config, 4, 0, 0)
    with pytest.raises(ModelError, match="no usable tensor mask_emb.weight"):
        CodecConfig.from_upstream({}, vae().config)
