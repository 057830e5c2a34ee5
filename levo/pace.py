"""How far a long loop is, in a line every few seconds; and spans of time in words. Knows counts and clocks only."""

import time
from collections.abc import Callable

EVERY_S = 10.0


class Pace:
    """unit: what is counted.  total: how many there will be; None where nobody knows before the end."""

    def __init__(self, unit: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.unit, self.total, self.clock = unit, total, clock
        self.n = 0
        self.started = self.spoken = clock()

    def add(self) -> None:
        """One more is done. Prints a line, unless the last one is recent."""
        self.n += 1
        now = self.clock()
        if now - self.spoken >= EVERY_S:
            self.spoken = now
            print(self.line(now - self.started), flush=True)  # into a pipe or a log too

    def line(self, elapsed_s: float) -> str:
        """120 of 500 files, 1.5 a second, 4 min left."""
        rate = self.n / elapsed_s
        parts = [f"{self.n:,} {self.unit}" if self.total is None else f"{self.n:,} of {self.total:,} {self.unit}"]
        parts.append(f"{rate:,.0f} a second" if rate >= 10 else f"{rate:.2g} a second")
        if self.total is not None:
            parts.append(f"{duration((self.total - self.n) / rate)} left")
        return ", ".join(parts)


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
