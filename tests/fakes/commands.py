"""Commands as scripts on PATH, in place of those that are not here or cannot be told what to say."""

import os
from pathlib import Path


def put_commands(folder: Path, **scripts: str) -> str:
    """Put scripts into a folder; returns a PATH on which they come first. One without `#!` is a shell's."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, script in scripts.items():
        path = folder / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
