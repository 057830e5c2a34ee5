"""The codec on a GPU at full size: close to float32, the same bits in any company, nothing allocated after warm-up."""

import gc
import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from levo.bench.codec import plain_wave, random_codec, random_codes, snr_db
from levo.bench.sizes import PAD_ID, v2_large
from levo.bench.steady import Songs
from levo.engine.codec import Renderer
from levo.engine.engine import Engine
from levo.engine.request import Finished, Request, Sampling, no_book
from levo.model.checkpoint import Model
from levo.model.config import ModelConfig
from levo.model.flow import Flow, solve
from levo.model.vae import VAE

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
DEVICE = torch.device("cuda")
FLOAT32_SNR_DB = 90.0  # two orders of summation in float32, ten steps and 70 layers deep
HALVES_SNR_DB = 40.0  # the bound of levo model selfcheck; measured with random weights: 64 dB for the VAE alone
LONG = 6750


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def halves() -> tuple[Flow, VAE]:
    with torch.inference_mode():
        return random_codec(DEVICE, torch.float16)


@pytest.fixture(scope="module")
def wide() -> Flow:
    with torch.inference_mode():
        return random_codec(DEVICE, torch.float32)[0]


@pytest.fixture(scope="module")
def renderer(halves: tuple[Flow, VAE]) -> Renderer:
    with torch.inference_mode():
        return Renderer(*halves, LONG, 10, 1.5, no_book)


def model_of(flow: Flow, vae: VAE, lm: torch.nn.Module | None = None) -> Model:
    config = ModelConfig(v2_large(), flow.config)
    return Model("random", "", config, PAD_ID, DEVICE, torch.float16, lm, flow, vae)  # type: ignore[arg-type]


def song_with_tokens(key: int, n_frames: int) -> Request:
    tokens = np.random.default_rng(key).integers(0, 16384, (3, n_frames)).astype(np.int32)
    return replace(Songs(n_frames, n_frames).next(), key=key, seed=1000 + key, tokens=tokens)


def run(engine: Engine, requests: list[Request]) -> dict[int, Finished]:
    for request in requests:
        engine.submit(request)
    found = []
    while engine.live:
        found += engine.step()
    assert not [done.error for done in found if done.error]
    return {done.key: done for done in found}


def digests(done: Finished) -> list[str]:
    return [hashlib.sha256(audio.pcm.tobytes()).hexdigest() for audio in done.audio]


def samples(renderer: Renderer, codes: tuple[Tensor, Tensor]) -> Tensor:
    return renderer.samples(codes, renderer.noise(5, 0))[0].clone()


def test_float32_is_the_plain_networks(wide: Flow, halves: tuple[Flow, VAE]) -> None:
    vae = halves[1]
    renderer = Renderer(wide, vae, LONG, 10, 1.5, no_book)
    codes = random_codes(wide.config, 1750, DEVICE)
    exact = plain_wave(wide, vae, codes, renderer.noise(5, 0))
    assert snr_db(samples(renderer, codes), exact) > FLOAT32_SNR_DB


def test_halves_are_close_to_float32(renderer: Renderer, wide: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    codes = random_codes(wide.config, 1750, DEVICE)
    exact = plain_wave(wide, renderer.vae.vae, codes, renderer.noise(5, 0))
    ratio = snr_db(samples(renderer, codes), exact)
    with capsys.disabled():
        print(f"\nengine in halves against float32: {ratio:.1f} dB (bound {HALVES_SNR_DB})")
    assert ratio > HALVES_SNR_DB


@pytest.mark.parametrize("steps", [1, 10, 50])
def test_any_number_of_steps_without_a_new_capture(renderer: Renderer, halves: tuple[Flow, VAE], steps: int) -> None:
    vocal, bgm = random_codes(renderer.config, 1000, DEVICE)
    noise, context = renderer.noise(9, 0)(0), renderer.noise(9, 1)(0)[:250]
    graph = renderer.solver.graph
    renderer.solver.set_steps(steps)
    try:
        found = renderer.solver.solve((vocal, bgm), context, noise)
    finally:
        renderer.solver.set_steps(10)
    wanted = solve(halves[0], vocal, bgm, context, noise, steps, 1.5).t()
    assert renderer.solver.graph is graph
    torch.testing.assert_close(found[:250], context, rtol=1e-5, atol=1e-5)
    assert float((found - wanted).norm() / wanted.norm()) < 5e-3


def test_a_window_has_the_same_bits_after_other_windows(renderer: Renderer) -> None:
    codes = random_codes(renderer.config, 1000, DEVICE)
    first = samples(renderer, codes)
    samples(renderer, random_codes(renderer.config, 3000, DEVICE))
    assert torch.equal(samples(renderer, codes), first)


def test_pcm_is_the_same_alone_in_company_and_twice(halves: tuple[Flow, VAE]) -> None:
    """Songs of one to four windows, in several orders, on two engines."""
    requests = [song_with_tokens(key, n) for key, n in enumerate((400, 1000, 1001, 2500, 3000, 20))]
    requests[1], requests[2] = replace(requests[1], gen_type="separate"), replace(requests[2], renditions=2)
    engine = Engine(model_of(*halves), slots=1, gemm_rows=128)
    alone = {request.key: digests(run(engine, [request])[request.key]) for request in requests}
    assert len({digest for found in alone.values() for digest in found}) == 6 + 2 + 1, "the files must differ"
    for order in (requests, requests[::-1]):
        assert {key: digests(done) for key, done in run(engine, order).items()} == alone
    del engine
    gc.collect()
    again = Engine(model_of(*halves), slots=1, gemm_rows=128)
    assert {key: digests(done) for key, done in run(again, requests).items()} == alone


def test_pcm_is_the_same_beside_songs_in_decode(full_size_lm: torch.nn.Module, halves: tuple[Flow, VAE]) -> None:
    supply = Songs(100, 220, seed=3)
    requests = [supply.next() for _ in range(8)]
    model = model_of(*halves, full_size_lm)
    found = []
    for slots in (1, 5):
        engine = Engine(model, slots=slots, gemm_rows=128, sampling=Sampling())
        found.append({key: digests(done) for key, done in run(engine, requests).items()})
        del engine
        gc.collect()
        torch.cuda.empty_cache()
    assert found[0] == found[1] and len(found[0]) == 8


def test_no_allocation_after_warm_up(halves: tuple[Flow, VAE]) -> None:
    engine = Engine(model_of(*halves), slots=1, gemm_rows=128)
    before = torch.cuda.memory_stats()["num_device_alloc"]
    run(engine, [song_with_tokens(key, n) for key, n in enumerate((400, 4500, 1001, LONG, 60))])
    assert torch.cuda.memory_stats()["num_device_alloc"] == before


def test_a_window_that_overflows_in_halves_is_decoded_again_in_float32(renderer: Renderer) -> None:
    vae = renderer.vae
    loud = torch.randn(1000, 64, device=DEVICE) * 3e5
    vae.start(loud)
    decoded = vae.result()
    assert decoded is not None and decoded[1], "float16 ends at 65504"
    assert decoded[0].shape == (2, 1_920_000) and bool(torch.isfinite(decoded[0]).all())
    vae.start(loud * torch.nan)
    assert vae.result() is None
