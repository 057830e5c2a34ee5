"""PCM out of samples: nothing clips, nothing wraps, rounding is half to even."""

import numpy as np
import pytest
import torch

from levo.engine import codec
from levo.engine.codec import to_pcm


def test_a_peak_above_full_scale_is_scaled_and_told():
    wave = torch.tensor([[0.0, 1.3, -2.0, 0.5], [0.1, 0.2, 0.3, 0.4]])
    pcm, gain, peak, clipped_share = to_pcm(wave)
    assert pcm.dtype == np.int16 and pcm.shape == (4, 2)
    assert peak == 2.0 and gain == 0.999 / 2.0 and clipped_share == 0.25
    assert pcm.min() == -round(0.999 * 32767)  # no wrap, no clamp


def test_a_quiet_song_keeps_its_level():
    pcm, gain, peak, clipped_share = to_pcm(torch.tensor([[0.25, -0.5], [0.0, 0.0]]))
    assert gain == 1.0 and clipped_share == 0
    assert pcm.tolist() == [[8192, 0], [-16384, 0]]  # 8191.75 and -16383.5: half to even


def test_silence_is_silence():
    pcm, gain, peak, clipped_share = to_pcm(torch.zeros(2, 5))
    assert not pcm.any() and (gain, peak, clipped_share) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("seed", range(20))
def test_pcm_is_numpys_in_float64_whatever_the_pieces(seed, monkeypatch):
    """Peaks of many values: the gain is a correctly rounded quotient. Seven pieces, the last one short."""
    monkeypatch.setattr(codec, "PIECE", 150)
    wave = torch.randn(2, 1000, generator=torch.Generator().manual_seed(seed))[:, :999]
    pcm, gain, peak, clipped_share = to_pcm(wave)
    exact = wave.numpy().astype(np.float64)
    assert peak == np.abs(exact).max() and gain == 0.999 / peak
    assert clipped_share == (np.abs(exact) > 1).sum() / exact.size
    assert np.array_equal(pcm, np.rint(exact * gain * 32767).astype(np.int16).T)
