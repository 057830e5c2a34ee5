"""Tables of sealed shards, with the remedy of whoever reads them. Knows no measure and no money."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from levo.errors import NodeError
from levo.node import tables
from levo.node.paths import RunPaths, ShardPaths

Row = dict[str, Any]


def read_table(path: Path, schema: pa.Schema, fix: str, columns: Sequence[str] | None = None) -> pa.Table:
    """A table, or some of its columns. Raises NodeError when it is absent, damaged or of another version."""
    if not path.exists():
        raise NodeError("this table has not been made yet", where=str(path), fix=fix)
    return tables.read_table(path, schema, columns)


def read_rows(path: Path, schema: pa.Schema, fix: str, columns: Sequence[str] | None = None) -> list[Row]:
    """The same as rows."""
    rows: list[Row] = read_table(path, schema, fix, columns).to_pylist()
    return rows


@dataclass(frozen=True)
class Shards:
    """The shards of a RUN that are sealed, of as many as were planned."""

    sealed: tuple[ShardPaths, ...]
    n_planned: int

    @staticmethod
    def of(run_dir: Path, n_planned: int) -> "Shards":
        """Look which shards of a RUN are sealed. Raises NodeError if none is."""
        all_paths = (RunPaths(run_dir).shard(number) for number in range(n_planned))
        sealed = tuple(paths for paths in all_paths if paths.provenance.exists())
        if not sealed:
            raise NodeError(
                f"none of the {n_planned} shards is finished", where=str(run_dir / "shards"), fix="run snakemake first"
            )
        return Shards(sealed, n_planned)
