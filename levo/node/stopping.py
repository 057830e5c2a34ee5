"""Signals that mean: stop early, keep what is finished. SIGTERM, SIGINT, SIGUSR1 and SIGUSR2, in any order, any number.

Slurm sends them at preemption, requeue, the time limit and scancel, to every process of a step, and SIGCONT after
them, which means nothing; a person presses Ctrl-C. Also the kernel's signal to a process whose parent has died.
"""

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)


class Stopped(Exception):
    """A stop signal came while nothing was under way that needs an orderly end."""


class StopSignals:
    """Within this context a stop signal is noted in `received`; while `at_once` is set it raises Stopped.

    A process that was told to stop ends: afterwards further signals are ignored, so that they cannot change its exit
    code on its last way.
    """

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
            signal.signal(number, signal.SIG_IGN if self.received else handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if self.at_once:
            self.at_once = False
            raise Stopped(self.received)


@contextmanager
def held_back() -> Iterator[None]:
    """Stop signals wait: for this thread until the end of the context, for a process that it starts until that one
    lets them in. So none is lost, and none kills a process that has not yet said how it takes them."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def ignore_stops() -> None:
    """From now on this process takes no notice of stop signals, nor of those held back so far."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent() -> None:
    """From now on the kernel kills this process when its parent dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
