"""The golden codec and its cases (tests/data/golden/codec), as the tests want them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from levo.model.codec_config import CodecConfig, VAEConfig
from levo.model.flow import Flow
from levo.model.vae import VAE

HERE = Path(__file__).parent.parent / "data" / "golden" / "codec"


@cache
def read_json(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / name).read_text(encoding="utf-8"))
    return found


@cache
def tensors(name: str) -> dict[str, Tensor]:
    return load_file(HERE / f"{name}.safetensors")


def case(file: str, name: str) -> dict[str, Tensor]:
    """Tensors of one case, without the case's name in front."""
    found = {key.removeprefix(f"{name}."): t for key, t in tensors(file).items() if key.startswith(f"{name}.")}
    assert found, f"no case {name} in {file}"
    return found


@cache
def vae() -> VAE:
    return VAE.from_state(VAEConfig.from_upstream(read_json("vae_config.json")), tensors("vae_state"))


@cache
def flow() -> Flow:
    state, dims = tensors("flow_state"), read_json("meta.json")["dims"]
    config = CodecConfig.from_upstream(
        {name: t.shape for name, t in state.items()},
        vae().config,
        heads=dims["n_head"],
        silence_vocal=dims["silence_vocal"],
        silence_bgm=dims["silence_bgm"],
    )
    return Flow.from_state(config, state)
