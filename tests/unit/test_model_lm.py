"""The language model's shapes, names and single operations."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from levo.errors import ModelError
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.config import LMConfig, ModelConfig
from levo.model.lm import LM, RMSNorm, causal_attend, rope_tables, rotate, unused_tensors

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "lm" / "meta.json"


def upstream_config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))["config"]
    return found


def v2_large() -> dict[str, Any]:
    """Upstream's config of the released large model (facts/lm.md section 1)."""
    config = upstream_config()
    config |= {"max_dur": 270, "prompt_len": 10, "audio_tokenizer_frame_rate": 25}
    config["lm"] |= {"dim": 2048, "intermediate_size": 11008, "num_heads": 16, "num_layers": 36, "num_layers_sub": 12,
                     "code_size": 16384, "rope_theta": 500000, "rope_theta_sub": 500000}  # fmt: skip
    config["codebooks_pattern"]["delay"]["delays"] = [0, 250, 250]
    config["conditioners"]["description"]["QwTokenizer"]["max_len"] = 600
    config["conditioners"]["prompt_audio"]["qt_embedding"] = {"code_size": 16384, "code_depth": 3, "max_len": 252}
    config["conditioners"]["type_info"]["QwTextTokenizer"]["max_len"] = 100
    return config


def small_lm(seed: int = 0) -> LM:
    torch.manual_seed(seed)
    return LM(LMConfig.from_upstream(upstream_config()), lyric_rows=66, style_rows=59).requires_grad_(False)


def test_full_size_has_the_released_models_parameters() -> None:
    config = LMConfig.from_upstream(v2_large())
    with torch.device("meta"):
        lm = LM(config, lyric_rows=151659, style_rows=151652)
    used = sum(p.numel() for p in lm.parameters())
    unused = sum(torch.Size(shape).numel() for shape in unused_tensors(config).values())
    assert len(lm.state_dict()) == 452
    assert used == 4_988_100_608  # what a public port of the released model counts at run time
    assert (used + unused) / 1e9 == pytest.approx(5.122, abs=5e-4)


def test_full_size_positions() -> None:
    config = LMConfig.from_upstream(v2_large())
    assert (config.prefix_len, config.prompt_frames, config.max_frames) == (952, 250, 6750)
    assert (config.eos, config.special, config.max_delay, config.head_dim) == (16384, 16385, 250, 128)


def test_missing_config_key_is_named() -> None:
    config = upstream_config()
    del config["conditioners"]["type_info"]["QwTextTokenizer"]
    with pytest.raises(ModelError, match="conditioners.type_info.QwTextTokenizer.max_len"):
        LMConfig.from_upstream(config)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("fuser", "prepend", ["prompt_audio", "description", "type_info"]),
        ("codebooks_pattern", "modeling", "parallel"),
        ("lm", "code_depth", 1),
        ("lm", "num_heads", 5),
    ],
)
def test_config_of_another_network_is_refused(section: str, key: str, value: Any) -> None:
    config = copy.deepcopy(upstream_config())
    config[section][key] = value
    with pytest.raises(ModelError):
        LMConfig.from_upstream(config)


def test_codec_with_fewer_codes_than_the_language_model_is_refused() -> None:
    vae = VAEConfig(10, 2, 4, (1, 2), (2, 4), 200)
    codec = CodecConfig(4, 10, 16, 63, 8, 56, 4, 3, 112, 24, 40, 31, 47, vae)
    lm = LMConfig.from_upstream(upstream_config())
    with pytest.raises(ModelError, match="64 audio codes, but the codec knows 63"):
        ModelConfig(lm, codec)
    assert ModelConfig(lm, replace(codec, code_size=64)).vae is vae


def test_state_is_taken_with_and_without_the_unused_tensors() -> None:
    lm = small_lm()
    state = lm.state_dict()
    assert set(LM.from_state(lm.config, state).state_dict()) == set(state)
    more = state | {name: torch.zeros(shape) for name, shape in unused_tensors(lm.config).items()}
    assert set(LM.from_state(lm.config, more).state_dict()) == set(state)


def test_wrong_state_names_every_kind_of_trouble() -> None:
    lm = small_lm()
    state = dict(lm.state_dict())
    del state["transformer.lm_head.weight"]
    state["transformer.model.layers.9.norm"] = torch.zeros(1)
    state["mlp.0.bias"] = torch.zeros(3)
    with pytest.raises(ModelError) as caught:
        LM.from_state(lm.config, state)
    for part in ("1 missing: transformer.lm_head", "1 unknown: transformer.model.layers.9", "mlp.0.bias (3,)"):
        assert part in str(caught.value)


def test_missing_text_table_is_named() -> None:
    lm = small_lm()
    name = "condition_provider.conditioners.type_info.output_proj.weight"
    state = {n: t for n, t in lm.state_dict().items() if n != name}
    with pytest.raises(ModelError, match=f"1 missing: {name}"):
        LM.from_state(lm.config, state)


def test_norm_rounds_before_the_weight() -> None:
    """In fp16 x / rms is rounded first; one rounding at the end would give other bits."""
    torch.manual_seed(0)
    norm = RMSNorm(64, 1e-5).half().requires_grad_(False)
    norm.weight.copy_(torch.randn(64))
    x = torch.randn(32, 64).half()
    scaled = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(norm(x), scaled.half() * norm.weight)
    assert not torch.equal(norm(x), (scaled * norm.weight.float()).half())


def test_rotation_turns_first_half_with_second_half() -> None:
    """Position 0 is left alone; at position p pair i turns by p / theta^(2 i / hd), lengths kept."""
    cos, sin = rope_tables(torch.tensor([0, 3]), 4, 10000.0, torch.float32)
    x = torch.tensor([[[1.0, 0.0, 0.0, 2.0]]]).expand(2, 1, 4)
    turned = rotate(x, cos, sin)
    angles = torch.tensor([3.0, 3.0 / 100])
    wanted = torch.stack([angles[0].cos(), -2 * angles[1].sin(), angles[0].sin(), 2 * angles[1].cos()])
    assert torch.equal(turned[0], x[0])
    assert torch.allclose(turned[1, 0], wanted, atol=1e-6)


def test_rope_angles_are_computed_in_float32_for_fp16() -> None:
    """A position above 2048 is not a whole fp16 number: tables made in fp16 would be wrong."""
    positions = torch.tensor([2049, 7951])
    exact = rope_tables(positions, 8, 500000.0, torch.float32)
    half = rope_tables(positions, 8, 500000.0, torch.float16)
    assert all(torch.equal(h, e.half()) for h, e in zip(half, exact, strict=True))


def test_attention_never_sees_the_future() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 7, 2, 4)
    whole = causal_attend(q, k, v)
    k[5:], v[5:] = 100.0, 100.0
    assert torch.equal(causal_attend(q, k, v)[:5], whole[:5])


def test_attention_of_the_last_queries_equals_their_part_of_the_whole() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 7, 2, 4)
    assert torch.allclose(causal_attend(q[-2:], k, v), causal_attend(q, k, v)[-2:], atol=1e-6)


def test_codebook_0_does_not_read_codebooks_1_and_2() -> None:
    """The main transformer's input is codebook 0 alone; the sub transformer puts the embeddings before the hidden."""
    lm = small_lm()
    hidden = torch.randn(3, lm.config.dim)
    a, b = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 65])
    x2 = lm.layer2_emb["1"].weight[a] + lm.layer2_emb["2"].weight[b]
    assert torch.equal(lm.main_input(a), lm.emb[0].weight[a])
    assert torch.equal(lm.sub_input(a, b, hidden), lm.mlp(torch.cat([x2, hidden], dim=-1)))
    assert lm.heads12(hidden).shape == (3, 2, 65)
