"""Progress lines of a shard: songs, speed, cost so far, time left. Knows counts and clocks only."""

import math
import time
from collections.abc import Callable

from levo.pace import duration

EVERY_S = 5.0


class Progress:
    """Counts what is committed and says so, at most every few seconds.

    n_done: songs with a row before this attempt.  predicted_s: predicted audio seconds of the songs to make.
    """

    def __init__(
        self,
        n_songs: int,
        n_done: int,
        predicted_s: float,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.n_songs = n_songs
        self.n_done = n_done
        self.left_s = predicted_s
        self.audio_s = 0.0
        self.made_s = 0.0
        self.say = say
        self.clock = clock
        self.started = self.spoken = clock()

    def add(self, n_songs: int, predicted_s: float, audio_s: float) -> None:
        """Songs were committed that were predicted as `predicted_s` and are `audio_s` long."""
        self.n_done += n_songs
        self.left_s -= predicted_s
        self.made_s += predicted_s
        self.audio_s += audio_s

    def tell(self, n_ranks: int, job_left_s: float = math.inf) -> None:
        """Print a line, unless the last one is recent."""
        now = self.clock()
        if now - self.spoken >= EVERY_S:
            self.spoken = now
            self.say(self.line(n_ranks, job_left_s))

    def line(self, n_ranks: int, job_left_s: float = math.inf) -> str:
        """12/24 songs, 3.1x realtime, 0.02 GPU-hours, 4 min left, the job ends in 50 min."""
        elapsed = max(self.clock() - self.started, 1e-9)
        parts = [
            f"{self.n_done}/{self.n_songs} songs",
            f"{self.audio_s / elapsed:.1f}x realtime",
            f"{elapsed * n_ranks / 3600:.3f} GPU-hours",
        ]
        if self.made_s and self.left_s > 0:
            parts.append(f"{duration(elapsed * self.left_s / self.made_s)} left")
        if job_left_s < math.inf:
            parts.append(f"the job ends in {duration(max(0.0, job_left_s))}")
        return ", ".join(parts)
