"""The codec in serving form on a CPU: golden numbers, the plain networks, and what happens where halves overflow."""

from typing import Any

import numpy as np
import pytest
import torch
from golden.codec_golden import case, flow, read_json, tensors, vae
from torch import Tensor

from levo.engine import codec_twins
from levo.engine.codec import NotFinite, Renderer, Waveform
from levo.engine.flow_solver import FlowSolver
from levo.engine.request import Request, no_book
from levo.engine.vae_decoder import VAEDecoder
from levo.model.codec import join, render, stem_codes
from levo.model.flow import solve
from levo.songs.text import Conditioning, TextIds

META = read_json("meta.json")
SONGS = [name for name, case in META["code2sound_cases"].items() if "prompt" not in name and not case["chunked"]]
SOLVES = [name for name, case in META["solve_cases"].items() if case["batch"] == 1]
GOLDEN_BOUND = 1e-4  # as for the plain networks (tests/golden/compare.py)
PLAIN_BOUND = 1e-5  # the same sums in float32, in another order; values are about 1, latents up to 5
NOTHING = TextIds((), (), ())


def largest(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found.double() - wanted.double()).abs().max())


def make(max_frames: int = 100, book: Any = no_book) -> Renderer:
    return Renderer(flow(), vae(), max_frames, 10, 1.5, book)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return make()


@pytest.mark.parametrize("name", SONGS)
def test_whole_songs_are_the_golden_ones_and_the_plain_networks(renderer: Renderer, name: str) -> None:
    wanted, settings = case("code2sound", name), META["code2sound_cases"][name]

    def noise(window: int) -> Tensor:
        return wanted["noise"][window]

    codes = stem_codes(flow().config, wanted["tokens"][0], settings["gen_type"])
    wave, again = renderer.samples(codes, noise)
    plain = render(flow(), vae().decode, wanted["tokens"][0], settings["gen_type"], noise, 10, 1.5)
    assert not again and largest(wave, plain) < PLAIN_BOUND
    assert largest(wave[:, : settings["samples"]], wanted["wave"][0]) < GOLDEN_BOUND


@pytest.mark.parametrize("name", SOLVES)
def test_one_window_is_the_golden_one(name: str) -> None:
    """With and without context, with and without guidance."""
    wanted, settings = case("solve", name), META["solve_cases"][name]
    n_context = settings["incontext_used"]
    context = wanted["context"][0, :n_context] if n_context else None
    solver = FlowSolver(flow(), settings["steps"], settings["guidance"], codec_twins, captured=False)
    codes = wanted["codes_vocal"][0, 0].long(), wanted["codes_bgm"][0, 0].long()
    assert largest(solver.solve(codes, context, wanted["noise"][0]).t(), wanted["latents"][0]) < GOLDEN_BOUND


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_one_solver_takes_any_number_of_steps(renderer: Renderer, steps: int) -> None:
    wanted = case("solve", "s2")
    codes = wanted["codes_vocal"][0, 0].long(), wanted["codes_bgm"][0, 0].long()
    context, noise = wanted["context"][0, :10], wanted["noise"][0]
    renderer.solver.set_steps(steps)
    found = renderer.solver.solve(codes, context, noise).t()
    renderer.solver.set_steps(10)
    assert largest(found, solve(flow(), *codes, context, noise, steps, 1.5)) < 10 * PLAIN_BOUND


def test_decode_is_the_golden_one() -> None:
    latents = tensors("vae")["z"]
    decoder = VAEDecoder(vae(), latents.shape[-1], torch.float32, codec_twins, captured=False)
    for z, wanted in zip(latents, tensors("vae")["wave"], strict=True):
        decoder.start(z.t())
        decoded = decoder.result()
        assert decoded is not None and not decoded[1]
        assert largest(decoded[0], wanted) < GOLDEN_BOUND


def test_windows_join_exactly_as_in_the_plain_driver() -> None:
    config = flow().config
    rate = config.vae.samples_per_frame
    wave, joined = Waveform(config, 100, torch.device("cpu")), None
    for _ in range(2):  # the second file finds the first one's samples in the buffer
        pieces = torch.randn(4, 2, config.window * rate)
        joined = None
        wave.begin(4)  # one more window than a song of 100 frames has
        for index, piece in enumerate(pieces):
            wave.place(index, piece)
            joined = join(joined, piece, config.overlap * rate)
        assert joined is not None and torch.equal(wave.samples[:, : joined.shape[1]], joined)


def halves() -> VAEDecoder:
    return VAEDecoder(vae(), 40, torch.float16, codec_twins, captured=False)


def test_halves_are_close_to_float32() -> None:
    decoder, latents = halves(), torch.randn(40, 10, generator=torch.Generator().manual_seed(0))
    decoder.start(latents)
    decoded, exact = decoder.result(), vae().decode(latents.t())
    assert decoded is not None and not decoded[1]
    assert 0 < float((decoded[0] - exact).norm() / exact.norm()) < 1e-2


def test_a_window_that_overflows_in_halves_is_decoded_again_in_float32() -> None:
    decoder, latents = halves(), torch.full((40, 10), 1e5)  # halves end at 65504
    decoder.start(latents)
    decoded = decoder.result()
    assert decoded is not None and decoded[1]
    assert torch.equal(decoded[0], vae().decode(latents.t()))
    decoder.start(latents * torch.nan)
    assert decoder.result() is None


def request(gen_type: str = "mixed") -> Request:
    return Request(7, Conditioning(NOTHING, NOTHING), 5, 60, 60, gen_type=gen_type)


def test_audio_tells_that_a_window_needed_float32() -> None:
    """Latents that overflow in one window of two."""
    renderer, tokens = make(), np.random.default_rng(0).integers(0, 64, (3, 60))
    renderer.vae = halves()
    plain = renderer.render(request(), tokens)
    solve_window, n_solved = renderer.solver.solve, []

    def loud(*args: Any) -> Tensor:
        n_solved.append(1)
        return solve_window(*args) * (1e5 if len(n_solved) == 2 else 1)

    renderer.solver.solve = loud  # type: ignore[method-assign]
    (audio,) = renderer.render(request(), tokens)
    assert plain[0].vae_dtype == "float16" and audio.vae_dtype == "float16+float32"
    assert audio.peak > 1 and np.abs(audio.pcm).max() == round(0.999 * 32767)


def test_audio_that_is_never_finite_names_its_file() -> None:
    renderer = make()
    renderer.noise = lambda seed, rendition: lambda window: torch.full((40, 10), torch.nan)  # type: ignore[method-assign]
    with pytest.raises(NotFinite, match=r"rendition 0, stem vocal"):
        renderer.render(request("vocal"), np.zeros((3, 60), dtype=np.int32))


def test_flow_and_vae_are_booked_window_by_window_to_their_song() -> None:
    booked: list[tuple[str, list[int]]] = []
    renderer = make(book=lambda stage, keys: booked.append((stage, list(keys))))
    renderer.warm_up()
    renderer.render(request(), np.zeros((3, 60), dtype=np.int32))
    assert booked == [("flow", [7]), ("vae", [7])] * 2 + [("vae", [7])]
