"""One shard on one node: `levo shard`. The order of things, from lease to done mark. Knows no tensors and no queue.

What a shard has made lies in the parts of its work folder and survives any kill. An attempt reads them, makes only
what is missing, and seals the shard when every song has a row. Two attempts in a row that had songs to make and
committed none end the shard for good; `levo retry RUN` gives it another chance.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from levo.errors import EXIT_MORE_TO_DO, EXIT_OK, FailedForGood, LevoError, NodeError
from levo.node.attempt import Attempt, Job, Outcome
from levo.node.devices import Place, choose_places
from levo.node.journal import Journal, claim_attempt
from levo.node.lease import Lease
from levo.node.making import REAL
from levo.node.paths import RunPaths, ShardPaths
from levo.node.retry import ENOUGH, is_sealed
from levo.node.seal import seal
from levo.node.slurm_job import SlurmJob, this_job
from levo.node.standing import Standing, read_standing
from levo.node.stopping import Stopped, StopSignals
from levo.settings import Settings, of_run
from levo.songs.plan import read_costs, read_shard
from levo.songs.song import Song

Say = Callable[[str], None]


def run_shard(run_dir: Path, shard: int, maker: str = REAL) -> int:
    """Make the songs of a shard that are still missing, then seal it. Returns an exit code.

    EXIT_OK: the shard is sealed. EXIT_MORE_TO_DO: a signal or the job's end came first; run it again. Raises NodeError
    when the shard cannot go on here, or has failed for good. maker: what loads the model (levo.node.making).
    """
    settings = of_run(run_dir)
    songs = read_shard(RunPaths(run_dir).plan, shard)
    paths = RunPaths(run_dir).shard(shard)
    if is_sealed(paths):
        print(f"shard {shard} is sealed already: {len(songs)} songs, nothing to do", flush=True)
        return EXIT_OK
    attempt = claim_attempt(paths)
    say = _teller(paths.log(attempt))
    with StopSignals() as signals:
        lease = None
        try:
            job = this_job(say)
            lease = Lease(paths, attempt, settings.node.lease_wait_s, say, job.restarts if job else None)
            lease.acquire()
            if is_sealed(paths):
                say(f"shard {shard} was sealed by the other writer: nothing to do")
                return EXIT_OK
            return _Run(paths, settings, songs, attempt, say, job).go(lease, signals, maker)
        except Stopped as stopped:
            say(f"{stopped}: shard {shard} stops before its ranks are started")
            return EXIT_MORE_TO_DO
        except OSError as error:
            raise NodeError(
                f"the file system failed: {error}",
                where=str(paths.work),
                fix="look after it (space, quota, mount), then run the shard again: what is committed is kept",
            ) from error
        finally:
            signals.at_once = False
            if lease is not None:
                lease.release()


def _teller(log: Path) -> Say:
    """Prints a line, and keeps it in the attempt's log, which no retry deletes."""

    def say(line: str) -> None:
        print(line, flush=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    return say


class _Run:
    """An attempt under the lease."""

    def __init__(
        self,
        paths: ShardPaths,
        settings: Settings,
        songs: Sequence[Song],
        attempt: int,
        say: Say,
        job: SlurmJob | None,
    ) -> None:
        self.paths, self.settings, self.songs = paths, settings, songs
        self.attempt, self.say, self.job = attempt, say, job
        self.journal = Journal(paths, attempt)

    def go(self, lease: Lease, signals: StopSignals, maker: str) -> int:
        """Make, then seal. Returns an exit code; how it ended otherwise is in the journal before it is raised."""
        try:
            return self._go(lease, signals, maker)
        except Stopped as stopped:
            self.journal.write("stop", signal=str(stopped))
            raise
        except LevoError as error:
            self.journal.write("failed", error=error.what, for_good=isinstance(error, FailedForGood))
            raise

    def _go(self, lease: Lease, signals: StopSignals, maker: str) -> int:
        standing = read_standing(self.paths, self.songs, self.say)
        n_done, n_missing = len(self.songs) - len(standing.missing), len(standing.missing)
        in_flight = f"{standing.in_flight} were in flight at the last attempt"
        self.say(f"resuming: {n_done} songs done, {n_missing} to make, {in_flight}")
        places: list[Place] = []
        if standing.missing:
            self._refuse_hopeless(standing)
            # Before the start: an attempt that a node is not fit for says nothing about the shard.
            places = choose_places(self.settings, self.job, self.say)
        self.journal.write(
            "start",
            done=n_done,
            missing=n_missing,
            in_flight=standing.in_flight,
            so_far=standing.tally.as_json(),
            slurm_restarts=self.job.restarts if self.job else None,
        )
        if places:
            outcome = self._make(standing, places, lease, signals, maker)
            if outcome.n_open:
                return self._unfinished(outcome)
        signals.at_once = False
        summary = seal(self.paths, list(self.songs), self.settings, self.attempt)
        self.say(str(summary))
        self.journal.write("sealed", so_far=summary.tally.as_json(), bill=json.loads(summary.bill.as_json()))
        return EXIT_OK

    def _refuse_hopeless(self, standing: Standing) -> None:
        if standing.fruitless >= ENOUGH:
            raise FailedForGood(
                f"shard {self.paths.number} has failed for good: {standing.fruitless} attempts in a row made no song "
                f"({len(standing.missing)} are missing)",
                where=f"{self.paths.work}/log-a*.txt",
                fix=f"find the cause in the logs, mend it, then `levo retry {self.paths.run_dir}`, and run it again",
            )

    def _make(self, standing: Standing, places: list[Place], lease: Lease, signals: StopSignals, maker: str) -> Outcome:
        run_dir, shard = self.paths.run_dir, self.paths.number
        job = Job(
            run_dir=run_dir,
            shard=shard,
            attempt=self.attempt,
            maker=maker,
            settings=self.settings,
            songs=standing.missing,
            n_songs=len(self.songs),
            losses=standing.losses,
            places=places,
            cost_s=read_costs(RunPaths(run_dir).plan, shard),
            slurm=self.job,
            tally=standing.tally,
        )
        signals.at_once = False
        return Attempt(job, self.journal, lease, signals, self.say).run()

    def _unfinished(self, outcome: Outcome) -> int:
        if outcome.stopped:
            self.say(f"{outcome.stopped}: {outcome.n_open} songs are left; run the shard again")
            return EXIT_MORE_TO_DO
        if outcome.error is not None:
            raise outcome.error
        logs = ", ".join(str(self.paths.log(self.attempt, rank)) for rank in outcome.lost)
        causes = "; ".join(f"rank {rank}: {how}" for rank, how in outcome.lost.items())
        raise NodeError(
            f"shard {self.paths.number}: every rank is lost ({causes}); {outcome.n_open} songs are left",
            where=logs,
            fix="run it again: what is committed is kept; if it comes again, the logs say why",
        )
