"""PCM to FLAC and back, and FLAC files in tars (WebDataset layout). Knows no songs beyond their ids.

Equal PCM gives equal FLAC bytes, and equal files give equal tars: headers hold no time, user or machine.
Names inside a tar derive from a hash of the song id; ids are data and may hold anything.
"""

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import soundfile

from levo.errors import NodeError

BLOCK = tarfile.BLOCKSIZE


def encode_flac(pcm: np.ndarray, rate: int) -> bytes:
    """pcm: int16 [samples, channels], written as it is; rate in Hz. Clipping and rounding are the caller's."""
    if pcm.dtype != np.int16 or pcm.ndim != 2:
        raise ValueError(f"pcm must be int16 [samples, channels], not {pcm.dtype} {pcm.shape}")
    sink = io.BytesIO()
    soundfile.write(sink, pcm, rate, format="FLAC", subtype="PCM_16")
    return sink.getvalue()


def decode_flac(flac: bytes) -> tuple[np.ndarray, int]:
    """(int16 [samples, channels], rate in Hz). Raises NodeError when these bytes are no whole FLAC file.

    A flipped bit may still decode to other numbers: compare pcm_sha256.
    """
    try:
        with soundfile.SoundFile(io.BytesIO(flac)) as file:
            n_samples, rate, subtype = file.frames, int(file.samplerate), file.subtype
            pcm = file.read(dtype="int16", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise NodeError(f"not readable as FLAC: {error}", fix="the file is damaged: make the song again") from None
    if len(pcm) != n_samples or subtype != "PCM_16":
        raise NodeError(
            f"FLAC of {n_samples} {subtype} samples gave {len(pcm)}", fix="the file is damaged: make the song again"
        )
    return pcm, rate


def pcm_sha256(pcm: np.ndarray) -> str:
    """Hash of int16 [samples, channels]: little-endian, sample by sample."""
    if pcm.dtype != np.int16:
        raise ValueError(f"pcm must be int16, not {pcm.dtype}")
    # Hashed where it lies: a copy would hold up the rank's other threads for a song's 35 MB.
    return hashlib.sha256(np.ascontiguousarray(pcm, dtype="<i2").reshape(-1).data).hexdigest()


def member_name(song_id: str, rendition: int, stem: str) -> str:
    """Name of a song's file inside a tar. The part before the first dot is WebDataset's key: one a song."""
    return f"{hashlib.sha256(song_id.encode()).hexdigest()[:16]}.r{rendition}.{stem}.flac"


def tar_pieces(files: Sequence[tuple[str, bytes]]) -> Iterator[bytes]:
    """A tar of these (member, bytes), piece by piece: header and data of each member, then the end mark."""
    n_bytes = 0
    for name, content in files:
        info = tarfile.TarInfo(name)  # mtime, uid, gid 0 and mode 0644 by default
        info.size = len(content)
        yield info.tobuf(tarfile.USTAR_FORMAT)
        yield content
        yield bytes(-len(content) % BLOCK)
        n_bytes += BLOCK + len(content) + -len(content) % BLOCK
    n_bytes += 2 * BLOCK
    yield bytes(2 * BLOCK + -n_bytes % tarfile.RECORDSIZE)


def read_members(tar: Path) -> dict[str, int]:
    """Members of a tar with their sizes in bytes, from its headers. Raises NodeError when it is damaged."""
    try:
        size = tar.stat().st_size
        with tarfile.open(tar, "r:") as archive:
            members = archive.getmembers()
    except (OSError, tarfile.TarError) as error:
        raise _damaged(tar, str(error)) from None
    end = max((member.offset_data + member.size for member in members), default=0)
    if end + -end % BLOCK + 2 * BLOCK > size:
        raise _damaged(tar, f"it is cut short at {size} bytes")
    return {member.name: member.size for member in members}


def read_member(tar: Path, member: str) -> bytes:
    """One file of a tar. Raises NodeError when the tar or the member is missing or damaged."""
    try:
        with tarfile.open(tar, "r:") as archive:
            info = archive.getmember(member)
            file = archive.extractfile(info)
            content = file.read() if file else b""
    except KeyError:
        raise _damaged(tar, f"it has no member {member}") from None
    except (OSError, tarfile.TarError) as error:
        raise _damaged(tar, str(error)) from None
    if len(content) != info.size:
        raise _damaged(tar, f"{member} is cut short at {len(content)} of {info.size} bytes")
    return content


def _damaged(tar: Path, why: str) -> NodeError:
    return NodeError(f"audio tar not readable: {why}", where=str(tar), fix="make its songs again")
