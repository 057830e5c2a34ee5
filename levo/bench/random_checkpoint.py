"""A checkpoint and a runtime folder in upstream's layout, of random weights: at full size for load times and memory.

Filled fast: every tensor is cut from one pool of normal numbers, scaled. Songs of such a model are noise that ends at
the cap. Knows the layout from levo/model/upstream.py.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor

from levo.errors import ConfigError
from levo.model import upstream, upstream_names
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.config import LMConfig
from levo.model.lm import LYRIC_TABLE, STRUCTURE_TABLE, STYLE_TABLE, unused_tensors
from levo.model.tiny import vae_json
from levo.songs.prompts import GENRES, LANGUAGES
from levo.songs.text import BASE_SPECIALS, STRUCTURE_TAGS, STYLE_TAGS

POOL = 1 << 24
STRUCTURE_ROWS = 200
MAX_POSITIONS = 10000
PROMPTS_A_KIND, PROMPT_FRAMES, CODES = 8, 250, 16384
NAMES = {
    "v2-large": "songgeneration_v2_large",
    "v2-medium": "songgeneration_v2_medium",
    "v1-base": "songgeneration_base",
}

VAE_JSON = vae_json(128, [1, 2, 4, 8, 16], 64)


@dataclass(frozen=True)
class Layout:
    """What a checkpoint and its runtime are made of. lm has names without `audiolm.`; the tokenizer files are bytes."""

    name: str
    config: Mapping[str, Any]
    lm: Mapping[str, Tensor]
    flow: Mapping[str, Tensor]
    vae: Mapping[str, Tensor]
    vae_json: Mapping[str, Any]
    tokenizer: Mapping[str, bytes]
    prompts: Mapping[str, Any]


def write_layout(out: Path, layout: Layout) -> tuple[Path, Path]:
    """Write OUT/NAME and OUT/runtime; returns both."""
    checkpoint, runtime = out / layout.name, out / "runtime"
    paths = (upstream.FLOW, upstream.VAE_WEIGHTS, upstream.VOCABULARY, upstream.TAGS, upstream.PROMPTS)
    for folder in (checkpoint, *((runtime / path).parent for path in paths)):
        folder.mkdir(parents=True, exist_ok=True)
    (checkpoint / "config.yaml").write_text(config_text(layout.config), encoding="utf-8")
    torch.save({f"{upstream.PREFIX}{name}": tensor for name, tensor in layout.lm.items()}, checkpoint / "model.pt")
    save_file(dict(layout.flow), runtime / upstream.FLOW)
    torch.save({"state_dict": dict(layout.vae)}, runtime / upstream.VAE_WEIGHTS)
    (runtime / upstream.VAE_JSON).write_text(json.dumps(layout.vae_json), encoding="utf-8")
    for name, content in layout.tokenizer.items():
        (runtime / upstream.VOCABULARY).with_name(name).write_bytes(content)
    (runtime / upstream.TAGS).write_text(yaml.safe_dump(list(STRUCTURE_TAGS)), encoding="utf-8")
    torch.save(dict(layout.prompts), runtime / upstream.PROMPTS)
    return checkpoint, runtime


def config_text(config: Mapping[str, Any]) -> str:
    """config.yaml with what the released files leave to their resolvers."""
    written: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(config)))
    conditioners = written["conditioners"]
    conditioners["description"]["QwTokenizer"]["add_token_list"] = f"${{load_yaml:{upstream.TAGS}}}"
    conditioners["prompt_audio"]["qt_embedding"]["max_len"] = "${eval:${prompt_len}*${audio_tokenizer_frame_rate}+2}"
    return yaml.safe_dump(written, sort_keys=False)


def write_random(out: Path, size: str, vocabulary: Path, seed: int = 0) -> tuple[Path, Path]:
    """A full-size checkpoint of random weights. vocabulary: folder with Qwen2's vocab.json and merges.txt.

    Needs the size of the checkpoint in memory (v2-large 12 GB). Raises ConfigError for an unknown size.
    """
    if size not in upstream.TESTED:
        raise ConfigError(f"no size {size!r}", where="--size", fix=f"use one of {', '.join(upstream.TESTED)}")
    version = upstream.TESTED[size][0]
    config = full_config(size)
    lm_config, vae_config = LMConfig.from_upstream(config), VAEConfig.from_upstream(VAE_JSON)
    fill = Fill(seed)
    tagged = upstream.QWEN2_WORDS + len(BASE_SPECIALS)
    rows = {
        LYRIC_TABLE: [tagged + len(STRUCTURE_TAGS)],
        STYLE_TABLE: [tagged + (len(STYLE_TAGS) if version == "v2" else 0)],
        STRUCTURE_TABLE: [STRUCTURE_ROWS],
    }
    lm = upstream_names.lm_shapes(lm_config, rows) | unused_tensors(lm_config)
    flow = upstream_names.flow_shapes(full_codec(vae_config)) | {"bestrq.some.weight": (64, 64)}
    vae = upstream_names.vae_shapes(vae_config) | {"encoder.layers.0.bias": (128,)}
    layout = Layout(
        name=NAMES[size],
        config=config,
        lm={name: fill.tensor(name, shape, _released_dtype(name)) for name, shape in lm.items()},
        flow={name: fill.tensor(name, shape) for name, shape in flow.items()},
        vae={name: fill.tensor(name, shape) for name, shape in vae.items()},
        vae_json=VAE_JSON,
        tokenizer={name: (vocabulary / name).read_bytes() for name in ("vocab.json", "merges.txt")},
        prompts=random_prompts(PROMPT_FRAMES, CODES, seed),
    )
    return write_layout(out, layout)


def full_config(size: str) -> dict[str, Any]:
    """Upstream's config keys with the values of a released size."""
    _, dim, inner, heads, layers, layers_sub, theta, theta_sub, lyric, style = upstream.TESTED[size]
    return {
        "max_dur": 150 if size == "v1-base" else 270,
        "min_dur": 30,
        "prompt_len": PROMPT_FRAMES // 25,
        "sample_rate": 48000,
        "audio_tokenizer_frame_rate": 25,
        "lm": {
            "lm_type": "Llama",
            "dim": dim,
            "intermediate_size": inner,
            "num_heads": heads,
            "num_layers": layers,
            "num_layers_sub": layers_sub,
            "code_depth": 3,
            "code_size": CODES,
            "max_position_embeddings": MAX_POSITIONS,
            "max_position_embeddings_sub": MAX_POSITIONS,
            "rope_theta": theta,
            "rope_theta_sub": theta_sub,
        },
        "codebooks_pattern": {
            "modeling": "delay",
            "delay": {"delays": [0, 250, 250], "flatten_first": 0, "empty_initial": 0},
        },
        "classifier_free_guidance": {"inference_coef": 1.5},
        "fuser": {"sum": [], "prepend": ["description", "prompt_audio", "type_info"]},
        "conditioners": {
            "prompt_audio": {"model": "qt_embedding", "qt_embedding": {"max_len": PROMPT_FRAMES + 2}},
            "description": {"model": "QwTokenizer", "QwTokenizer": {"max_len": lyric}},
            "type_info": {"model": "QwTextTokenizer", "QwTextTokenizer": {"max_len": style}},
        },
    }


def full_codec(vae: VAEConfig) -> CodecConfig:
    """Shapes of the released flow model (facts/vocoder.md section 3)."""
    return CodecConfig(
        mask_dim=24,
        latent_dim=64,
        cond_dim=1024,
        code_size=CODES,
        code_dim=32,
        dim=2200,
        heads=upstream.UPSTREAM_HEADS,
        layers=16,
        inner_dim=4400,
        time_dim=512,
        window=1000,
        silence_vocal=upstream.UPSTREAM_SILENCE_VOCAL,
        silence_bgm=upstream.UPSTREAM_SILENCE_BGM,
        vae=vae,
    )


def random_prompts(frames: int, codes: int, seed: int) -> dict[str, dict[str, list[Tensor]]]:
    """Automatic prompts in upstream's structure: genre -> language -> integer tensors [1, 3, frames]."""
    generator = torch.Generator().manual_seed(seed)
    return {
        genre: {
            language: [torch.randint(codes, (1, 3, frames), generator=generator) for _ in range(PROMPTS_A_KIND)]
            for language in LANGUAGES
        }
        for genre in GENRES
    }


class Fill:
    """Tensors cut from one pool of normal numbers, one behind the other, each scaled to its part."""

    def __init__(self, seed: int) -> None:
        self.pool = torch.randn(POOL, generator=torch.Generator().manual_seed(seed))
        self.start = 0

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Values that keep what a layer gives near 1."""
        value = fixed_value(name)
        if value is not None:
            return torch.full(shape, value, dtype=dtype)
        out = torch.empty(math.prod(shape), dtype=dtype)
        at = 0
        while at < len(out):
            piece = self.pool[self.start : self.start + len(out) - at]
            out[at : at + len(piece)] = piece
            at, self.start = at + len(piece), (self.start + len(piece)) % (POOL - 7919)
        return out.mul_(spread(name, shape)).reshape(shape)


def fixed_value(name: str) -> float | None:
    """What all of a tensor is; None for one of random numbers."""
    if name == "normfeat.sum_x":
        return 0.0
    if name in ("normfeat.counts", "normfeat.sum_x2"):
        return 2e5
    if name.endswith("weight") and ("norm" in name or ".ln_" in name):
        return 1.0
    return 0.5 if name.endswith(("weight_g", "alpha")) else None


def spread(name: str, shape: tuple[int, ...]) -> float:
    """Standard deviation of a tensor of random numbers."""
    if name.endswith(("bias", "beta")) or "table" in name or "wpe" in name:
        return 0.02
    if name.startswith(("emb.", "layer2_emb.", "mask_emb.", "condition_provider.")) or "codebook" in name:
        return 0.5
    fan_in = shape[0] if ".h." in name else math.prod(shape[1:])
    return 1.0 / math.sqrt(fan_in)


def _released_dtype(name: str) -> torch.dtype:
    """The released v2-large has 2.5 bytes a parameter: some tensors are float32 and most are not."""
    return torch.float16 if ".layers." in name else torch.float32
