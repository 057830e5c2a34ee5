"""What a RUN made, song by song, without what a rerun may change (times, host, attempt, place)."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from levo.node.provenance import VOLATILE


def rows(run: Path, table: str) -> list[dict[str, Any]]:
    """Rows of one table over all shards."""
    return [row for path in sorted(run.glob(f"shards/*/{table}.parquet")) for row in pq.read_table(path).to_pylist()]


def songs(run: Path) -> dict[str, dict[str, Any]]:
    """By song id: its provenance, tokens, audio hashes and measures. Fails if a song is there twice."""
    made = {row["song_id"]: {"provenance": steady(row)} for row in rows(run, "provenance")}
    assert len(made) == len(rows(run, "provenance")), "a song twice"
    for row in rows(run, "tokens"):
        made[row["song_id"]]["tokens"] = row["tokens"]
    for row in rows(run, "audio"):
        made[row["song_id"]].setdefault("audio", {})[row["rendition"], row["stem"]] = row["pcm_sha256"]
    for path in sorted(run.glob("qa/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            made[row["song_id"]].setdefault("qa", []).append(steady(row))
    return made


def steady(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its volatile columns, files within it too."""
    kept = {key: value for key, value in row.items() if key not in VOLATILE}
    for key, value in kept.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            kept[key] = [steady(item) for item in value]
    return kept
