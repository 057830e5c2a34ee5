"""What a measured number is called, and what it means. Knows no audio."""

from typing import NamedTuple


class Column(NamedTuple):
    """One number of a file. type: name of its Arrow type."""

    name: str
    type: str
    unit: str
    meaning: str


Measured = dict[str, float | int | None]
"""By column name; None where the number does not exist (the loudness of silence, say)."""
