"""Writing a file whole or not at all: temporary name, fsync of file and folder, rename. The one way files come about
that outlive a process. Knows no format but JSON.
"""

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from levo.errors import DISK_FIX, NodeError

TEMPORARY = ".tmp"
"""End of a temporary name; such names also begin with a dot. What has one does not count."""


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears under its name only when complete and on disk. On an error nothing is left; an OSError
    then names the file.

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
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def is_temporary(path: Path) -> bool:
    """Is this what a killed writer left of a file?"""
    return path.name.startswith(".") and path.name.endswith(TEMPORARY)


def write_bytes(path: Path, content: bytes) -> None:
    """A small file. Raises OSError when the file system refuses."""
    with whole_file(path) as file:
        file.write(content)


def write_whole(path: Path, content: bytes) -> None:
    """A file that a person asked for. Raises NodeError, with the remedy, when the file system refuses."""
    try:
        write_bytes(path, content)
    except OSError as error:
        raise NodeError(f"cannot write: {error.strerror}", where=str(path), fix=DISK_FIX) from None


def write_text(path: Path, text: str) -> None:
    """The same for text, in UTF-8."""
    write_whole(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """The same for JSON, without NaN or infinity, which other readers refuse."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
