"""Text files that are there wholly or not at all. Knows nothing of what is in them."""

import json
from pathlib import Path
from typing import Any

from levo.node.disk import write_whole

FIX = "look after the file system (space, quota, rights), then run the same command again"


def write_text(path: Path, text: str) -> None:
    """Raises NodeError when the file system refuses."""
    write_whole(path, text.encode(), FIX)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """JSON without NaN or infinity, which other readers refuse."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
