"""One attempt's work: ranks are started, fed with songs and heard until every song has a row, or a signal comes.

The journal's vocabulary stands here. Knows no rows and no seal.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from levo.errors import LevoError, NodeError
from levo.node.deadline import Deadline
from levo.node.devices import Place
from levo.node.dispatch import Dispatch
from levo.node.fleet import Fleet, Lost
from levo.node.journal import Journal
from levo.node.lease import Lease
from levo.node.making import slots_of
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
    Want,
)
from levo.node.progress import Progress
from levo.node.slurm_job import SlurmJob
from levo.node.stopping import StopSignals
from levo.node.tally import Tally
from levo.pace import duration
from levo.settings import Settings
from levo.songs.song import FRAME_RATE, Song

LISTEN_S = 0.5
TIME_LIMIT = "time limit"


@dataclass(frozen=True)
class Job:
    """What an attempt works on. places: one a rank.  cost_s: the plan's GPU-seconds by song id.

    losses, tally: of earlier attempts; the tally is added to.
    """

    run_dir: Path
    shard: int
    attempt: int
    maker: str
    settings: Settings
    songs: Sequence[Song]
    n_songs: int
    losses: Mapping[str, int]
    places: Sequence[Place]
    cost_s: Mapping[str, float] = field(default_factory=dict)
    slurm: SlurmJob | None = None
    tally: Tally = field(default_factory=Tally)


@dataclass
class _RankState:
    """What the parent knows of a rank. wanted: songs that it asked for and has not got."""

    wanted: int = 0
    is_ready: bool = False
    is_told: bool = False


@dataclass
class Outcome:
    """How an attempt ended. n_open: songs without a committed row. lost: rank -> what became of it, in words.

    stopped: the signal that ended it early, or TIME_LIMIT.  error: what a rank said that a user can mend.
    """

    n_open: int
    lost: dict[int, str] = field(default_factory=dict)
    stopped: str | None = None
    error: LevoError | None = None


class Attempt:
    """run() once."""

    def __init__(
        self, job: Job, journal: Journal, lease: Lease, signals: StopSignals, say: Callable[[str], None]
    ) -> None:
        self.job = job
        self.journal = journal
        self.lease = lease
        self.signals = signals
        self.say = say
        slots = slots_of(job.settings, on_gpu=any(place.gpu for place in job.places))
        self.dispatch = Dispatch(job.songs, job.losses, slots, job.settings.node.retries)
        self.predicted_s = {song.song_id: song.predicted_frames / FRAME_RATE for song in job.songs}
        n_done = job.n_songs - len(job.songs)
        self.progress = Progress(job.n_songs, n_done, sum(self.predicted_s.values()), say)
        company = min(2 * slots, math.ceil(len(job.songs) / len(job.places)))  # two phases' slots
        self.deadline = Deadline(job.slurm, job.cost_s, company)
        self.given_s: dict[str, float] = {}
        self.fleet = Fleet()
        self.ranks: dict[int, _RankState] = {}
        self.end = Outcome(len(job.songs))
        self.is_stopping = False

    def run(self) -> Outcome:
        """Returns when every rank has ended. Raises NodeError when another writer has taken the shard over."""
        try:
            self._start()
            while self.fleet.members:
                for rank, message in self.fleet.listen(LISTEN_S):
                    self._hear(rank, message)
                self._watch()
                if not self.is_stopping:
                    self._feed()
                    self.progress.tell(len(self.fleet.members), self.deadline.job_left_s)
        finally:
            self.fleet.kill_all()
        self.say(self.progress.line(len(self.job.places)))
        self.end.n_open = self.dispatch.open
        return self.end

    def _start(self) -> None:
        job = self.job
        for rank, place in enumerate(job.places):
            self.ranks[rank] = _RankState()
            self.dispatch.join(rank)
            order = RankOrder(
                run_dir=job.run_dir,
                shard=job.shard,
                attempt=job.attempt,
                rank=rank,
                place=place,
                maker=job.maker,
                settings=job.settings,
                parent_pid=os.getpid(),
                job=job.slurm,
            )
            self.fleet.start(order)

    def _watch(self) -> None:
        """Notice a signal, the end of the work, and another writer."""
        if self.lease.lost.is_set():
            raise NodeError(
                f"another writer has taken over shard {self.job.shard}; this one stops and writes nothing more",
                where=str(self.job.run_dir),
                fix="nothing to do if that one goes on; its songs and those committed here both count",
            )
        if not self.is_stopping and (cause := self.signals.received or self._out_of_time()):
            self.say(f"{cause}: no new songs; what is finished is committed")
            self.journal.write("stop", signal=cause, early=bool(self.signals.received) and self.deadline.is_far)
            self.end.stopped = cause
            self.is_stopping = True
        if self.is_stopping or not self.dispatch.open:
            self.is_stopping = True
            for rank in list(self.fleet.members):
                self._finish(rank)

    def _out_of_time(self) -> str | None:
        """The job ends before another song could be made, and none is in work that still could."""
        deadline, waiting = self.deadline, self.dispatch.waiting
        if deadline.left_s <= 0 and self.dispatch.open:
            return TIME_LIMIT
        if not waiting or self.dispatch.in_work or any(map(deadline.fits, waiting)):
            return None
        least_s = min(map(deadline.needs_s, waiting))
        self.say(f"the job ends in {duration(deadline.job_left_s)}, and no song takes less than {duration(least_s)}")
        return TIME_LIMIT

    def _finish(self, rank: int) -> None:
        state = self.ranks[rank]
        if state.is_told:
            return
        state.is_told = True
        if state.is_ready:
            self.fleet.send(rank, Finish())
        else:  # it is still loading: nothing to commit, and loading may take minutes
            self.fleet.kill(rank)

    def _feed(self) -> None:
        """One song a rank in turn, as long as a rank wants one and may have one."""
        was_given = True
        while was_given:
            was_given = False
            for rank, state in self.ranks.items():
                if rank in self.fleet.members and state.is_ready:
                    was_given = self._feed_rank(rank, state) or was_given

    def _feed_rank(self, rank: int, state: _RankState) -> bool:
        lost_cause = self.dispatch.next_given_up(rank)
        if lost_cause is not None:
            n_losses = self.dispatch.losses[lost_cause.song_id]
            self.say(f"song {lost_cause.song_id!r} is given up: {n_losses} times its rank was lost with it inside")
            error = f"{n_losses} times a rank died or ran out of memory while it made this song, at last alone"
            self.fleet.send(rank, Record(lost_cause, error))
            return True
        song = self.dispatch.next_song(rank, self.deadline.fits) if state.wanted else None
        if song is None:
            return False
        state.wanted -= 1
        self.given_s[song.song_id] = time.monotonic()
        self.journal.write("give", song=song.song_id, rank=rank)
        self.fleet.send(rank, Make(song))
        return True

    def _hear(self, rank: int, message: FromRank | Lost) -> None:
        match message:
            case Ready(gpu_uuid):
                self._ready(rank, gpu_uuid)
            case Want(n):
                self.ranks[rank].wanted += n
            case Left(song_id):
                song = self.dispatch.left(rank, song_id)
                self.deadline.took(song, time.monotonic() - self.given_s.pop(song_id))
            case Committed(outcomes, tally):
                self._commit(rank, dict(outcomes), tally)
            case Returned(song_ids, reason):
                suspects = self.dispatch.returned(rank, song_ids)
                self._count_losses(rank, suspects, reason)
            case Broken(error):
                self.say(f"rank {rank}: {error}")
                self.end.error = error
            case Bye():
                self.dispatch.lost(rank)  # after a stop signal: what was in its engine is lost work, and nobody's fault
            case Lost(how):
                self._lose(rank, how)

    def _commit(self, rank: int, outcomes: Mapping[str, str], tally: Tally) -> None:
        ids = list(outcomes)
        self.dispatch.committed(rank, ids)
        self.job.tally.add(tally)
        self.journal.write(
            "commit",
            rank=rank,
            songs=ids,
            outcomes=list(outcomes.values()),
            missing=self.dispatch.open,
            in_work=self.dispatch.in_work,
            so_far=self.job.tally.as_json(),
        )
        self.progress.add(len(ids), sum(self.predicted_s[song_id] for song_id in ids), tally.audio_s)

    def _ready(self, rank: int, gpu_uuid: str | None) -> None:
        state = self.ranks[rank]
        state.is_ready = True
        bound = self.job.places[rank].gpu
        if gpu_uuid != bound:
            raise NodeError(
                f"rank {rank} was bound to GPU {bound}, but computes on {gpu_uuid}",
                where=f"shard {self.job.shard}",
                fix="look for what sets CUDA_VISIBLE_DEVICES when Python starts (sitecustomize, a wrapper of python)",
            )

    def _lose(self, rank: int, how: str) -> None:
        suspects = self.dispatch.lost(rank)
        if self.ranks[rank].is_told and not self.ranks[rank].is_ready:
            return  # killed by us while it was loading
        self.end.lost[rank] = how
        self._count_losses(rank, suspects, how)

    def _count_losses(self, rank: int, suspects: list[str], how: str) -> None:
        self.journal.write("lost", rank=rank, songs=suspects, how=how)
        rest = f"{len(suspects)} songs were in it and go back to the queue"
        self.say(f"rank {rank} lost its engine ({how}); {rest}")
