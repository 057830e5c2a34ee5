"""Shapes of a model, read from upstream's own config keys. Knows no tensors and no files.

The caller gives config.yaml as a plain dict with resolved values. Text vocabulary sizes do not stand in it: they are
the row counts of the weights (the lyric and the style table differ between model versions).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from levo.errors import ModelError
from levo.model.codec_config import CodecConfig, VAEConfig

RMS_EPS = 1e-5  # fixed in upstream's code, not a config key (facts/lm.md section 1)
PREFIX_ORDER = ["description", "prompt_audio", "type_info"]  # lyrics, audio prompt, style


@dataclass(frozen=True)
class LMConfig:
    """Shapes and constants of the language model.

    lyric_len, prompt_len and style_len are positions of the prefix (600, 252, 100 in v2-large); max_seconds is the
    longest song; frame_rate is frames a second.
    """

    dim: int
    intermediate_size: int
    num_heads: int
    head_dim: int
    num_layers: int
    num_layers_sub: int
    code_size: int
    code_depth: int
    rope_theta: float
    rope_theta_sub: float
    delays: tuple[int, ...]
    cfg_coef: float
    lyric_len: int
    prompt_len: int
    style_len: int
    frame_rate: int
    max_seconds: float
    eps: float = RMS_EPS

    @property
    def eos(self) -> int:
        """Id that ends a codebook; the heads can give it."""
        return self.code_size

    @property
    def special(self) -> int:
        """Id of unfilled, absent and after-the-end cells; the heads cannot give it."""
        return self.code_size + 1

    @property
    def max_delay(self) -> int:
        """Steps between a frame of codebook 0 and the same frame of the last codebook."""
        return max(self.delays)

    @property
    def prefix_len(self) -> int:
        """P, the positions before step 0 of every song."""
        return self.lyric_len + self.prompt_len + self.style_len

    @property
    def prompt_frames(self) -> int:
        """Frames of an audio prompt: its positions less the learned start vector and the leading EOS."""
        return self.prompt_len - 2

    @property
    def max_frames(self) -> int:
        """Frames of the longest song."""
        return int(self.max_seconds * self.frame_rate)

    @classmethod
    def from_upstream(cls, config: Mapping[str, Any]) -> "LMConfig":
        """Read upstream's config. Raises ModelError with the key that is missing, or that means another model."""
        _refuse_other_models(config)
        dim, heads = int(_get(config, "lm.dim")), int(_get(config, "lm.num_heads"))
        if dim % heads or (dim // heads) % 2:
            raise ModelError(f"lm.dim {dim} does not give an even head size with {heads} heads", where="config.yaml")
        found = cls(
            dim=dim,
            intermediate_size=int(_get(config, "lm.intermediate_size")),
            num_heads=heads,
            head_dim=dim // heads,
            num_layers=int(_get(config, "lm.num_layers")),
            num_layers_sub=int(_get(config, "lm.num_layers_sub")),
            code_size=int(_get(config, "lm.code_size")),
            code_depth=int(_get(config, "lm.code_depth")),
            rope_theta=float(_get(config, "lm.rope_theta")),
            rope_theta_sub=float(_get(config, "lm.rope_theta_sub")),
            delays=tuple(int(d) for d in _get(config, "codebooks_pattern.delay.delays")),
            cfg_coef=float(_get(config, "classifier_free_guidance.inference_coef")),
            lyric_len=int(_get(config, "conditioners.description.QwTokenizer.max_len")),
            prompt_len=int(_get(config, "conditioners.prompt_audio.qt_embedding.max_len")),
            style_len=int(_get(config, "conditioners.type_info.QwTextTokenizer.max_len")),
            frame_rate=int(_get(config, "audio_tokenizer_frame_rate")),
            max_seconds=float(_get(config, "max_dur")),
        )
        if found.code_depth != 3 or len(found.delays) != 3 or found.delays[0] != 0:
            raise ModelError(
                f"{found.code_depth} codebooks with delays {list(found.delays)}",
                where="config.yaml",
                fix="use a model with three codebooks of which the first has no delay",
            )
        return found


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of a whole model. Raises ModelError when the codec has no place for an id of the language model."""

    lm: LMConfig
    codec: CodecConfig

    def __post_init__(self) -> None:
        if self.lm.code_size > self.codec.code_size:
            raise ModelError(
                f"{self.lm.code_size} audio codes, but the codec knows {self.codec.code_size}",
                where="config.yaml and codec/flow.safetensors",
                fix="use the language model and the codec of the same checkpoint",
            )

    @property
    def vae(self) -> VAEConfig:
        """Shapes of the codec's VAE."""
        return self.codec.vae


def _get(config: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path. Raises ModelError with the whole path when a part is missing."""
    value: Any = config
    for name in path.split("."):
        if not isinstance(value, Mapping) or value.get(name) is None:
            raise ModelError(f"key {path} is missing", where="config.yaml", fix="use the config.yaml of the checkpoint")
        value = value[name]
    return value


def _refuse_other_models(config: Mapping[str, Any]) -> None:
    """Settings that upstream knows but that would make another network than the one built here."""
    wanted = {
        "lm.lm_type": "Llama",
        "codebooks_pattern.modeling": "delay",
        "codebooks_pattern.delay.flatten_first": 0,
        "codebooks_pattern.delay.empty_initial": 0,
        "fuser.prepend": PREFIX_ORDER,
    }
    for path, value in wanted.items():
        found = _get(config, path)
        if found != value:
            raise ModelError(
                f"{path} is {found!r}, this program knows {value!r} only",
                where="config.yaml",
                fix="use a LeVo or LeVo 2 checkpoint with three codebooks",
            )
