"""A file for a person, outside any shard: whole or not at all."""

import contextlib
import os
from pathlib import Path

from levo.errors import NodeError


def write_whole(path: Path, content: bytes) -> None:
    """Write a file beside its name and rename it. Raises NodeError when that fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise NodeError(f"cannot write: {error.strerror}", where=str(path), fix="give another --out") from None
