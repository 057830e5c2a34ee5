"""Text files that are there wholly or not at all. Knows nothing of what is in them."""

import json
import os
from pathlib import Path
from typing import Any

from levo.errors import NodeError


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, sync, rename. Raises NodeError when the file system refuses."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        fix = "look after the file system (space, quota, rights), then run the same command again"
        raise NodeError(f"cannot write a report: {error.strerror}", where=str(path), fix=fix) from None


def write_json(path: Path, content: dict[str, Any]) -> None:
    """JSON without NaN or infinity, which other readers refuse."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
