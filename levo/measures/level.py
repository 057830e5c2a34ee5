"""Levels of the whole file: RMS, peak, clipping, DC, broken samples. Full scale is 1."""

import numpy as np

from levo.measures.column import Column, Measured

FULL_SCALE = 32767 / 32768
"""The largest value of 16-bit PCM. A file may touch it only where something was cut off: ours have a peak of 0.999."""

COLUMNS = (
    Column("rms_dbfs", "double", "dBFS", "root mean square over both channels; null: digital silence"),
    Column("peak", "double", "full scale", "largest absolute sample"),
    Column("clipped_share", "double", "share", "samples at or beyond full scale"),
    Column("dc", "double", "full scale", "largest absolute mean of a channel"),
    Column("nan_count", "int64", "samples", "samples that are no finite numbers; other measures take them as 0"),
)


def measure(samples: np.ndarray, nan_count: int) -> Measured:
    """samples: float64 [n, channels], finite. No samples at all measure as silence."""
    power = float(np.mean(np.square(samples))) if samples.size else 0.0
    magnitude = np.abs(samples)
    return {
        "rms_dbfs": 10 * float(np.log10(power)) if power > 0 else None,
        "peak": float(magnitude.max(initial=0.0)),
        "clipped_share": float(np.mean(magnitude >= FULL_SCALE)) if samples.size else 0.0,
        "dc": float(np.abs(samples.mean(axis=0)).max()) if samples.size else 0.0,
        "nan_count": nan_count,
    }
