"""Whole songs: tokens and PCM are the same bits at any number of slots and in any order."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from levo.engine.engine import Engine
from levo.engine.request import Finished, Request
from levo.model.checkpoint import Model, load
from levo.model.tiny import write_tiny
from levo.songs.text import TextEncoder

FRAMES = 40  # a cap, so that the test is short; one codec window each


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> tuple[Model, TextEncoder]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder)
    return load(folder, "cpu", torch.float32), TextEncoder(folder)


@pytest.fixture(scope="module")
def songs(tiny) -> list[Request]:
    lyrics = (
        "[verse] Salt on the window",
        "[chorus] Come back. Come back",
        "[verse] 海 ; [chorus] 光",
        "[bridge] Uno. Dos",
    )
    made = [
        Request(key, tiny[1].prepare(text, "folk", "mixed"), 100 + key, FRAMES - 3 * key, FRAMES)
        for key, text in enumerate(lyrics)
    ]
    made[1] = replace(made[1], gen_type="separate")
    made[2] = replace(made[2], renditions=2)
    return made


def make(tiny, requests: list[Request], slots: int) -> dict[int, Finished]:
    engine, found = Engine(tiny[0], slots=slots, gemm_rows=16), []
    for request in requests:
        engine.submit(request)
    while engine.live:
        found += engine.step()
    return {done.key: done for done in found}


def bits(done: Finished) -> list[bytes]:
    assert done.error is None and done.tokens is not None
    return [done.tokens.tobytes(), *(audio.pcm.tobytes() for audio in done.audio)]


def test_tokens_and_pcm_are_the_same_bits_in_any_company(tiny, songs):
    alone = {song.key: bits(make(tiny, [song], 1)[song.key]) for song in songs}
    assert len({first for first, *_ in alone.values()}) == len(songs), "the songs must differ"
    for slots in (1, 4, 8):
        for order in (songs, songs[::-1]):
            found = make(tiny, order, slots)
            assert {key: bits(done) for key, done in found.items()} == alone, f"{slots} slots"


def test_stems_and_renditions_share_the_tokens_and_differ_in_sound(tiny, songs):
    found = make(tiny, songs, 4)
    stems, renditions = found[1].audio, found[2].audio
    assert [audio.stem for audio in stems] == ["mixed", "vocal", "bgm"]
    assert [audio.rendition for audio in renditions] == [0, 1]
    for one, other in ((stems[0], stems[1]), (stems[1], stems[2]), (renditions[0], renditions[1])):
        assert one.pcm.shape == other.pcm.shape and not np.array_equal(one.pcm, other.pcm)


def test_given_tokens_become_the_same_pcm_without_the_language_model(tiny, songs):
    """Also the tokens' own song length is kept: exactly 1920 samples a frame."""
    model = replace(tiny[0], lm=None)
    for key, done in make(tiny, songs, 4).items():
        again = make((model, tiny[1]), [replace(songs[key], tokens=done.tokens)], 1)[key]
        assert [audio.pcm.tobytes() for audio in again.audio] == bits(done)[1:]
        assert all(len(audio.pcm) == 1920 * done.tokens.shape[1] for audio in again.audio)


def test_a_song_over_the_models_length_is_refused_and_the_others_go_on(tiny, songs):
    found = make(tiny, [replace(songs[0], max_frames=10_000), songs[3]], 2)
    assert found[0].error == "asks for up to 10000 frames; the model makes at most 750"
    assert found[3].error is None
