"""One rank: a process with one device that makes songs for a shard's parent. Knows no logits and no queue.

Its only input is its order and its pipe. It asks for songs while its engine has room, hands finished ones to the
writing threads, and says "committed" only when a part is on disk. All its wall time is booked in its ledger: the
engine books its stages, this file books load, idle, and the waits for encode and write.
It ignores signals (a Ctrl-C or Slurm reaches every process of a job): the parent decides, and the kernel kills the
rank when the parent dies.
"""

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

from levo.engine.request import Finished
from levo.errors import LevoError
from levo.node.binding import bind
from levo.node.faults import fault
from levo.node.ledger import Ledger
from levo.node.machine import machine, peak_memory_bytes
from levo.node.making import EngineLike, Making, find_maker, prompt_tokens, recipe_of, request_of
from levo.node.messages import (
    Broken,
    Bye,
    Committed,
    Finish,
    FromRank,
    Left,
    Make,
    RankOrder,
    Ready,
    Record,
    Returned,
    ToRank,
    Want,
)
from levo.node.parts import PartWriter
from levo.node.paths import RunPaths
from levo.node.rows import RowMaker, Taken
from levo.node.stopping import die_with_parent, ignore_stops
from levo.node.tally import Tally
from levo.node.writing import Encoded, Limits, Writing
from levo.songs.song import Song

IDLE_POLL_S = 0.2


def main(order: RankOrder, pipe: Connection) -> None:
    """Target of the spawned process. Ends with exit code 0 only after Bye."""
    ignore_stops()
    die_with_parent()
    if os.getppid() != order.parent_pid:  # it died before the call
        os._exit(1)
    bound = bind(order.place.cores, order.place.memory_node)
    log = RunPaths(order.run_dir).shard(order.shard).log(order.attempt, order.rank)
    _redirect_output(os.fspath(log))
    print(f"rank {order.rank} of process {order.parent_pid}: GPU {order.place.gpu}, {bound}", flush=True)
    to_parent = _Pipe(pipe)
    try:
        _Rank(order, to_parent).run()
    except LevoError as error:
        print(error, flush=True)
        to_parent.send(Broken(error))
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of a broken rank must not keep it alive


def _redirect_output(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


class _Pipe:
    """The pipe to the parent. Two threads send: the engine's and the writer's."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.lock = threading.Lock()

    def send(self, message: FromRank) -> None:
        with self.lock:
            self.pipe.send(message)

    def heard(self) -> Iterator[ToRank]:
        """What the parent has said and this rank has not yet taken."""
        while self.pipe.poll(0):
            yield self.pipe.recv()

    def wait(self, timeout_s: float) -> None:
        """Until the parent says something."""
        self.pipe.poll(timeout_s)


@dataclass
class _InEngine:
    """A song in the engine."""

    song: Song
    taken: Taken


class _Rank:
    def __init__(self, order: RankOrder, pipe: _Pipe) -> None:
        self.order = order
        self.pipe = pipe
        paths = RunPaths(order.run_dir).shard(order.shard)
        self.ledger = Ledger(paths, order.attempt, order.rank)
        recipe = replace(recipe_of(order.settings, order.device), memory_gib=order.place.memory_gib)
        self.making: Making = find_maker(order.maker)(recipe, self.ledger.book)
        self.engine: EngineLike = self.making.new_engine()
        facts = machine(order.device)
        self.rows = RowMaker(order, recipe, self.making, facts)
        node = order.settings.node
        limits = Limits(node.part_songs, node.part_seconds, node.retries)
        self.writing = Writing(PartWriter(paths, order.attempt, order.rank), limits, self._report)
        self.songs: dict[int, _InEngine] = {}
        self.next_key = 0
        self.asked = 0
        self.ending = False
        self.ledger.book("load", [])
        self.pipe.send(Ready(facts.gpu_uuid))
        print(f"rank {order.rank} is ready: {facts}", flush=True)

    def run(self) -> None:
        """Make songs until the parent says Finish."""
        while not self.ending:
            self.writing.check()
            self._receive()
            self._ask()
            if self.engine.live and not self.ending:
                self._step()
        self.writing.close()
        self.ledger.book("write", [])
        self.ledger.close()
        fault("rank.idle")
        self.pipe.send(Bye())

    def _report(self, done: list[Encoded]) -> None:
        outcomes = tuple((encoded.song_id, str(encoded.row["outcome"])) for encoded in done)
        self.pipe.send(Committed(outcomes, Tally.of_rows(encoded.row for encoded in done)))

    def _receive(self) -> None:
        """Take what the parent says; with an empty engine, wait for it."""
        if not self.engine.live:
            waiting_for = self.writing.uncommitted
            if waiting_for:
                self.writing.flush()  # an idle rank holds nothing back
            self.pipe.wait(IDLE_POLL_S)
            self.ledger.book("write" if waiting_for else "idle", waiting_for)
        for message in self.pipe.heard():
            if isinstance(message, Make):
                self.asked -= 1
                self._take(message.song)
            elif isinstance(message, Record):
                self._give_up(self._new_key(message.song), message.song, "failed", message.error)
            elif isinstance(message, Finish):
                self.ending = True

    def _ask(self) -> None:
        wanted = self.engine.room - self.asked
        if wanted > 0 and not self.ending:
            self.asked += wanted
            self.pipe.send(Want(wanted))

    def _new_key(self, song: Song) -> int:
        self.next_key += 1
        self.ledger.name(self.next_key, song.song_id)
        return self.next_key

    def _take(self, song: Song) -> None:
        key = self._new_key(song)
        taken = Taken()
        try:
            taken.prompt = prompt_tokens(song, self.making)
            self.engine.submit(request_of(song, key, self.making.encoder, taken.prompt))
        except (LevoError, ValueError) as error:
            self.pipe.send(Left(song.song_id))
            self._give_up(key, song, "rejected", str(error), taken)
            return
        self.songs[key] = _InEngine(song, taken)

    def _give_up(self, key: int, song: Song, outcome: str, error: str, taken: Taken | None = None) -> None:
        print(f"song {song.song_id!r} is {outcome}: {error}", flush=True)
        self._put(key, self.rows.without_audio(song, outcome, error, taken))

    def _step(self) -> None:
        self.ledger.book("idle", [])  # what passed since the engine's last stage belongs to no song
        try:
            fault("rank.step")
            finished = self.engine.step()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._start_again(f"out of memory: {error}")
            return
        for done in finished:
            self._leave(done)

    def _leave(self, done: Finished) -> None:
        held = self.songs.pop(done.key)
        self.pipe.send(Left(held.song.song_id))
        error = done.error or _fault_of(done, held.song)
        if error is not None:
            self._give_up(done.key, held.song, "failed", error, held.taken)
            return
        peak = peak_memory_bytes(self.order.device)
        self._put(done.key, self.rows.encoder(held.song, done, held.taken, peak))

    def _put(self, key: int, encode: Callable[[], Encoded]) -> None:
        self.writing.put(key, encode)
        self.ledger.book("encode", [key])

    def _start_again(self, reason: str) -> None:
        """Drop the engine with all it holds, so that no song keeps state of another, and make a new one."""
        print(f"a new engine, because {reason}", flush=True)
        lost = tuple(held.song.song_id for held in self.songs.values())
        self.ledger.book("main", list(self.songs))
        self.ledger.lose(list(self.songs))
        self.songs.clear()
        del self.engine
        gc.collect()
        if self.order.device != "cpu":
            import torch

            torch.cuda.empty_cache()
        self.engine = self.making.new_engine()
        self.ledger.book("load", [])
        self.pipe.send(Returned(lost, reason))


def is_out_of_memory(error: Exception) -> bool:
    """Of the device or of the host. torch's class is known by its name: only the engine imports torch here."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _fault_of(done: Finished, song: Song) -> str | None:
    """What is wrong with a song that the engine calls ok; None if nothing is."""
    frames = 0 if done.tokens is None else done.tokens.shape[1]
    if not frames:
        return "the engine gave no frames"
    if frames > song.max_frames:
        return f"{frames} frames, over the cap of {song.max_frames}"
    if len(done.audio) != song.n_files:
        return f"{len(done.audio)} audio files instead of {song.n_files}"
    if any(len(audio.pcm) == 0 for audio in done.audio):
        return "an audio file without samples"
    return None
