"""Parts: the committed slices of a shard. A tar of audio beside the handed-on tables, and its rows in the work folder.

The tar is written first, the rows last: a part exists when its rows do. Both are written whole or not at all and read
back before the part counts. Knows no queue; a song is a row and files here.
"""

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from levo.disk import is_temporary, sync_folder, whole_file
from levo.errors import NodeError
from levo.node.audio import read_members, tar_pieces
from levo.node.faults import fault
from levo.node.paths import PartName, ShardPaths, part_name
from levo.node.provenance import OUTCOMES, PART_SCHEMA
from levo.node.tables import metadata, read_table, to_table, with_metadata, write_table

TAR_KEY = "levo.tar"


@dataclass(frozen=True)
class Tar:
    """A part's audio: file name, size and hash."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Part:
    """A committed part. tar is None when none of its songs has audio. table: PART_SCHEMA."""

    name: PartName
    table: pa.Table
    tar: Tar | None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its rows without the tokens, which are large."""
        rows: list[dict[str, Any]] = self.table.drop_columns("tokens").to_pylist()
        return rows


class PartWriter:
    """Writes the parts of one rank in one attempt. Not for two threads at once."""

    def __init__(self, paths: ShardPaths, attempt: int, rank: int) -> None:
        self.paths, self.attempt, self.rank = paths, attempt, rank
        taken = [part_name(path) for folder in (paths.out, paths.work) if folder.is_dir() for path in folder.iterdir()]
        self.number = max((n.number + 1 for n in taken if n and (n.attempt, n.rank) == (attempt, rank)), default=0)
        self.rows: list[dict[str, Any]] = []
        self.files: list[tuple[str, bytes]] = []

    def add(self, row: Mapping[str, Any], files: list[tuple[str, bytes]]) -> None:
        """Hold a song for the next part.

        row: a column of PART_SCHEMA each; its `files` name a member each, without `tar`; `tokens` are lists, or int32
        [3, frames].  files: the members.  Raises ValueError when these do not fit each other or the schema.
        """
        if row.get("outcome") not in OUTCOMES:
            raise ValueError(f"song {row.get('song_id')!r}: outcome {row.get('outcome')!r} is none of {OUTCOMES}")
        tar = self.paths.tar(self.attempt, self.rank, self.number).name
        listed = [dict(file, tar=tar) for file in row.get("files") or []]
        if [(file["member"], file["bytes"]) for file in listed] != [(name, len(data)) for name, data in files]:
            raise ValueError(f"song {row.get('song_id')!r}: `files` and the members given differ")
        known = {name for name, _ in self.files}
        if twice := [name for name, _ in files if name in known]:
            raise ValueError(f"song {row.get('song_id')!r}: {twice[0]} is in this part already")
        tokens = row.get("tokens")
        made = {**row, "files": listed, "tokens": list(tokens) if tokens is not None else None}
        to_table([made], PART_SCHEMA)
        self.rows.append(made)
        self.files += files

    def commit(self) -> int:
        """Bring what was added to disk as one part; returns its songs. Nothing added: nothing happens, 0.

        Raises OSError when the disk does not keep it; then everything is still held, and commit() may be tried again.
        """
        if not self.rows:
            return 0
        fault("part.begin")
        key = (self.attempt, self.rank, self.number)
        tar = _write_tar(self.paths.tar(*key), self.files)
        fault("part.rows")
        found = {TAR_KEY: json.dumps(asdict(tar))} if tar else {}
        write_table(self.rows, with_metadata(PART_SCHEMA, found), self.paths.part(*key))
        n_songs = len(self.rows)
        self.rows, self.files = [], []
        self.number += 1
        return n_songs


def _write_tar(path: Path, files: list[tuple[str, bytes]]) -> Tar | None:
    if not files:
        fault("part.write")
        return None
    pieces = list(tar_pieces(files))
    digest = hashlib.sha256()
    with whole_file(path) as file:
        for number, piece in enumerate(pieces):
            if number == len(pieces) // 2:
                file.flush()
                fault("part.write")
            file.write(piece)
            digest.update(piece)
    try:
        members = read_members(path)
    except NodeError as error:
        raise OSError(errno.EIO, f"written and not readable: {error.what}", str(path)) from None
    if members != {name: len(content) for name, content in files}:
        raise OSError(errno.EIO, "members written and read back differ", str(path))
    return Tar(path.name, sum(map(len, pieces)), digest.hexdigest())


def read_parts(paths: ShardPaths, say: Callable[[str], None] | None = None) -> list[Part]:
    """Every whole part, by name. Only the holder of the lease may call this, with no writer at work.

    What is damaged or cut off is moved to the quarantine: a part that is not whole with its tar, a tar without rows,
    a temporary file. say: gets a sentence for each; quarantine/reasons.jsonl keeps them all.
    """
    parts = []
    for path in sorted(_listed(paths.work)):
        if part_name(path) is None:
            continue
        try:
            parts.append(_read_part(paths, path))
        except NodeError as error:
            set_aside(paths, path, f"{error.what} ({error.where})", say)
    kept = {part.tar.name for part in parts if part.tar}
    for path in sorted(_listed(paths.out)):
        if part_name(path) is not None and path.name not in kept:
            set_aside(paths, path, "audio without whole rows: it was cut off, or its part is damaged", say)
    for path in sorted(_listed(paths.out) + _listed(paths.work)):
        if is_temporary(path):
            set_aside(paths, path, "a file whose writing was cut off", say)
    return parts


def _read_part(paths: ShardPaths, path: Path) -> Part:
    name = part_name(path)
    assert name is not None
    table = read_table(path, PART_SCHEMA)
    if not table.num_rows:
        raise NodeError("a part without rows", where=str(path))
    text = metadata(table.schema).get(TAR_KEY)
    tar = Tar(**json.loads(text)) if text else None
    wanted = {file["member"]: file["bytes"] for files in table["files"].to_pylist() for file in files}
    if tar is None:
        if wanted:
            raise NodeError("rows with audio that name no tar", where=str(path))
        return Part(name, table, None)
    tar_path = paths.out / tar.name
    if read_members(tar_path) != wanted or tar_path.stat().st_size != tar.bytes:
        raise NodeError("the members of the tar are not those of the rows", where=str(tar_path))
    return Part(name, table, tar)


def set_aside(paths: ShardPaths, path: Path, reason: str, say: Callable[[str], None] | None = None) -> None:
    """Move a file to the quarantine and write down why; never over another one."""
    paths.quarantine.mkdir(parents=True, exist_ok=True)
    goal, n = paths.quarantine / path.name, 1
    while goal.exists():
        goal, n = paths.quarantine / f"{path.name}.{n}", n + 1
    os.rename(path, goal)
    sentence = f"{path.name} is set aside: {reason}"
    with (paths.quarantine / "reasons.jsonl").open("a", encoding="utf-8") as file:
        entry = {"time_s": round(time.time(), 3), "file": goal.name, "reason": reason}
        file.write(json.dumps(entry, ensure_ascii=False) + "\n")
    sync_folder(paths.quarantine)
    sync_folder(path.parent)
    if say is not None:
        say(sentence)


def _listed(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
