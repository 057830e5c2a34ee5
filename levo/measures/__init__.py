"""measures: samples in, numbers out (numpy). Knows nothing else.

A new measure is a file with COLUMNS and measure(), and one line in each table here; it then appears in Parquet, qa.json
and the page by itself. Every measure takes anything: 0.3 s, silence, NaN, one channel; None stands where a number does
not exist.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from levo.measures import activity, level, loudness, stereo
from levo.measures.column import Column, Measured

__all__ = ["COLUMNS", "FLAGS", "Column", "Measured", "Thresholds", "flags", "measure"]

COLUMNS: tuple[Column, ...] = (
    Column("seconds", "double", "s", "length of the file"),
    *level.COLUMNS,
    *activity.COLUMNS,
    *loudness.COLUMNS,
    *stereo.COLUMNS,
)


class Thresholds(Protocol):
    """What is asked of levo.settings.QaSettings, whose sentences say what each means."""

    @property
    def active_dbfs(self) -> float: ...
    @property
    def min_active_share(self) -> float: ...
    @property
    def max_clipped_share(self) -> float: ...
    @property
    def max_dc(self) -> float: ...
    @property
    def max_silence_s(self) -> float: ...
    @property
    def min_lufs(self) -> float: ...
    @property
    def max_lufs(self) -> float: ...


Row = Mapping[str, float | int | None]


def _at(row: Row, name: str, instead: float = 0.0) -> float:
    value = row[name]
    return instead if value is None else value


# Null loudness is silence, or too short to tell: `silent` says the first, nobody need hear the second.
FLAGS: dict[str, tuple[str, Callable[[Row, Thresholds], bool]]] = {
    "nan": ("samples that are no numbers", lambda row, at: _at(row, "nan_count") > 0),
    "silent": ("no window with sound", lambda row, at: _at(row, "active_share") == 0),
    "inactive": ("little sound", lambda row, at: 0 < _at(row, "active_share") < at.min_active_share),
    "gap": ("a long silence", lambda row, at: _at(row, "longest_silence_s") > at.max_silence_s),
    "clipped": ("samples at full scale", lambda row, at: _at(row, "clipped_share") > at.max_clipped_share),
    "dc": ("a constant offset", lambda row, at: _at(row, "dc") > at.max_dc),
    "quiet": ("low loudness", lambda row, at: _at(row, "lufs", at.min_lufs) < at.min_lufs),
    "loud": ("high loudness", lambda row, at: _at(row, "lufs", at.max_lufs) > at.max_lufs),
}
"""Every flag: what it means in words, and when it is raised."""


def measure(samples: np.ndarray, rate: int, active_dbfs: float = -40.0) -> Measured:
    """Every number of COLUMNS for samples [n, channels], full scale 1. The array is not changed."""
    finite = np.isfinite(samples)
    nan_count = int(samples.size - np.count_nonzero(finite))
    clean = np.where(finite, samples, 0).astype(np.float64)
    return {
        "seconds": len(samples) / rate,
        **level.measure(clean, nan_count),
        **activity.measure(clean, rate, active_dbfs),
        **loudness.measure(clean, rate),
        **stereo.measure(clean),
    }


def flags(row: Row, thresholds: Thresholds) -> list[str]:
    """Names of the flags that a measured row raises, in the order of FLAGS."""
    return [name for name, (_, raised) in FLAGS.items() if raised(row, thresholds)]
