"""Measures on signals whose numbers are known: tones, silence, noise, too short, broken."""

import json
import subprocess
import sys

import numpy as np
import pytest

from levo.measures import COLUMNS, FLAGS, flags, measure
from levo.settings import QaSettings

RATE = 48000


def tone(seconds: float, amplitude: float = 0.5, hz: float = 1000.0, rate: int = RATE) -> np.ndarray:
    """[n, 2] the same sine in both channels."""
    t = np.arange(round(seconds * rate)) / rate
    return np.repeat((amplitude * np.sin(2 * np.pi * hz * t))[:, None], 2, axis=1).astype(np.float32)


def silence(seconds: float) -> np.ndarray:
    return np.zeros((round(seconds * RATE), 2), dtype=np.float32)


def test_every_column_is_measured_and_is_plain_json() -> None:
    for samples in (tone(1), silence(1), tone(0.01), np.zeros((0, 2), np.float32), tone(1)[:, :1]):
        row = measure(samples, RATE)
        assert list(row) == [column.name for column in COLUMNS]
        json.dumps(row, allow_nan=False)
        for column in COLUMNS:
            assert isinstance(row[column.name], int if column.type == "int64" else float | None), column.name


def test_a_tone_has_its_textbook_level() -> None:
    row = measure(tone(2, amplitude=0.5), RATE)
    assert row["rms_dbfs"] == pytest.approx(-9.03, abs=0.01)  # 20 log10(0.5 / sqrt 2)
    assert row["peak"] == pytest.approx(0.5, abs=1e-6)
    assert (row["seconds"], row["clipped_share"], row["nan_count"]) == (2.0, 0.0, 0)
    assert row["dc"] == pytest.approx(0, abs=1e-6)


def test_loudness_of_a_full_scale_sine_is_the_standards() -> None:
    """ITU-R BS.1770: 997 Hz at 0 dBFS in one channel reads -3.01 LUFS; in both channels 3.01 more."""
    both = tone(5, amplitude=1.0, hz=997)
    left = both * np.array([1, 0], np.float32)
    assert measure(left, RATE)["lufs"] == pytest.approx(-3.01, abs=0.05)
    assert measure(both, RATE)["lufs"] == pytest.approx(0.0, abs=0.05)


def test_silences_are_found_at_both_ends_and_between() -> None:
    samples = np.concatenate([silence(0.5), tone(1), silence(2), tone(1), silence(0.25)])
    row = measure(samples, RATE)
    assert row["leading_silence_s"] == pytest.approx(0.5)
    assert row["longest_silence_s"] == pytest.approx(2.0)
    assert row["trailing_silence_s"] == pytest.approx(0.25)
    assert row["active_share"] == pytest.approx(2 / 4.75, abs=0.01)


def test_the_rest_of_the_file_is_a_window_of_its_own() -> None:
    """Frames are 40 ms and windows 50 ms: a file hardly ever ends with a window."""
    samples = np.concatenate([silence(0.1), tone(0.04)])
    row = measure(samples, RATE)
    assert row["active_share"] == pytest.approx(1 / 3)
    assert row["trailing_silence_s"] == 0


def test_activity_threshold_is_the_briefs_and_can_be_moved() -> None:
    just_below, just_above = tone(1, amplitude=0.0139), tone(1, amplitude=0.0144)  # RMS -40.14 and -39.83 dBFS
    assert measure(just_below, RATE)["active_share"] == 0
    assert measure(just_above, RATE)["active_share"] == 1
    assert measure(just_below, RATE, active_dbfs=-50)["active_share"] == 1


def test_silence_has_no_loudness_and_no_correlation() -> None:
    row = measure(silence(3), RATE)
    assert (row["rms_dbfs"], row["lufs"], row["stereo_correlation"]) == (None, None, None)
    assert (row["active_share"], row["leading_silence_s"], row["longest_silence_s"]) == (0, 3, 3)


def test_a_third_of_a_second_is_measured_without_loudness() -> None:
    row = measure(tone(0.3), RATE)
    assert row["lufs"] is None
    assert row["active_share"] == 1 and row["seconds"] == pytest.approx(0.3)


def test_broken_samples_are_counted_and_spoil_nothing_else() -> None:
    samples = tone(1)
    samples[100, 0], samples[200, 1], samples[300] = np.nan, np.inf, -np.inf
    before = samples.copy()
    row = measure(samples, RATE)
    assert row["nan_count"] == 4
    assert row["peak"] == pytest.approx(0.5, abs=1e-6)
    assert row["rms_dbfs"] == pytest.approx(-9.03, abs=0.01)
    np.testing.assert_array_equal(samples, before)


def test_correlation_tells_mono_opposite_unrelated_and_constant() -> None:
    noise = np.random.default_rng(0).normal(size=(RATE, 2)) * 0.1
    mono, one_sided = tone(1), tone(1) * np.array([1, 0], np.float32) + np.array([0, 0.25], np.float32)
    assert measure(mono, RATE)["stereo_correlation"] == pytest.approx(1)
    assert measure(mono * np.array([1, -1], np.float32), RATE)["stereo_correlation"] == pytest.approx(-1)
    assert measure(noise, RATE)["stereo_correlation"] == pytest.approx(0, abs=0.02)
    assert measure(one_sided, RATE)["stereo_correlation"] is None
    assert measure(mono[:, :1], RATE)["stereo_correlation"] is None


def test_offset_and_clipping_are_seen() -> None:
    shifted = tone(1, 0.3) + np.array([0.0, 0.1], np.float32)
    assert measure(shifted, RATE)["dc"] == pytest.approx(0.1, abs=1e-4)
    cut = np.clip(tone(1, amplitude=1.3, hz=997), -1, 1)
    share = 1 - 2 / np.pi * np.arcsin(1 / 1.3)  # of the time that a sine of 1.3 spends beyond 1
    assert measure(cut, RATE)["clipped_share"] == pytest.approx(share, abs=0.01)
    assert measure(tone(1, amplitude=0.999), RATE)["clipped_share"] == 0


@pytest.mark.parametrize(
    ("samples", "raised"),
    [
        (tone(2, 0.3), []),
        (silence(2), ["silent"]),
        (silence(9), ["silent", "gap"]),
        (np.concatenate([tone(1, 0.3), silence(1.5)]), ["inactive"]),
        (np.concatenate([tone(10, 0.3), silence(8.5)]), ["gap"]),
        (np.clip(tone(2, 1.5), -1, 1), ["clipped", "loud"]),
        (tone(2, 0.3) + np.float32(0.05), ["dc"]),
        (tone(2, 0.0005), ["silent", "quiet"]),
        (np.where(np.arange(96000)[:, None] == 5, np.nan, tone(2, 0.3)), ["nan"]),
        (tone(0.3), []),
    ],
    ids=lambda value: "+".join(value) or "fine" if isinstance(value, list) else "",
)  # fmt: skip
def test_flags_are_raised_by_the_default_thresholds(samples: np.ndarray, raised: list[str]) -> None:
    assert flags(measure(samples, RATE), QaSettings()) == raised
    assert set(raised) <= set(FLAGS)


def test_thresholds_come_from_the_settings() -> None:
    row = measure(tone(2, 0.3), RATE)
    assert flags(row, QaSettings(max_lufs=-20)) == ["loud"]
    assert flags(row, QaSettings(min_lufs=-5)) == ["quiet"]


def test_importing_measures_brings_numpy_only() -> None:
    code = "import sys, levo.measures; print([m for m in ('scipy', 'pyloudnorm', 'pydantic') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_low_rate_gives_no_loudness_instead_of_nonsense() -> None:
    assert measure(tone(2, rate=1200, hz=100), 1200)["lufs"] is None
