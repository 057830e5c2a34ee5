"""Where there is sound: windows of 50 ms whose RMS, over both channels, lies above a threshold (the brief's -40 dBFS).

Silences are runs of windows without sound, so they are exact to 50 ms. What is left at the end of the file is a shorter
window of its own.
"""

import numpy as np

from levo.measures.column import Column, Measured

WINDOW_S = 0.05

COLUMNS = (
    Column("active_share", "double", "share", "50 ms windows whose RMS lies above qa.active_dbfs"),
    Column("leading_silence_s", "double", "s", "silence before the first active window; of a silent file, all of it"),
    Column("trailing_silence_s", "double", "s", "silence after the last active window; of a silent file, all of it"),
    Column("longest_silence_s", "double", "s", "longest run of windows that are not active, ends included"),
)


def measure(samples: np.ndarray, rate: int, active_dbfs: float) -> Measured:
    """samples: float64 [n, channels], finite."""
    n = len(samples)
    if not n:
        return {"active_share": 0.0, "leading_silence_s": 0.0, "trailing_silence_s": 0.0, "longest_silence_s": 0.0}
    starts = np.arange(0, n, max(1, round(WINDOW_S * rate)))
    lengths = np.diff(starts, append=n)
    power = np.add.reduceat(np.square(samples).mean(axis=1), starts) / lengths  # [windows]
    active = power > 10 ** (active_dbfs / 10)
    # A silence lies between two neighbouring active windows, or between one and an end of the file.
    where = np.flatnonzero(active)
    ends_before = np.concatenate([[0], starts[where] + lengths[where]])
    starts_after = np.concatenate([starts[where], [n]])
    silences = (starts_after - ends_before) / rate
    return {
        "active_share": float(active.mean()),
        "leading_silence_s": float(silences[0]),
        "trailing_silence_s": float(silences[-1]),
        "longest_silence_s": float(silences.max()),
    }
