"""A RUN's sealed shards as three tables in memory, without the lyrics: a million songs are some hundred megabytes.

Knows no page and no money.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levo.node.ledger import Bill
from levo.node.paths import RunPaths
from levo.node.provenance import PROVENANCE_SCHEMA
from levo.node.seal import read_bill
from levo.reports.qa import QA_SCHEMA
from levo.reports.sealed import Row, Shards, read_rows, read_table
from levo.settings import Settings, of_run
from levo.songs.manifest import REJECTED_SCHEMA

HEAVY = ("lyrics", "prompt", "files")


@dataclass(frozen=True)
class Run:
    """songs: provenance without HEAVY columns; files: the QA rows; rejected: refused rows of the manifest.

    bills: where the time of each sealed shard went.
    """

    run_dir: Path
    settings: Settings
    shards: Shards
    songs: pa.Table
    files: pa.Table
    rejected: pa.Table
    bills: tuple[Bill, ...]

    @staticmethod
    def read(run_dir: Path) -> "Run":
        """Raises ConfigError when this is no RUN, NodeError when no shard is sealed or a table is not readable."""
        settings = of_run(run_dir)
        shards = Shards.of(run_dir, settings.plan.n_shards)
        light = [name for name in PROVENANCE_SCHEMA.names if name not in HEAVY]
        songs = [read_table(paths.provenance, PROVENANCE_SCHEMA, "", light) for paths in shards.sealed]
        files = [read_table(paths.qa, QA_SCHEMA, f"run `levo qa {run_dir} {paths.number}`") for paths in shards.sealed]
        rejected = read_table(RunPaths(run_dir).rejected, REJECTED_SCHEMA, "run `levo check MANIFEST`")
        return Run(
            run_dir=run_dir,
            settings=settings,
            shards=shards,
            songs=_join(songs),
            files=_join(files),
            rejected=rejected,
            bills=tuple(read_bill(paths.provenance) for paths in shards.sealed),
        )

    @property
    def ok(self) -> pa.Table:
        """Songs with audio."""
        return self.songs.filter(pc.equal(self.songs["outcome"], "ok"))

    def lyrics(self, wanted: Iterable[tuple[int, str]]) -> dict[str, Row]:
        """By song id, the provenance rows' texts of these (shard, song id)."""
        by_shard: dict[int, set[str]] = {}
        for shard, song_id in wanted:
            by_shard.setdefault(shard, set()).add(song_id)
        found: dict[str, Row] = {}
        for shard, ids in by_shard.items():
            path = RunPaths(self.run_dir).shard(shard).provenance
            rows = read_rows(path, PROVENANCE_SCHEMA, "run snakemake", ["song_id", "lyrics", "description", "language"])
            found |= {row["song_id"]: row for row in rows if row["song_id"] in ids}
        return found


def _join(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables([table.replace_schema_metadata() for table in tables])


def numbers(table: pa.Table, name: str) -> np.ndarray:
    """A column as float64, NaN where it is null."""
    return table[name].cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False)


def counts(column: pa.ChunkedArray) -> dict[str, int]:
    """How often each value occurs, most frequent first."""
    found = column.drop_null().value_counts().to_pylist()
    return {entry["values"]: entry["counts"] for entry in sorted(found, key=lambda e: (-e["counts"], e["values"]))}
