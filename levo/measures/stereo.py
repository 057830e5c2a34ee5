"""How the two channels go together."""

import numpy as np

from levo.measures.column import Column, Measured

COLUMNS = (
    Column(
        "stereo_correlation",
        "double",
        "-1 to 1",
        "Pearson correlation of left and right: 1 sounds the same in both; null: a channel is constant",
    ),
)


def measure(samples: np.ndarray) -> Measured:
    """samples: float64 [n, channels], finite."""
    if samples.ndim != 2 or samples.shape[1] != 2 or len(samples) < 2:
        return {"stereo_correlation": None}
    left, right = (samples - samples.mean(axis=0)).T
    scale = float(np.sqrt(np.dot(left, left) * np.dot(right, right)))
    # A constant channel is 0 only up to rounding once its mean is taken away.
    if scale <= len(samples) * np.finfo(np.float64).eps:
        return {"stereo_correlation": None}
    return {"stereo_correlation": float(np.clip(np.dot(left, right) / scale, -1, 1))}
