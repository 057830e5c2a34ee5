"""The end of the job, and which songs still fit before it. Knows clocks and predictions; no process and no queue."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from levo.node.slurm_job import SlurmJob
from levo.songs.song import FRAME_RATE, Song

MARGIN_S, MARGIN_SHARE = 300.0, 0.1
"""What is kept free before the end, to commit in: of a short limit a share."""
SPREAD = 1.25
"""Songs take up to so much longer than a mean tells."""
KEPT = 32
PREEMPTED_S = 900.0
"""A signal that comes with more time left than this is not the time limit's (Slurm's --signal comes minutes early)."""


class Deadline:
    """Of one attempt. Without a known limit everything fits.

    cost_s: predicted GPU-seconds by song id.  company: how many songs a rank has at once; so many times its cost a
    song takes, since they share the GPU.
    """

    def __init__(
        self,
        job: SlurmJob | None,
        cost_s: Mapping[str, float],
        company: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock, self.cost_s, self.company = clock, cost_s, company
        limit_s = job.limit_s if job else None
        self.end_s = job.end_s if job and job.end_s is not None else math.inf
        self.margin_s = min(MARGIN_S, MARGIN_SHARE * limit_s) if limit_s is not None else 0.0
        self.usable_s = self.left_s
        self.measured: deque[tuple[float, float]] = deque(maxlen=KEPT)

    @property
    def job_left_s(self) -> float:
        """Seconds until Slurm ends the job; infinite when not known."""
        return self.end_s - self.clock()

    @property
    def left_s(self) -> float:
        """Seconds in which songs can be made."""
        return self.job_left_s - self.margin_s

    @property
    def is_far(self) -> bool:
        """A signal now would come from preemption, not from the time limit; False when no limit is known."""
        return PREEMPTED_S < self.job_left_s < math.inf

    def took(self, song: Song, seconds: float) -> None:
        """A song was in an engine for so long."""
        self.measured.append((_predicted_s(song), seconds))

    def needs_s(self, song: Song) -> float:
        """Predicted time from being given out to leaving the engine.

        By the pace of the last songs of this attempt. Before there are any, by the plan's speed file, which may come
        from another machine: it never keeps a job from trying in the first half of its time.
        """
        if not self.measured:
            return min(self.cost_s[song.song_id] * self.company, self.usable_s / 2)
        predicted_s, took_s = (sum(times) for times in zip(*self.measured, strict=True))
        return SPREAD * _predicted_s(song) * took_s / predicted_s

    def fits(self, song: Song) -> bool:
        """It would be made before the end."""
        return self.end_s == math.inf or self.needs_s(song) <= self.left_s


def _predicted_s(song: Song) -> float:
    return song.predicted_frames / FRAME_RATE
