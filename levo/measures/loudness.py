"""Integrated loudness after ITU-R BS.1770-4, by pyloudnorm."""

import warnings

import numpy as np

from levo.measures.column import Column, Measured

BLOCK_S = 0.4
"""The standard's gating block; shorter audio has no integrated loudness."""
LEAST_RATE_HZ = 8000
"""Below this, the standard's weighting filters reach beyond half the rate."""

COLUMNS = (
    Column("lufs", "double", "LUFS", "integrated loudness; null: silence, or shorter than 0.4 s"),
)  # fmt: skip


def measure(samples: np.ndarray, rate: int) -> Measured:
    """samples: float64 [n, channels], finite, at most five channels."""
    if len(samples) < BLOCK_S * rate or rate < LEAST_RATE_HZ:
        return {"lufs": None}
    import pyloudnorm  # late: it brings scipy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # silence: the logarithm of 0
        lufs = float(pyloudnorm.Meter(rate).integrated_loudness(samples))
    return {"lufs": lufs if np.isfinite(lufs) else None}
