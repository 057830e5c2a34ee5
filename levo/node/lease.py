"""Who may write a shard. One writer at a time, without locks that a network file system may not keep.

Each holder makes the next numbered file of the lease folder, by hard link, which succeeds for one process only; the
highest number holds. The holder renews its file's time every 10 s. A newcomer waits until that file is released, or
its holder is known to be gone, or it has not been renewed for too long; then it makes the next file, and the former
holder, should it still live, finds that and stops.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from levo.disk import TEMPORARY, sync_folder, whole_file
from levo.errors import NodeError
from levo.node import slurm
from levo.node.paths import ShardPaths

RENEW_S = 10.0
POLL_S = 1.0
SQUEUE_EVERY_S = 20.0
SQUEUE_TIMEOUT_S = 15.0
MISSED_S = 2.5 * RENEW_S
"""A holder that is older than this has missed two renewals: only then Slurm's word counts before the wait is over."""

_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
          "REVOKED", "TIMEOUT"}  # fmt: skip


@dataclass(frozen=True)
class Holder:
    """Who holds a lease. machine: host, boot and process namespace, within which a pid means something.

    slurm_restarts: how often the job had been requeued: its runs share one job id, and only the last one counts.
    """

    machine: str
    host: str
    pid: int
    started: str
    attempt: int
    slurm_job_id: str | None
    is_released: bool = False
    slurm_restarts: int | None = None

    def __str__(self) -> str:
        run = f" after {self.slurm_restarts} restarts" if self.slurm_restarts else ""
        job = f", Slurm job {self.slurm_job_id}{run}" if self.slurm_job_id else ""
        return f"process {self.pid} on {self.host} (attempt {self.attempt}{job})"


class Lease:
    """acquire() once, then release(). `lost` is set when another writer has taken over, or renewing has failed long."""

    def __init__(
        self,
        paths: ShardPaths,
        attempt: int,
        wait_s: float,
        say: Callable[[str], None] | None = None,
        slurm_restarts: int | None = None,
    ) -> None:
        self.paths, self.wait_s = paths, wait_s
        self.say = say or (lambda sentence: print(sentence, flush=True))
        self.lost = threading.Event()
        self.ended = threading.Event()
        self.number = 0
        self.me = Holder(
            machine=_machine(),
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_started(os.getpid()) or "",
            attempt=attempt,
            slurm_job_id=os.environ.get("SLURM_JOB_ID"),
            slurm_restarts=slurm_restarts,
        )
        self.thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """The file held."""
        return _file(self.paths.lease, self.number)

    def acquire(self) -> None:
        """Become the writer. Raises NodeError when another one is still at work after wait_s."""
        self.paths.lease.mkdir(parents=True, exist_ok=True)
        while not self._take(self._wait_for_former()):
            continue
        self.thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self.thread.start()

    def release(self) -> None:
        """Let others write. Safe to call twice, and after a loss."""
        self.ended.set()
        if self.thread is None:
            return
        self.thread.join()
        self.thread = None
        if not self.lost.is_set():
            self._write(self.path, is_released=True)

    def _wait_for_former(self) -> int:
        """Returns the number to take, when nobody holds the one before it any more."""
        watch = _Watch(self.paths.lease, self.me, self.wait_s)
        is_told = False
        while True:
            number, why_free = watch.look()
            if why_free is not None:
                if why_free:
                    self.say(f"taking over shard {self.paths.number}: {why_free}")
                return number + 1
            if not is_told:
                self.say(f"shard {self.paths.number} is held by {watch.holder}; waiting up to {self.wait_s:g} s")
                is_told = True
            time.sleep(min(POLL_S, max(0.01, self.wait_s / 20)))

    def _take(self, number: int) -> bool:
        """Make the file of this number, unless somebody else is faster."""
        goal = _file(self.paths.lease, number)
        draft = self.paths.lease / f".{number:06d}.{uuid.uuid4().hex}{TEMPORARY}"
        self._write(draft)
        try:
            os.link(draft, goal)
        except FileExistsError:
            if draft.stat().st_nlink != 2:  # on NFS a repeated request may fail though the first one made the link
                return False
        except OSError as error:
            raise NodeError(
                f"the lease cannot be made: {error.strerror}",
                where=str(goal),
                fix="results/ must lie on a file system with hard links (Lustre, GPFS, NFS, ext4, xfs)",
            ) from None
        finally:
            draft.unlink()
        sync_folder(self.paths.lease)
        self.number = number
        return True

    def _write(self, path: Path, is_released: bool = False) -> None:
        content = {**asdict(self.me), "is_released": is_released}
        with whole_file(path) as file:
            file.write(json.dumps(content).encode())

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self.ended.wait(RENEW_S):
            try:
                if _highest(self.paths.lease) != self.number:
                    self.lost.set()
                    return
                os.utime(self.path)
                renewed = time.monotonic()
            except FileNotFoundError:
                self.lost.set()
                return
            except OSError as error:
                self.say(f"the lease could not be renewed: {error}")
                if time.monotonic() - renewed > self.wait_s:  # by now a newcomer may have taken over
                    self.lost.set()
                    return


def last_holder(paths: ShardPaths) -> tuple[float, Holder | None] | None:
    """(time of the last renewal, who held or holds the lease; None when that is unreadable), for whoever only looks.

    None when nobody ever held it. Raises OSError.
    """
    number = _highest(paths.lease) if paths.lease.is_dir() else 0
    return _read(_file(paths.lease, number)) if number else None


def all_holders(paths: ShardPaths) -> list[Holder]:
    """Everybody who ever held the lease, in turn; unreadable ones are left out. Raises OSError."""
    found = (_read(path)[1] for path in sorted(paths.lease.glob("[0-9]*.json")))
    return [holder for holder in found if holder is not None]


class _Watch:
    """A newcomer's view of the lease over its wait."""

    def __init__(self, folder: Path, me: Holder, wait_s: float) -> None:
        self.folder, self.me, self.wait_s = folder, me, wait_s
        self.began = time.monotonic()
        self.asked: float | None = None
        self.is_job_gone = False
        self.seen: tuple[int, float] | None = None
        self.seen_at = self.began
        self.holder: Holder | None = None

    def look(self) -> tuple[int, str | None]:
        """(highest number, why it is free; "" needs no word; None: it is not). Raises NodeError after the wait."""
        number = _highest(self.folder)
        if number == 0:
            return 0, ""
        renewed_s, self.holder = _read(_file(self.folder, number))
        if self.seen != (number, renewed_s):
            self.seen, self.seen_at = (number, renewed_s), time.monotonic()
        if self.holder is not None and self.holder.is_released:
            return number, ""
        return number, self._why_free(renewed_s)

    def _why_free(self, renewed_s: float) -> str | None:
        now_s = time.monotonic()
        is_over = now_s - self.began >= self.wait_s
        quiet_s = max(self._now_s() - renewed_s, now_s - self.seen_at)  # the latter needs no clock to be right
        holder = self.holder or "an unreadable holder"
        if isinstance(holder, Holder) and holder.machine == self.me.machine and _started(holder.pid) != holder.started:
            return f"{holder} is dead"
        if quiet_s >= max(self.wait_s, MISSED_S) or (is_over and quiet_s >= MISSED_S):
            return f"{holder} has not renewed its lease for {quiet_s:.0f} s"
        if (quiet_s >= MISSED_S or is_over) and self._is_job_gone():
            return f"{holder} is not running any more, says Slurm"
        if not is_over:
            return None
        raise NodeError(
            f"another writer holds this shard: {holder}; it renewed its lease {quiet_s:.0f} s ago",
            where=str(self.folder),
            fix="let it finish, or end it (scancel, kill) and start again",
        )

    def _now_s(self) -> float:
        """The file system's own time: this host's clock may differ from that of the holder's host."""
        probe = self.folder / f".probe.{uuid.uuid4().hex}{TEMPORARY}"
        probe.write_bytes(b"\n")
        now = probe.stat().st_mtime
        probe.unlink()
        return now

    def _is_job_gone(self) -> bool:
        """Slurm says that the holder's run of its job is over. Asked now and then; no answer means no."""
        holder = self.holder
        if holder is None or not holder.slurm_job_id:
            return False
        if holder.slurm_job_id == self.me.slurm_job_id:  # requeued: Slurm itself has ended the run before this one
            return _is_later(self.me.slurm_restarts, holder.slurm_restarts)
        if self.asked is None or time.monotonic() - self.asked >= SQUEUE_EVERY_S:
            self.asked = time.monotonic()
            self.is_job_gone = _ask_squeue(holder.slurm_job_id, holder.slurm_restarts)
        return self.is_job_gone


def _is_later(restarts: int | None, others: int | None) -> bool:
    return restarts is not None and others is not None and restarts > others


def _ask_squeue(job: str, restarts: int | None) -> bool:
    """The run of a job that began after so many restarts is over: the job has ended, or has been requeued since."""
    try:
        shown = slurm.ask(
            "squeue", "--noheader", f"--jobs={job}", "--Format=State:30,RestartCnt:10", timeout_s=SQUEUE_TIMEOUT_S
        )
    except slurm.NoAnswer as error:
        return "invalid job id" in str(error).lower()
    for line in shown.splitlines():
        state, *rest = line.split() or [""]
        now = int(rest[0]) if rest and rest[0].isdigit() else None
        if state not in _ENDED and not _is_later(now, restarts):
            return False
    return True


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.json"


def _highest(folder: Path) -> int:
    return max((int(name[:6]) for name in os.listdir(folder) if name[:1] != "." and name.endswith(".json")), default=0)


def _read(path: Path) -> tuple[float, Holder | None]:
    """(time of the last renewal, holder or None when the file is damaged). Opened, so that NFS asks its server."""
    with path.open("rb") as file:
        renewed_s = os.fstat(file.fileno()).st_mtime
        try:
            return renewed_s, Holder(**json.loads(file.read()))
        except (ValueError, TypeError):
            return renewed_s, None


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    parts = [socket.gethostname()]
    try:
        parts += [boot.read_text().strip(), os.readlink(namespace)]
    except OSError:
        parts.append("")
    return " ".join(parts)


def _started(pid: int) -> str | None:
    """When a process of this machine began, in ticks; None when it is gone or dead. Tells a reused pid apart."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZXx" else fields[19]
