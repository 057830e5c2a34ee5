"""The rank processes of a shard: started, listened to, ended. Knows no songs.

Plain spawned processes, one pipe each (no nested srun: it hangs inside a Snakemake job). Each sees one GPU only and
computes with one CPU thread; threads change bits on a CPU.
"""

import multiprocessing
import multiprocessing.resource_tracker
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from levo.node import rank
from levo.node.messages import Bye, FromRank, RankOrder, ToRank
from levo.node.stopping import held_back

ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
JOIN_S = 30


@dataclass(frozen=True)
class Lost:
    """A rank ended without Bye."""

    how: str


@dataclass
class _Member:
    process: SpawnProcess
    pipe: Connection
    said_bye: bool = False


class Fleet:
    """All ranks of one attempt. `members` are those that have not ended."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("spawn")
        self.members: dict[int, _Member] = {}
        with held_back():  # starting multiprocessing's own helper lets signals in again: not while a rank starts
            multiprocessing.resource_tracker.ensure_running()

    def start(self, order: RankOrder) -> None:
        """Start a rank. It sees its own GPU only, named by UUID: numbers mean something else in every environment."""
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=rank.main, args=(order, theirs), name=f"rank-{order.rank}")
        with held_back(), _environment({**ONE_THREAD, "CUDA_VISIBLE_DEVICES": order.place.gpu or ""}):
            process.start()
        theirs.close()
        self.members[order.rank] = _Member(process, ours)

    def listen(self, timeout_s: float) -> list[tuple[int, FromRank | Lost]]:
        """What the ranks have said, in each one's order. A rank's Lost is its last word; after Bye there is none."""
        waiting = {member.pipe: number for number, member in self.members.items()}
        heard: list[tuple[int, FromRank | Lost]] = []
        for pipe in wait(list(waiting), timeout_s):
            assert isinstance(pipe, Connection)
            number = waiting[pipe]
            heard += [(number, message) for message in self._hear(number)]
        return heard

    def _hear(self, number: int) -> Iterator[FromRank | Lost]:
        member = self.members[number]
        try:
            while member.pipe.poll(0):
                message: FromRank = member.pipe.recv()
                member.said_bye = member.said_bye or isinstance(message, Bye)
                yield message
        except (EOFError, OSError):  # the rank's end of the pipe is closed: it has ended
            del self.members[number]
            how = self._end(member)
            if how or not member.said_bye:
                yield Lost(how or "it ended too early")

    def _end(self, member: _Member) -> str:
        """How a process ended; empty if well."""
        member.pipe.close()
        member.process.join(JOIN_S)
        if member.process.exitcode is None:
            member.process.kill()
            member.process.join()
        code = member.process.exitcode or 0
        if code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}" if code else ""

    def send(self, number: int, message: ToRank) -> None:
        """Say something to a rank. One that has just died hears nothing; listen() tells of its end."""
        try:
            self.members[number].pipe.send(message)
        except OSError:
            return

    def kill(self, number: int) -> None:
        """End a rank at once; its songs in flight are lost work."""
        self.members[number].process.kill()

    def kill_all(self) -> None:
        """End every rank at once and wait for their ends."""
        for member in self.members.values():
            member.process.kill()
        for member in self.members.values():
            member.process.join()
            member.pipe.close()
        self.members.clear()


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a process to be spawned: it takes over those of its parent."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
