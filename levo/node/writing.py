"""Finished songs to FLAC, rows and parts, beside the engine: an encoding pool and one writer behind a bounded queue.

The engine's thread only hands songs over; it waits when `ROOM` songs are on their way. Knows no engine and no pipe:
what is on disk is reported through a callback, from the writer's thread and only after the commit.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from levo.errors import NodeError

ROOM = 8
ENCODERS = 2
RETRY_AFTER_S = 1.0


@dataclass(frozen=True)
class Encoded:
    """A song as it is written: its row, and its files as (member, bytes)."""

    song_id: str
    row: dict[str, Any]
    files: list[tuple[str, bytes]]
    seconds: float


class Parts(Protocol):
    """What is asked of levo.node.parts.PartWriter."""

    def add(self, row: dict[str, Any], files: list[tuple[str, bytes]]) -> None: ...

    def commit(self) -> int: ...


@dataclass(frozen=True)
class Limits:
    """When a part is committed, and how often an I/O error is met with another try."""

    part_songs: int
    part_seconds: float
    retries: int


FLUSH, END = "flush", "end"
"""Both ask the writer to commit what it holds; END also to end."""

Job = tuple[int, Future[Encoded]] | str


class Writing:
    """put() songs, flush() when idle, close() at the end; check() raises what went wrong in the threads."""

    def __init__(self, parts: Parts, limits: Limits, report: Callable[[list[Encoded]], None]) -> None:
        self.parts = parts
        self.limits = limits
        self.report = report
        self.error: BaseException | None = None
        self.held: dict[int, Encoded] = {}
        self.since = 0.0
        self.open_keys: set[int] = set()
        self.lock = threading.Lock()
        self.jobs: queue.Queue[Job] = queue.Queue(ROOM)
        self.pool = ThreadPoolExecutor(ENCODERS, thread_name_prefix="encode")
        self.thread = threading.Thread(target=self._run, name="write", daemon=True)
        self.thread.start()

    @property
    def uncommitted(self) -> list[int]:
        """Keys of the songs on their way to disk."""
        with self.lock:
            return sorted(self.open_keys)

    def put(self, key: int, encode: Callable[[], Encoded]) -> None:
        """Hand a song over; blocks while too many are on their way. Raises what went wrong in the threads."""
        with self.lock:
            self.open_keys.add(key)
        self._enqueue((key, self.pool.submit(encode)))

    def flush(self) -> None:
        """Have what is handed over committed soon, without waiting for it. May be called again and again."""
        if self.jobs.empty():  # else the writer is busy, and a later call does it
            self._enqueue(FLUSH)

    def close(self) -> None:
        """Commit everything and end the threads. Raises what went wrong in them."""
        self._enqueue(END)
        self.thread.join()
        self.pool.shutdown()
        self.check()

    def check(self) -> None:
        """Raise what went wrong in the threads."""
        if self.error is not None:
            raise self.error

    def _enqueue(self, job: Job) -> None:
        while True:
            self.check()
            try:
                return self.jobs.put(job, timeout=0.5)
            except queue.Full:
                continue

    def _run(self) -> None:
        try:
            ended = False
            while not ended:
                ended = self._next()
        except BaseException as error:  # the engine's thread raises it again, at its next call
            self.error = error

    def _next(self) -> bool:
        """Serve one job, or the clock. Returns True at the end."""
        try:
            wait = max(0.0, self.since + self.limits.part_seconds - time.monotonic()) if self.held else None
            job = self.jobs.get(timeout=wait)
        except queue.Empty:
            self._commit()
            return False
        if not isinstance(job, str):
            key, encoding = job
            encoded = encoding.result()
            if not self.held:
                self.since = time.monotonic()
            self.held[key] = encoded
            self.parts.add(encoded.row, encoded.files)
        if isinstance(job, str) or len(self.held) >= self.limits.part_songs:
            self._commit()
        return job == END

    def _commit(self) -> None:
        if not self.held:
            return
        for tries_left in range(self.limits.retries, -1, -1):
            try:
                self.parts.commit()
                break
            except OSError as error:
                print(f"writing a part failed, {tries_left} tries left: {error}", flush=True)
                if not tries_left:
                    raise NodeError(
                        f"a part could not be written: {error}",
                        where=", ".join(encoded.song_id for encoded in self.held.values()),
                        fix="look after the file system (space, quota, mount); the next attempt makes these songs",
                    ) from error
                time.sleep(RETRY_AFTER_S)
        done, self.held = self.held, {}
        with self.lock:
            self.open_keys -= done.keys()
        self.report(list(done.values()))
