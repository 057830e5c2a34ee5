"""Quantizer, time path, statistics and single estimator calls against upstream's, float32.

The bound of 1e-4 (golden/compare.py) holds here too: in the time sinusoid the order of two products alone is worth
6e-5, and the smallest of 32 deliberate mistakes (sigma_min = 0) moves a trajectory by 1.9e-4.
"""

import pytest
import torch
from golden.codec_golden import flow, read_json, tensors
from golden.compare import Deviation, largest
from torch import Tensor

from levo.model.estimator import sinusoid


def unit(name: str) -> Tensor:
    return tensors("units")[name]


def test_sizes_are_read_off_the_weights() -> None:
    config, dims = flow().config, read_json("meta.json")["dims"]
    found = {
        "mask_dim": config.mask_dim,
        "latent_dim": config.latent_dim,
        "cond_dim": config.cond_dim,
        "n_embd": config.dim,
        "n_head": config.heads,
        "n_layer": config.layers,
        "n_inner": config.inner_dim,
        "n_positions": config.window,
        "codebook_size": config.code_size,
        "codebook_dim": config.code_dim,
        "window": config.window,
        "hop": config.hop,
        "overlap": config.overlap,
        "sample_rate": config.vae.sample_rate,
        "samples_per_frame": config.vae.samples_per_frame,
    }
    assert found == {name: dims[name] for name in found}


def test_codes_become_conditions_vocal_first(deviation: Deviation) -> None:
    mu = flow().condition(unit("rvq.codes_vocal")[:, 0].long(), unit("rvq.codes_bgm")[:, 0].long())
    wanted = torch.cat([unit("rvq.quantized_vocal"), unit("rvq.quantized_bgm")], dim=1).transpose(1, 2)
    deviation("codec.quantizer", largest(mu, wanted))


def test_times_become_embedding_and_modulation(deviation: Deviation) -> None:
    t = unit("time.t")
    embedding, modulation = flow().estimator.adaln_single(t)
    deviation("codec.time.sinusoid", largest(sinusoid(t, flow().config.time_dim), unit("time.sinusoid")))
    deviation("codec.time.embedding", largest(embedding, unit("time.embedding")))
    deviation("codec.time.modulation", largest(modulation.flatten(1), unit("time.modulation")))


def test_latents_are_normalised_and_restored(deviation: Deviation) -> None:
    statistics, x = flow().normfeat, unit("norm.x").transpose(1, 2)
    mean, std = statistics.moments()
    deviation("codec.norm.mean", largest(mean, unit("norm.mean")))
    deviation("codec.norm.std", largest(std, unit("norm.std")))
    deviation("codec.norm.projected", largest(statistics.project(x).transpose(1, 2), unit("norm.projected")))
    deviation("codec.norm.returned", largest(statistics.restore(x).transpose(1, 2), unit("norm.returned")))


@pytest.mark.parametrize("name", ["full", "short"])
def test_estimator_call(name: str, deviation: Deviation) -> None:
    out = flow().estimator(unit(f"est.{name}.x"), unit(f"est.{name}.t"))
    deviation(f"codec.estimator.{name}", largest(out, unit(f"est.{name}.out")))


def test_every_block_reads_the_right_input(deviation: Deviation) -> None:
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in flow().estimator.h]
    flow().estimator(unit("est.full.x"), unit("est.full.t"))
    for hook in hooks:
        hook.remove()
    deviation("codec.estimator.hidden_in", largest(torch.stack(seen), unit("est.full.hidden_in")))


def test_padding_frames_are_seen_by_no_other_frame(deviation: Deviation) -> None:
    mask = (unit("est.mask.mask") == 0) * torch.finfo(torch.float32).min
    out = flow().estimator(unit("est.mask.x"), unit("est.mask.t"), mask)
    deviation("codec.estimator.mask", largest(out, unit("est.mask.out")))
