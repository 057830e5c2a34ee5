"""Random checkpoints in upstream's layout: released sizes have the released numbers of parameters, and convert."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from levo.bench import random_checkpoint
from levo.bench.random_checkpoint import NAMES, full_codec, full_config, write_random
from levo.errors import ConfigError
from levo.model import checkpoint, tiny, upstream
from levo.model.codec_config import VAEConfig
from levo.model.config import LMConfig
from levo.model.convert import convert
from levo.model.identity import read_identity
from levo.model.lm import LYRIC_TABLE, STRUCTURE_TABLE, STYLE_TABLE
from levo.model.upstream_names import flow_shapes, lm_shapes, vae_shapes
from levo.songs.prompts import PromptBook


def test_released_sizes_have_the_published_numbers_of_tensors_and_parameters() -> None:
    rows = {LYRIC_TABLE: (151659,), STYLE_TABLE: (151652,), STRUCTURE_TABLE: (200,)}
    lm = lm_shapes(LMConfig.from_upstream(full_config("v2-large")), rows)
    assert (len(lm), sum(map(math.prod, lm.values()))) == (452, 4_988_100_608)
    vae = VAEConfig.from_upstream(random_checkpoint.VAE_JSON)
    assert (len(flow_shapes(full_codec(vae))), len(vae_shapes(vae))) == (233, 182)


@pytest.mark.parametrize("size", ["v2-large", "v2-medium", "v1-base"])
def test_a_random_checkpoint_converts_as_the_size_that_it_imitates(
    size: str, qwen_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Widths and layers are cut down; keys, tables, limits, thetas and names are the released ones."""
    version, *_, theta, theta_sub, lyric, style = upstream.TESTED[size]
    monkeypatch.setitem(upstream.TESTED, size, (version, 16, 24, 2, 2, 1, theta, theta_sub, lyric, style))  # type: ignore[arg-type]
    small: dict[str, Any] = copy.deepcopy(random_checkpoint.VAE_JSON)
    small["model"]["decoder"]["config"] |= {"channels": 4, "latent_dim": tiny.LATENT}
    monkeypatch.setattr(random_checkpoint, "VAE_JSON", small)
    monkeypatch.setattr(random_checkpoint, "full_codec", lambda vae: replace(tiny.codec_config(vae), code_size=16384))
    folder, runtime = write_random(tmp_path, size, qwen_files)
    assert folder.name == NAMES[size]
    codec = upstream.CodecConstants(tiny.HEADS, tiny.SILENCE_VOCAL, tiny.SILENCE_BGM)
    result = convert(folder, runtime, tmp_path / "out", torch.float16, codec)
    assert (result.size, result.version) == (size, version)
    model = checkpoint.load(tmp_path / "out", "cpu", torch.float16)
    assert model.config.lm.max_seconds == (150 if size == "v1-base" else 270)
    assert PromptBook(tmp_path / "out", read_identity(tmp_path / "out").text).draw("Jazz", "zh", 3) is not None


def test_another_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no size 'huge'"):
        write_random(tmp_path, "huge", tmp_path)


def test_random_weights_keep_what_a_layer_gives_near_one() -> None:
    """So that a full-size song overflows nowhere in float16."""
    fill = random_checkpoint.Fill(0)
    estimator = "cfm_wrapper.estimator"
    shapes = {
        f"{estimator}.adaln_single.linear.weight": (600, 100),
        f"{estimator}.adaln_single.emb.timestep_embedder.linear_1.weight": (400, 900),
        f"{estimator}.h.3.mlp.c_fc.weight": (900, 400),
        "transformer.model.layers.2.mlp.down_proj.weight": (400, 900),
    }
    deviations = {name: float(fill.tensor(name, shape).std()) for name, shape in shapes.items()}
    expected = dict(zip(shapes, (100, 900, 900, 900), strict=True))
    assert deviations == pytest.approx({name: n**-0.5 for name, n in expected.items()}, rel=0.05)
    assert bool((fill.tensor(f"{estimator}.h.0.ln_1.weight", (9,)) == 1).all())
