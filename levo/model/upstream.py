"""What a user holds: a checkpoint folder and the runtime folder, found, opened and checked. Writes nothing.

    CHECKPOINT/config.yaml
    CHECKPOINT/model.pt                                    or model.safetensors[.index.json]
    RUNTIME/ckpt/model_septoken/model_2.safetensors        flow model (decoder side of the codec)
    RUNTIME/ckpt/vae/autoencoder_music_1320k.ckpt          VAE, and stable_audio_1920_vae.json
    RUNTIME/third_party/Qwen2-7B/vocab.json, merges.txt    tokenizer
    RUNTIME/conf/vocab.yaml                                structure tags; if absent, the 13 known ones
    RUNTIME/tools/new_auto_prompt.pt                       automatic prompts; if absent, the model has none
Below RUNTIME the leading folder may be missing, and what is not there is looked for in CHECKPOINT too.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levo.errors import ModelError
from levo.model import upstream_names as names
from levo.model.codec_config import (
    UPSTREAM_HEADS,
    UPSTREAM_SILENCE_BGM,
    UPSTREAM_SILENCE_VOCAL,
    CodecConfig,
    VAEConfig,
)
from levo.model.config import LMConfig
from levo.model.lm import LYRIC_TABLE, STYLE_TABLE
from levo.model.tensor_source import TensorSource
from levo.model.upstream_config import UpstreamConfig
from levo.songs.text import BASE_SPECIALS, STRUCTURE_TAGS, STYLE_TAGS, TextEncoder, TextLimits

PREFIX = "audiolm."
V1_NAMES = ("songgeneration_base", "songgeneration_base_new", "songgeneration_base_full", "songgeneration_large")
V1_LIMITS, V2_LIMITS = (300, 50), (600, 100)
WEIGHTS = ("model.pt", "model.safetensors", "model.safetensors.index.json")
FLOW = "ckpt/model_septoken/model_2.safetensors"
VAE_WEIGHTS, VAE_JSON = "ckpt/vae/autoencoder_music_1320k.ckpt", "ckpt/vae/stable_audio_1920_vae.json"
VOCABULARY, MERGES = "third_party/Qwen2-7B/vocab.json", "third_party/Qwen2-7B/merges.txt"
TAGS, PROMPTS = "conf/vocab.yaml", "tools/new_auto_prompt.pt"

QWEN2_WORDS = 151643
QWEN2_VOCABULARY = "36c3749fd3c87e2402f612459b45ae4e6ce5488a3ecde47a8a3ea3ed3d5dda5a"
"""sha256 of Qwen2's BPE entries in the order of their ids, one a line."""
PROBE = "[verse] Salt on the window 潮水带走我的名字 don't 123 ; [chorus] Überall"
PROBE_IDS = (
    *(151644, 151646, 27040, 389, 279, 3241, 6567, 121, 106, 52510, 111046, 97611, 101419, 1513, 944),
    *(220, 16, 17, 18, 2587, 220, 151647, 49371, 541),
)
"""Ids of PROBE, in v1 and v2: shows that the merges belong to the vocabulary."""

# dim, intermediate_size, num_heads, num_layers, num_layers_sub, rope_theta, rope_theta_sub, lyric and style tokens
TESTED = {
    "v2-large": ("v2", 2048, 11008, 16, 36, 12, 500000.0, 500000.0, *V2_LIMITS),
    "v2-medium": ("v2", 1536, 8960, 12, 28, 12, 500000.0, 500000.0, *V2_LIMITS),
    "v1-base": ("v1", 1536, 8960, 12, 28, 12, 100000.0, 500000.0, *V1_LIMITS),
}


@dataclass(frozen=True)
class CodecConstants:
    """What upstream keeps in its code and not in a file. Only models made for tests have other values."""

    heads: int = UPSTREAM_HEADS
    silence_vocal: int = UPSTREAM_SILENCE_VOCAL
    silence_bgm: int = UPSTREAM_SILENCE_BGM


UPSTREAM_CODEC = CodecConstants()


@dataclass(frozen=True)
class Upstream:
    """A checkpoint that fits: every tensor that is needed is there in its shape, and the tokenizer belongs to it.

    size: its name in TESTED, or None.  notes: sentences that the user should read.  files: all that was opened.
    """

    name: str
    size: str | None
    config: dict[str, Any]
    lm_config: LMConfig
    codec: CodecConfig
    text: TextLimits
    vae_config: dict[str, Any]
    lm: TensorSource
    flow: TensorSource
    vae: TensorSource
    config_file: Path
    tokenizer: dict[str, Path]
    prompts: Path | None
    notes: tuple[str, ...]

    @property
    def files(self) -> list[Path]:
        """Every file that the conversion depends on, config first."""
        return [self.config_file, *self.lm.files, *self.flow.files, *self.vae.files, *self.tokenizer.values(),
                *([self.prompts] if self.prompts else [])]  # fmt: skip


def open_upstream(checkpoint: Path, runtime: Path, codec: CodecConstants = UPSTREAM_CODEC) -> Upstream:
    """Find, open and check everything. Raises ModelError that says what is missing, extra, or does not fit."""
    places = _Places(checkpoint, runtime)
    notes: list[str] = []
    config = UpstreamConfig(_need(checkpoint / "config.yaml"), runtime)
    plain = config.plain()
    lm_config = LMConfig.from_upstream(plain)
    _check_tags(config, places, notes)
    lm = _language_model(checkpoint, lm_config, notes)
    tokenizer = {"vocab.json": places.need(VOCABULARY), "merges.txt": places.need(MERGES)}
    text = _text_limits(lm_config, lm, tokenizer["vocab.json"].parent)
    _check_version(checkpoint.resolve().name, lm_config, text)
    vae_config = _read_json(places.need(VAE_JSON))
    vae_sizes = VAEConfig.from_upstream(vae_config)
    flow = TensorSource(places.flow(config))
    codec_config = CodecConfig.from_upstream(
        flow.shapes, vae_sizes, codec.heads, codec.silence_vocal, codec.silence_bgm
    )
    vae = TensorSource(places.need(VAE_WEIGHTS))
    for source, wanted in ((flow, names.flow_shapes(codec_config)), (vae, names.vae_shapes(vae_sizes))):
        # The codec's files hold much that only encoding and training need; what is needed must be there.
        names.compare(wanted, {key: source.shapes[key] for key in wanted if key in source.shapes}, str(source.path), {})
    prompts = places.find(PROMPTS)
    if prompts is None:
        notes.append(f"no {PROMPTS}: the model has no automatic prompts")
    size = _size(lm_config, text)
    if size is None:
        notes.append("untested: the keys and shapes fit, but this checkpoint is none of " + ", ".join(TESTED))
    return Upstream(
        checkpoint.resolve().name, size, plain, lm_config, codec_config, text, vae_config, lm, flow, vae, config.path,
        tokenizer, prompts, tuple(notes),
    )  # fmt: skip


class _Places:
    """Where a file of the runtime may lie."""

    def __init__(self, checkpoint: Path, runtime: Path) -> None:
        self.roots = (runtime, checkpoint)

    def find(self, name: str) -> Path | None:
        shorter = name.partition("/")[2]
        candidates = [root / part for root in self.roots for part in (name, shorter)]
        return next((path for path in candidates if path.is_file()), None)

    def need(self, name: str) -> Path:
        found = self.find(name)
        if found is None:
            raise ModelError(
                f"{name} is missing",
                where=" and ".join(map(str, self.roots)),
                fix="give with --runtime the folder of upstream's runtime, with ckpt/ and third_party/ in it",
            )
        return found

    def flow(self, config: UpstreamConfig) -> Path:
        """The file that the config names, if it is there; else where it lies in the released runtime."""
        named = config.get("audio_tokenizer_checkpoint_sep")
        path = str(named).partition("_")[2].removeprefix("./") if named else ""
        return (self.find(path) if path else None) or self.need(FLOW)


def _need(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(
            f"{path.name} is missing", where=str(path.parent), fix="give the checkpoint's folder with --checkpoint"
        )
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"not readable as JSON: {error}", where=str(path), fix="copy the file again") from None
    if not isinstance(found, dict):
        raise ModelError("not a JSON object", where=str(path), fix="copy the file again")
    return found


def _check_tags(config: UpstreamConfig, places: _Places, notes: list[str]) -> None:
    """The structure tags of the config must be the known ones, in their order: their ids follow from it."""
    if places.find(TAGS) is None:
        notes.append(f"no {TAGS}: the 13 known structure tags are taken")
        return
    found = config.get("conditioners.description.QwTokenizer.add_token_list")
    if found is not None and list(found) != list(STRUCTURE_TAGS):
        raise ModelError(
            f"other structure tags: {', '.join(map(str, found))[:200]}",
            where=f"{config.path} and {TAGS}",
            fix="this program knows the 13 tags of LeVo and LeVo 2, in their order",
        )


def _language_model(checkpoint: Path, config: LMConfig, notes: list[str]) -> TensorSource:
    there = [name for name in WEIGHTS if (checkpoint / name).is_file()]
    if len(there) != 1:
        raise ModelError(
            f"two sets of weights: {', '.join(there)}" if there else f"no weights: none of {', '.join(WEIGHTS)}",
            where=str(checkpoint),
            fix="keep one of them" if there else "download the checkpoint's weights into this folder",
        )
    path = checkpoint / there[0]
    source = TensorSource(path, lambda name: name.replace(PREFIX, "") if name.startswith("audiolm") else None)
    if not source.tensors and source.n_left_out:
        source = TensorSource(path)  # saved by somebody without the prefix
    if source.n_left_out:
        notes.append(f"{source.n_left_out} tensors of {path.name} are not the language model's: left out")
    wanted = names.lm_shapes(config, source.shapes)
    names.compare(wanted, source.shapes, f"{path} and config.yaml", names.lm_unused(config))
    whole = [name for name in wanted if not source.tensors[name].is_floating_point()]
    if whole:
        raise ModelError(f"{whole[0]} is not floating point", where=str(path), fix="use the published weights")
    return source


def _text_limits(config: LMConfig, lm: TensorSource, folder: Path) -> TextLimits:
    """Version by the style table's rows: each version added its own number of tags to the same vocabulary."""
    vocabulary = _read_json(folder / "vocab.json")
    n_words, style_rows = len(vocabulary), lm.shapes[STYLE_TABLE][0]
    expected = lm.shapes[LYRIC_TABLE][0] - len(BASE_SPECIALS) - len(STRUCTURE_TAGS)
    if n_words != expected or (n_words == QWEN2_WORDS and _in_order_sha256(vocabulary) != QWEN2_VOCABULARY):
        differs = f"{n_words} entries" if n_words != expected else "the right number of entries, but other ones"
        raise ModelError(
            f"the tokenizer has another vocabulary: {differs}; the lyric table has rows for {expected}",
            where=str(folder),
            fix="use vocab.json and merges.txt of Qwen2-7B, as in upstream's runtime",
        )
    n_tags = style_rows - n_words - len(BASE_SPECIALS)
    version = {0: "v1", len(STYLE_TAGS): "v2"}.get(n_tags)
    if version is None:
        raise ModelError(
            f"the style table has rows for {n_tags} tags; v1 has none and v2 {len(STYLE_TAGS)}",
            where=str(lm.path),
            fix="use a v1 or v2 checkpoint; betas between them are not supported",
        )
    limits = TextLimits(
        version, config.lyric_len, config.style_len, config.max_seconds, config.prompt_frames, config.code_size
    )
    encoder = TextEncoder.of_files(folder, limits)
    if n_words == QWEN2_WORDS and encoder.lyric_ids(PROBE)[0] != PROBE_IDS:
        raise ModelError(
            "merges.txt does not belong to the vocabulary", where=str(folder), fix="use both files of Qwen2-7B"
        )
    return limits


def _in_order_sha256(vocabulary: dict[str, Any]) -> str:
    """Of the entries in the order of their ids, one a line."""
    return hashlib.sha256(
        "\n".join(sorted(vocabulary, key=lambda word: _number(vocabulary[word]))).encode()
    ).hexdigest()


def _number(value: object) -> int:
    return value if isinstance(value, int) else -1


def _check_version(name: str, config: LMConfig, text: TextLimits) -> None:
    """Upstream goes by the folder's name alone, and a wrong one gives wrong text ids in silence. So all signs count."""
    plain = name.lower().replace("-", "_")
    named = "v1" if plain in V1_NAMES else "v2" if "v2" in plain else None
    limits = {V1_LIMITS: "v1", V2_LIMITS: "v2"}.get((config.lyric_len, config.style_len))
    signs = {f"the folder's name {name}": named, "the text limits of config.yaml": limits}
    for sign, version in signs.items():
        if version not in (None, text.version):
            raise ModelError(
                f"the weights are {text.version} (by the rows of the style table), but {sign} says {version}",
                where=name,
                fix="use weights and config.yaml of one checkpoint, in a folder named as published",
            )


def _size(config: LMConfig, text: TextLimits) -> str | None:
    layers = config.num_layers, config.num_layers_sub
    thetas = config.rope_theta, config.rope_theta_sub
    limits = config.lyric_len, config.style_len
    found = (text.version, config.dim, config.intermediate_size, config.num_heads, *layers, *thetas, *limits)
    return next((size for size, shape in TESTED.items() if shape == found), None)
