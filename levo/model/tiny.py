"""A tiny random model in the real layout, whose songs are noise and end by themselves (`levo model tiny DIR`).

Songs last about 5 to 20 s, longer with more lyrics, at the default sampling; levo/model/tiny_weights.py says how.
The lyric tokenizer has one token a byte, so 600 tokens are 599 bytes of lyrics.
"""

import json
from pathlib import Path
from typing import Any

from levo.model import tiny_weights as weights
from levo.model.checkpoint import Contents, write
from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.config import LMConfig
from levo.songs.text import BASE_SPECIALS, STRUCTURE_TAGS, STYLE_TAGS, TextLimits

N_BYTES = 256
FIRST_TAG = N_BYTES + len(BASE_SPECIALS)
FRAME_RATE, PROMPT_SECONDS, CODES = 25, 1, 256
TEXT = TextLimits(
    version="v2",
    lyric_tokens=600,
    style_tokens=100,
    max_seconds=30.0,
    prompt_frames=PROMPT_SECONDS * FRAME_RATE,
    audio_codes=CODES,
)
SILENCE_VOCAL, SILENCE_BGM = 31, 47
LATENT, HEADS = 10, 4

CONFIG: dict[str, Any] = {
    "max_dur": int(TEXT.max_seconds),
    "min_dur": 5,
    "prompt_len": PROMPT_SECONDS,
    "pad_to_max": False,
    "sample_rate": 48000,
    "audio_tokenizer_frame_rate": FRAME_RATE,
    "audio_tokenizer_code_depth": 1,
    "audio_tokenizer_frame_rate_sep": FRAME_RATE,
    "audio_tokenizer_code_depth_sep": 2,
    "lm": {
        "lm_type": "Llama",
        "dim": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "num_layers": 3,
        "num_layers_sub": 2,
        "code_depth": 3,
        "code_size": CODES,
        "max_position_embeddings": 2000,
        "max_position_embeddings_sub": 2000,
        "rope_theta": 500000.0,
        "rope_theta_sub": 500000.0,
    },
    "codebooks_pattern": {
        "modeling": "delay",
        "delay": {"delays": [0, 25, 25], "flatten_first": 0, "empty_initial": 0},
    },
    "classifier_free_guidance": {"inference_coef": 1.5},
    "fuser": {"sum": [], "prepend": ["description", "prompt_audio", "type_info"]},
    "conditioners": {
        "prompt_audio": {
            "model": "qt_embedding",
            "qt_embedding": {"code_size": CODES, "code_depth": 3, "max_len": PROMPT_SECONDS * FRAME_RATE + 2},
        },
        "description": {
            "model": "QwTokenizer",
            "QwTokenizer": {"max_len": TEXT.lyric_tokens, "add_token_list": list(STRUCTURE_TAGS)},
        },
        "type_info": {"model": "QwTextTokenizer", "QwTextTokenizer": {"max_len": TEXT.style_tokens}},
    },
}


def vae_json(channels: int, multiples: list[int], latent: int) -> dict[str, Any]:
    """The released VAE's json with other widths. The strides are the real ones: 1920 samples a frame, 48 kHz."""
    decoder = {
        "out_channels": 2,
        "channels": channels,
        "c_mults": multiples,
        "strides": [2, 4, 4, 6, 10],
        "latent_dim": latent,
        "use_snake": True,
        "final_tanh": False,
    }
    return {
        "model_type": "autoencoder",
        "sample_rate": 48000,
        "audio_channels": 2,
        "model": {
            "decoder": {"type": "oobleck", "config": decoder},
            "bottleneck": {"type": "vae"},
            "latent_dim": latent,
            "downsampling_ratio": 1920,
            "io_channels": 2,
        },
    }


VAE_CONFIG = vae_json(4, [1, 2, 2, 4, 4], LATENT)


def write_tiny(out: Path, seed: int = 0) -> str:
    """Write the model directory (under 10 MB) and return its digest. The same seed gives the same bytes.

    Raises ModelError when something else than a model directory is at `out`.
    """
    return write(out, contents(seed))


def contents(seed: int = 0) -> Contents:
    """What write_tiny writes."""
    lm, vae = LMConfig.from_upstream(CONFIG), VAEConfig.from_upstream(VAE_CONFIG)
    rows = FIRST_TAG + len(STRUCTURE_TAGS), FIRST_TAG + len(STYLE_TAGS)
    return Contents(
        name="tiny" if seed == 0 else f"tiny-{seed}",
        text=TEXT,
        config=CONFIG,
        vae_config=VAE_CONFIG,
        silence_vocal=SILENCE_VOCAL,
        silence_bgm=SILENCE_BGM,
        codec_heads=HEADS,
        tokenizer=tokenizer(),
        lm=weights.language_model(lm, *rows, N_BYTES, seed),
        flow=weights.flow(codec_config(vae), seed),
        vae=weights.vae(vae, seed),
    )


def codec_config(vae: VAEConfig) -> CodecConfig:
    """Shapes of the flow model."""
    mask, cond = 4, 16
    width = mask + 2 * LATENT + 2 * cond
    return CodecConfig(
        mask_dim=mask,
        latent_dim=LATENT,
        cond_dim=cond,
        code_size=CODES,
        code_dim=8,
        dim=width,
        heads=HEADS,
        layers=2,
        inner_dim=2 * width,
        time_dim=512,
        window=8 * FRAME_RATE,
        silence_vocal=SILENCE_VOCAL,
        silence_bgm=SILENCE_BGM,
        vae=vae,
    )


def tokenizer() -> dict[str, bytes]:
    """Byte-level BPE without merges: printable bytes first, under their own character, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    n_others = N_BYTES - len(printable)
    symbols = [chr(byte) for byte in printable] + [chr(N_BYTES + n) for n in range(n_others)]
    vocab = json.dumps({symbol: index for index, symbol in enumerate(symbols)}, ensure_ascii=False)
    return {"vocab.json": vocab.encode(), "merges.txt": b"#version: 0.2\n"}
