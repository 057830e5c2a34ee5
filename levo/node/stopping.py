"""Signals that mean: stop early, keep what is finished. SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, in any order, any number.

Slurm sends them at preemption, requeue, the time limit and scancel; a person presses Ctrl-C.
"""

import signal
from types import FrameType, TracebackType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(Exception):
    """A stop signal came while nothing was under way that needs an orderly end."""


class StopSignals:
    """Within this context a stop signal is noted in `received`; while `at_once` is set it raises Stopped."""

    def __init__(self) -> None:
        self.received: str | None = None
        self.at_once = True
        self.former: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in STOP_SIGNALS:
            self.former[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if self.at_once:
            self.at_once = False
            raise Stopped(self.received)
