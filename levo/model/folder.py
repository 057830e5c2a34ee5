"""Model directories as folders: whole or not at all. Knows no tensors.

A new one is made beside its place and renamed into it; what is there already is replaced only if it is a model.
"""

import os
import re
import shutil
from pathlib import Path

from levo.disk import sync_folder
from levo.errors import ModelError
from levo.model import identity as ids

_SHOWN = 5
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")


def refuse_foreign(out: Path) -> None:
    """Only an older (or half-deleted) model directory may be replaced. Raises ModelError for anything else."""
    ours = {Path(name).parts[0] for name in (ids.MARK, *ids.PLAIN_FILES, *ids.TENSOR_FILES, *ids.PROMPT_FILES)}
    names = {path.name for path in out.iterdir()} if out.is_dir() else set()
    foreign = sorted(name for name in names - ours if not _SHARD.fullmatch(name))
    if foreign or (out.exists() and not out.is_dir()):
        raise ModelError(
            f"there is something else already: {', '.join(foreign[:_SHOWN]) or 'a file'}",
            where=str(out),
            fix="give a new folder for the model",
        )


def put_in_place(temporary: Path, out: Path) -> None:
    """Rename a finished folder to `out`, over an older model directory there."""
    if out.exists():
        old = out.with_name(f"{out.name}.old-{os.getpid()}")
        os.rename(out, old)
        os.rename(temporary, out)
        shutil.rmtree(old)
    else:
        os.rename(temporary, out)
    sync_folder(out.parent)
