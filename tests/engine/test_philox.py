"""The random numbers are Philox 4x32-10 and depend on their counter only."""

import pytest
import torch

from levo.engine.philox import normals, philox, split_seed, token_uniforms

# Known answers of the Random123 distribution (kat_vectors, philox4x32 10).
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter, key, words):
    found = philox(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in key))
    assert tuple(found.tolist()) == words


def test_uniforms_of_a_song_are_the_same_in_any_row():
    keys = torch.tensor([split_seed(s) for s in (1, 2**63 - 1, 7)])
    steps = torch.tensor([5, 900, 5])
    together = token_uniforms(keys, steps, 0, 257)
    for row in range(3):
        alone = token_uniforms(keys[row : row + 1], steps[row : row + 1], 0, 257)
        assert torch.equal(alone[0], together[row])
    assert together.min() > 0 and together.max() < 1


def test_seed_step_and_codebook_each_change_the_uniforms():
    key, step = torch.tensor([split_seed(3)]), torch.tensor([4])
    base = token_uniforms(key, step, 0, 64)
    others = [
        token_uniforms(torch.tensor([split_seed(3 + 2**32)]), step, 0, 64),
        token_uniforms(key, step + 1, 0, 64),
        token_uniforms(key, step, 1, 64),
    ]
    assert all(not torch.equal(base, other) for other in others)


def test_noise_is_normal_and_differs_by_window_and_rendition():
    device = torch.device("cpu")
    noise = normals(11, 0, 0, (1000, 64), device)
    # 64,000 draws: the standard errors are 0.004 and 0.003; these bounds are over 5 of them.
    assert abs(noise.mean().item()) < 0.025 and abs(noise.std().item() - 1) < 0.02
    assert not torch.equal(noise, normals(11, 1, 0, (1000, 64), device))
    assert not torch.equal(noise, normals(11, 0, 1, (1000, 64), device))
    assert torch.equal(noise, normals(11, 0, 0, (1000, 64), device))
