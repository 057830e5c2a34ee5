"""The rows that the page shows: songs, those that need attention first, and refused rows. Knows no HTML.

A page of a million songs would help nobody: a table has at most so many rows, and says so.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levo.reports.gather import Run
from levo.reports.qa import FLAGS
from levo.reports.sealed import Row

MOST_SONGS, MOST_REJECTED = 400, 200
_SONG_COLUMNS = [
    "song_id", "shard", "line", "outcome", "error", "stop_reason", "gen_type", "language", "seed", "description",
    "frames", "seconds", "predicted_frames", "gpu_seconds",
]  # fmt: skip
_FILE_COLUMNS = ["song_id", "shard", "tar", "member", "stem", "rendition", "lufs", "active_share", "seconds", "flags"]


@dataclass(frozen=True)
class Shown:
    """rows: what the page shows.  n_all: how many there are."""

    rows: list[Row]
    n_all: int

    @property
    def is_cut(self) -> bool:
        """Whether some are left out."""
        return len(self.rows) < self.n_all


def songs(run: Run) -> Shown:
    """Songs with their files: without audio first, then flagged ones, then the others as the manifest has them."""
    flagged = set(run.files.filter(pc.greater(pc.list_value_length(run.files["flags"]), 0))["song_id"].to_pylist())
    song_ids, outcomes = run.songs["song_id"].to_pylist(), run.songs["outcome"].to_pylist()
    urgency = [0 if o != "ok" else 1 if i in flagged else 2 for i, o in zip(song_ids, outcomes, strict=True)]
    order = np.lexsort((run.songs["line"].to_numpy(), np.array(urgency, dtype=int)))[:MOST_SONGS]
    rows: list[Row] = run.songs.select(_SONG_COLUMNS).take(pa.array(order)).to_pylist()
    files = _files_of(run.files, [row["song_id"] for row in rows])
    for row in rows:
        row.update(_of_files(files[row["song_id"]]))
    return Shown(rows, run.songs.num_rows)


def _files_of(files: pa.Table, song_ids: list[str]) -> defaultdict[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    wanted = pc.is_in(files["song_id"], value_set=pa.array(song_ids, pa.string()))
    for file in files.filter(wanted).select(_FILE_COLUMNS).to_pylist():
        found[file["song_id"]].append(file)
    return found


def _of_files(files: list[Row]) -> dict[str, Any]:
    """What a song's line says of its files: the measures of the first, the flags of all, a link to each."""
    raised = {flag for file in files for flag in file["flags"]}
    links = [(f"r{f['rendition']} {f['stem']}" if len(files) > 1 else f["stem"], link(f), f["member"]) for f in files]
    first = files[0] if files else {"lufs": None, "active_share": None}
    return {
        "lufs": first["lufs"],
        "active_share": first["active_share"],
        "flags": [flag for flag in FLAGS if flag in raised],
        "links": links,
    }


def link(file: Row) -> str:
    """From the page to the tar that holds a file."""
    return f"../shards/{file['shard']:05d}/{file['tar']}"


def rejected(run: Run) -> Shown:
    """Refused rows as the manifest has them."""
    columns = ["file", "line", "song_id", "reason", "sentence", "fix"]
    rows = run.rejected.select(columns).slice(0, MOST_REJECTED).to_pylist()
    return Shown(rows, run.rejected.num_rows)
