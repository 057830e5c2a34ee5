"""The tiny model: the same bytes always; songs that end by themselves, longer with their lyrics; audio that is sane."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch

from levo.model import oracle
from levo.model.checkpoint import Model, load
from levo.model.codec import render
from levo.model.tiny import write_tiny
from levo.model.tiny_weights import normal
from levo.songs.text import TextEncoder

LYRICS = {
    "short": "[verse] one line.",
    "long": "[verse] " + "the moon is over the river and the lights are low. " * 11,
}
CAP = 750


def file_hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def model(tiny_dir: Path) -> Model:
    torch.set_num_threads(1)
    return load(tiny_dir, "cpu", torch.float32)


@pytest.fixture(scope="module")
def songs(model: Model, tiny_dir: Path) -> dict[str, np.ndarray]:
    """Tokens [3, e] at the default sampling, by upstream's loop."""
    assert model.lm is not None
    encoder = TextEncoder(tiny_dir)
    made = {}
    for name, lyrics in LYRICS.items():
        choose = oracle.drawn(0.9, 50, torch.Generator().manual_seed(3))
        made[name] = oracle.generate(model.lm, encoder.prepare(lyrics, None, "mixed"), None, model.pad_id, CAP, choose)
    return {name: generated.cut for name, generated in made.items()}


def test_same_seed_gives_same_bytes(tiny_dir: Path, tmp_path: Path) -> None:
    write_tiny(tmp_path / "again")
    assert file_hashes(tmp_path / "again") == file_hashes(tiny_dir)
    assert sum(path.stat().st_size for path in tiny_dir.rglob("*")) < 10e6


def test_weights_are_the_same_on_every_machine() -> None:
    """Known numbers: a change here changes every tiny model, and with it every song of the demo."""
    values = normal(0, "name", (1000,), 1.0)
    expected = [0.865997314453125, 0.3483734130859375, -0.4542388916015625, 0.8206787109375]
    assert values[:4].tolist() == expected
    assert abs(float(values.mean())) < 0.1 and 0.9 < float(values.std()) < 1.1


def test_another_seed_gives_another_model(tiny_dir: Path, tmp_path: Path) -> None:
    digest = write_tiny(tmp_path / "other", seed=1)
    assert digest != load(tiny_dir, "cpu", torch.float32).digest
    assert load(tmp_path / "other", "cpu", torch.float32).name == "tiny-1"


def test_songs_end_by_themselves_and_get_longer_with_their_lyrics(songs: dict[str, np.ndarray]) -> None:
    short, long = songs["short"].shape[1], songs["long"].shape[1]
    assert 125 <= short < 300 < long <= 500


def test_codes_vary_in_every_codebook(songs: dict[str, np.ndarray]) -> None:
    for tokens in songs.values():
        assert all(len(np.unique(codebook)) > 20 for codebook in tokens)
        assert tokens.max() < 256


def test_audio_is_loud_enough_stereo_and_finite(model: Model, songs: dict[str, np.ndarray]) -> None:
    def noise(window: int) -> torch.Tensor:
        return torch.randn(200, 10, generator=torch.Generator().manual_seed(window))

    with torch.inference_mode():
        wave = render(model.flow, model.vae.decode, songs["short"], "mixed", noise, 10, 1.5)
    assert wave.shape == (2, songs["short"].shape[1] * 1920)
    assert bool(torch.isfinite(wave).all())
    rms_dbfs = 20 * torch.log10(wave.square().mean().sqrt())
    assert -25 < float(rms_dbfs) < -12
    assert float(wave.abs().max()) < 1.5
    assert float(wave.mean(1).abs().max()) < 0.02
    assert abs(float(torch.corrcoef(wave)[0, 1])) < 0.9
    power = torch.fft.rfft(wave[0]).abs().square()
    assert float(power.max() / power.sum()) < 0.1  # no single line
