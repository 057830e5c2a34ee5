"""qa.json: how many files carry which flag, how the measures are spread, and which files to listen to.

Judges no music: a flag asks for a listener.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levo import measures
from levo.reports.gather import Run, counts, numbers
from levo.reports.qa import FLAGS
from levo.reports.sealed import Row
from levo.songs.song import FRAME_RATE

FORMAT = 1
LISTED = 1000
"""Rows that a list here holds at most; the count beside it is always the whole."""
EXTREMES_OF = ("seconds", "lufs", "active_share", "peak", "longest_silence_s")
_SHOWN = ("song_id", "shard", "rendition", "stem", "tar", "member", "flags", "error", *EXTREMES_OF)


def summarise(run: Run) -> dict[str, Any]:
    """Everything that qa.json says."""
    return {
        "format": FORMAT,
        "run": run.settings.run,
        "n_shards_finished": len(run.shards.sealed),
        "n_shards": run.shards.n_planned,
        "songs": {name: counts(run.songs["outcome"]).get(name, 0) for name in ("ok", "rejected", "failed")},
        "stop_reasons": counts(run.songs["stop_reason"]),
        "n_files": run.files.num_rows,
        "n_files_flagged": len(flagged(run.files)),
        "flags": _flags(run.files),
        "thresholds": run.settings.qa.model_dump(),
        "measures": {column.name: _measure(run.files, column) for column in measures.COLUMNS},
        "length_prediction": _length(run.ok),
        "outliers": _shown(run.files, worst_first(run.files)[:LISTED]),
        "extremes": _extremes(run.files),
        "rejected_rows": {"n": run.rejected.num_rows, "by_reason": counts(run.rejected["reason"])},
        "songs_without_audio": without_audio(run.songs).slice(0, LISTED).to_pylist(),
    }


def without_audio(songs: pa.Table) -> pa.Table:
    """Songs that failed or were rejected by a rank, with the reason."""
    lost = songs.filter(pc.not_equal(songs["outcome"], "ok"))
    return lost.select(["song_id", "shard", "outcome", "error"])


def flagged(files: pa.Table) -> np.ndarray:
    """Row numbers of the files with any flag."""
    return np.flatnonzero(pc.list_value_length(files["flags"]).to_numpy() > 0)


def worst_first(files: pa.Table) -> list[int]:
    """Row numbers of the files with flags: by their worst flag, then by how many they have."""
    order = list(FLAGS)
    marks = {int(i): [order.index(flag) for flag in files["flags"][int(i)].as_py()] for i in flagged(files)}
    return sorted(marks, key=lambda i: (min(marks[i]), -len(marks[i]), i))


def _flags(files: pa.Table) -> dict[str, Row]:
    raised = files["flags"].combine_chunks()
    parents = pc.list_parent_indices(raised).to_numpy()
    names = np.array(pc.list_flatten(raised).to_pylist(), dtype=object)
    song_ids = np.array(files["song_id"].to_pylist(), dtype=object)
    found: dict[str, Row] = {}
    for name, meaning in FLAGS.items():
        rows = parents[names == name] if len(names) else parents
        if len(rows):
            found[name] = {"files": len(rows), "songs": len(set(song_ids[rows])), "meaning": meaning}
    return found


def _measure(files: pa.Table, column: measures.Column) -> Row:
    values = numbers(files, column.name)
    known = values[~np.isnan(values)]
    spread: Row = dict.fromkeys(("min", "p5", "median", "p95", "max", "mean"))
    if len(known):
        quantiles = np.quantile(known, [0, 0.05, 0.5, 0.95, 1])
        spread = {name: float(v) for name, v in zip(spread, [*quantiles, known.mean()], strict=True)}
    return {
        "unit": column.unit,
        "meaning": column.meaning,
        "n": len(known),
        "n_null": len(values) - len(known),
        **spread,
    }


def _length(ok: pa.Table) -> Row:
    """Real minus predicted, in seconds, over songs that ended by themselves: the cap's lengths say nothing."""
    ended = ok.filter(pc.equal(ok["stop_reason"], "eos"))
    if not ended.num_rows:
        return {"n": 0, "bias_s": None, "rms_s": None}
    error = (numbers(ended, "frames") - numbers(ended, "predicted_frames")) / FRAME_RATE
    return {"n": len(error), "bias_s": float(error.mean()), "rms_s": float(np.sqrt(np.mean(error**2)))}


def _extremes(files: pa.Table) -> dict[str, Row]:
    """For some measures, the file with the least and the one with the most."""
    found: dict[str, Row] = {}
    for name in EXTREMES_OF:
        values = numbers(files, name)
        if not np.isnan(values).all():
            ends = [int(np.nanargmin(values)), int(np.nanargmax(values))]
            found[name] = dict(zip(("least", "most"), _shown(files, ends), strict=True))
    return found


def _shown(files: pa.Table, rows: list[int]) -> list[Row]:
    shown: list[Row] = files.select(list(_SHOWN)).take(pa.array(rows, pa.int64())).to_pylist()
    return shown
