"""How many songs of a shard have a row, of which outcome, and how much audio they are.

The journal's events `start`, `commit` and `sealed` carry it (`so_far`), counted over all attempts, so that whoever
wants to know how a shard stands reads the end of one journal, and neither its beginning nor any table.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from levo.songs.song import FRAME_RATE

MOST_REASONS, LONGEST_REASON = 10, 200
"""Kinds of reasons that an event carries, and characters of each: an event stays a short line."""


@dataclass
class Tally:
    """ok, rejected, failed: songs.  audio_s: seconds of audio, every rendition counted; predicted_s: as planned.

    reasons: why songs are not ok.
    """

    ok: int = 0
    rejected: int = 0
    failed: int = 0
    predicted_s: float = 0.0
    audio_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> "Tally":
        """Count rows. Of each: outcome, error, seconds, renditions, predicted_frames."""
        tally = cls()
        for row in rows:
            setattr(tally, row["outcome"], getattr(tally, row["outcome"]) + 1)
            tally.predicted_s += row["predicted_frames"] * row["renditions"] / FRAME_RATE
            if row["outcome"] == "ok":
                tally.audio_s += row["seconds"] * row["renditions"]
            else:
                tally.reasons[str(row["error"])[:LONGEST_REASON]] += 1
        return tally

    @property
    def n_songs(self) -> int:
        """Songs of every outcome."""
        return self.ok + self.rejected + self.failed

    def add(self, other: "Tally") -> None:
        """Count these, too."""
        self.ok += other.ok
        self.rejected += other.rejected
        self.failed += other.failed
        self.predicted_s += other.predicted_s
        self.audio_s += other.audio_s
        self.reasons.update(other.reasons)

    def as_json(self) -> dict[str, Any]:
        """For the journal."""
        seconds = {"predicted_s": round(self.predicted_s, 3), "audio_s": round(self.audio_s, 3)}
        return {**vars(self), **seconds, "reasons": dict(self.reasons.most_common(MOST_REASONS))}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Tally":
        """What as_json made. Raises TypeError for anything else."""
        return cls(**{**content, "reasons": Counter(content["reasons"])})


TALLIED = ("outcome", "error", "seconds", "renditions", "predicted_frames")
"""Columns that of_rows reads."""
