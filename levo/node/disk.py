"""Writing a file whole or not at all: temporary name, fsync of file and folder, rename. Knows no format."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from levo.errors import NodeError
from levo.node.paths import TEMPORARY


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears under its name only when complete and on disk. On an error nothing is left.

    The temporary name is random: pids of two hosts, or containers, may be equal.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}{TEMPORARY}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_whole(path: Path, content: bytes, fix: str) -> None:
    """The same for a file that a person asked for. Raises NodeError with this remedy when the file system refuses."""
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise NodeError(f"cannot write: {error.strerror}", where=str(path), fix=fix) from None


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
