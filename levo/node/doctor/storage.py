"""Doctor: the model's files, the audio library, and what the file system of the output path can do."""

import fcntl
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from levo.errors import LevoError
from levo.node.doctor.finding import NOTE, PROBLEM, WARNING, Finding, good

READ_BYTES = 1 << 30
PIECE_BYTES = 16 << 20
SLOW_GB_S = 1.0
LEAST_FREE_BYTES = 50e9  # about 2000 three-minute songs as FLAC
LEAST_FREE_FILES = 10_000
MOST_SKEW_S = 5.0
NEARLY_FULL = 0.9
TIMEOUT_S = 20.0


def check_model(model_dir: Path | None) -> Iterator[Finding]:
    """Whether it is whole, and how fast its files are read."""
    if model_dir is None:
        yield Finding(NOTE, "model", "not given", "name it with --model DIR; `levo model convert` makes one")
        return
    from levo.model import identity as ids

    try:
        identity = ids.read_identity(model_dir)
        ids.check_plain_files(model_dir, identity)
    except LevoError as error:
        yield Finding(PROBLEM, "model", error.what, error.fix or ids.AGAIN)
        return
    files = [model_dir / name for name in identity.tensors]
    missing = [path.name for path in files if not path.exists()]
    if missing:
        yield Finding(PROBLEM, "model", f"{len(missing)} files missing: {', '.join(missing[:5])}", ids.AGAIN)
        return
    total = sum(path.stat().st_size for path in files)
    yield good("model", f"{identity.name}, {total / 1e9:.2f} GB, digest {identity.digest[:16]}")
    yield judge_reading(total, *_read(files, is_cold=True), *_read(files, is_cold=False))


def _read(files: list[Path], is_cold: bool) -> tuple[int, float]:
    """Bytes and seconds of reading the first files, after asking the kernel to forget them if is_cold."""
    n_bytes, started = 0, time.monotonic()
    for path in files:
        with path.open("rb", buffering=0) as file:
            if is_cold:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while n_bytes < READ_BYTES and (piece := file.read(PIECE_BYTES)):
                n_bytes += len(piece)
    return n_bytes, time.monotonic() - started


def judge_reading(total: int, cold: int, cold_s: float, warm: int, warm_s: float) -> Finding:
    """How long a rank waits for the weights; small models say nothing about a disk."""
    speeds = [n_bytes / 1e9 / max(seconds, 1e-9) for n_bytes, seconds in ((cold, cold_s), (warm, warm_s))]
    found = f"{cold / 1e9:.2f} GB read at {speeds[0]:.1f} GB/s, again from the page cache at {speeds[1]:.1f} GB/s"
    if total >= READ_BYTES and speeds[0] < SLOW_GB_S:
        fix = f"the model takes {total / 1e9 / speeds[0]:.0f} s to read: keep it on a faster or node-local file system"
        return Finding(WARNING, "model path", found, fix)
    return good("model path", found)


def check_audio() -> Iterator[Finding]:
    """libsndfile: FLAC must come back bit for bit."""
    fix = "pip install soundfile (its wheels bring libsndfile), or load a libsndfile 1.1 or newer"
    try:
        import soundfile

        from levo.node.audio import decode_flac, encode_flac

        pcm = np.random.default_rng(0).integers(-32768, 32768, (4800, 2)).astype(np.int16)
        back, rate = decode_flac(encode_flac(pcm, 48000))
        formats = [name for name in ("FLAC", "WAV", "OGG", "MP3") if name in soundfile.available_formats()]
    except (ImportError, OSError, RuntimeError, KeyError) as error:
        yield Finding(PROBLEM, "audio", f"libsndfile does not write FLAC: {error}", fix)
        return
    if rate != 48000 or not np.array_equal(back, pcm):
        yield Finding(PROBLEM, "audio", "FLAC does not come back bit for bit", fix)
    else:
        yield good("audio", f"libsndfile {soundfile.__libsndfile_version__}: {', '.join(formats)}; FLAC bit for bit")


def check_output(out: Path) -> Iterator[Finding]:
    """Space, files, and the promises of the file system that shards rely on."""
    existing = next(path for path in (out.absolute(), *out.absolute().parents) if path.is_dir())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".levo-doctor-", dir=existing))
    except OSError as error:
        yield Finding(PROBLEM, "output", f"{existing} is not writable: {error.strerror}", "give another --out")
        return
    try:
        yield judge_space(existing, os.statvfs(existing))
        yield from _quota(existing)
        yield _promises(folder)
        yield _locks(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge_space(folder: Path, stats: os.statvfs_result) -> Finding:
    """Free space and free files (inodes); a file system that counts no inodes reports none in all."""
    free = stats.f_bavail * stats.f_frsize
    files = f"{stats.f_favail:,} more files" if stats.f_files else "no limit on files told"
    found = f"{folder}: {free / 1e9:.0f} GB free, {files}"
    if free < LEAST_FREE_BYTES:
        return Finding(
            WARNING, "space", found, "a three-minute song takes some 25 MB: free space, or use another --out"
        )
    if stats.f_files and stats.f_favail < LEAST_FREE_FILES:
        return Finding(WARNING, "space", found, "a shard takes some hundred files: remove some, or ask for more")
    return good("space", found)


def _quota(folder: Path) -> Iterator[Finding]:
    """The user's quota on Lustre, where it can be asked for."""
    user = os.environ.get("USER", "")
    if shutil.which("lfs") is None or not user:
        return
    try:
        done = subprocess.run(
            ["lfs", "quota", "-q", "-u", user, str(folder)], capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode == 0:
        yield judge_quota(done.stdout)


def judge_quota(printed: str) -> Finding:
    """One line of `lfs quota -q`: path, kbytes, soft, hard, grace, files, soft, hard, grace; 0 means no limit."""
    numbers = [int(word.rstrip("*")) for word in printed.split()[1:] if word.rstrip("*").isdigit()]
    if len(numbers) < 6:
        return Finding(NOTE, "quota", "could not be read", "look with `lfs quota -u $USER PATH`")
    used_kb, soft_kb, hard_kb, files, soft_files, hard_files = numbers[:6]
    limit_kb, limit_files = soft_kb or hard_kb, soft_files or hard_files
    shares = [used / limit for used, limit in ((used_kb, limit_kb), (files, limit_files)) if limit]
    found = f"{used_kb / 1e6:.0f} of {limit_kb / 1e6:.0f} GB, {files:,} of {limit_files:,} files (0: no limit)"
    if max(shares, default=0) > NEARLY_FULL:
        return Finding(WARNING, "quota", found, "free some, or ask for more: a full quota fails shards")
    return good("quota", found)


def _promises(folder: Path) -> Finding:
    """Rename over a file, hard links that only one can make, fsync of a folder, and the file system's clock."""
    one, other, link = folder / "one", folder / "other", folder / "link"
    try:
        one.write_text("1")
        other.write_text("2")
        os.replace(other, one)
        renamed = one.read_text() == "2" and not other.exists()
        os.link(one, link)
        try:
            os.link(one, link)
            exclusive = False
        except FileExistsError:
            exclusive = True
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    except OSError as error:
        fix = "parts and leases need rename, hard links and fsync: give an --out on another file system"
        return Finding(PROBLEM, "rename, link", f"refused: {error.strerror}", fix)
    skew = one.stat().st_mtime - time.time()
    found = f"rename {'ok' if renamed else 'WRONG'}, link {'ok' if exclusive else 'WRONG'}, clock {skew:+.1f} s"
    if not (renamed and exclusive):
        return Finding(PROBLEM, "rename, link", found, "give an --out on another file system")
    if abs(skew) > MOST_SKEW_S:
        return Finding(WARNING, "rename, link", found, "the node's clock differs from the file server's: mend NTP")
    return good("rename, link", found)


def _locks(folder: Path) -> Finding:
    """Whether a lock keeps another process out. Shards do not rely on it; Snakemake's and other tools' locks may."""
    path = folder / "lock"
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return Finding(NOTE, "locks", f"flock: {error.strerror}", "nothing to do: leases do without locks")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            is_kept_out = pool.apply(_cannot_lock, (str(path),))
    if is_kept_out:
        return good("locks", "flock keeps another process out")
    return Finding(NOTE, "locks", "flock keeps nobody out", "nothing to do: leases do without locks")


def _cannot_lock(path: str) -> bool:
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
