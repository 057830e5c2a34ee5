"""report.html: one static file that tells a person how a run went. Needs no network, no script and no other file.

Everything from outside (ids, lyrics, errors) is data: the template escapes all text, and the page's own policy forbids
it to load or run anything.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from levo.reports import accounting_text, plots, tables, words
from levo.reports.accounting import least_efficient_first, try_words
from levo.reports.formulas import HOUR_S
from levo.reports.gather import Run, counts, numbers
from levo.reports.players import Player, players
from levo.reports.plots import Plot
from levo.reports.qa import FLAGS
from levo.reports.sealed import Row
from levo.songs.song import FRAME_RATE

MOST_SHARDS = 200
"""Shards that the table of Slurm's view shows at most."""
TEMPLATES = Path(__file__).parent / "templates"
_MADE_WITH = {
    "model": "model_name",
    "model digest": "model_digest",
    "program": "levo_version",
    "commit": "git_commit",
    "PyTorch": "torch_version",
    "precision": "dtype",
    "device": "device",
    "GPU": "gpu_name",
    "nodes": "host",
    "slots": "batch_size",
    "flow steps": "codec_steps",
}
"""What the page says of how the songs were made, and the provenance column that knows it."""


def render(run: Run, cost: Mapping[str, Any], qa: Mapping[str, Any], estimate: Mapping[str, Any]) -> str:
    """The page. cost, qa, estimate: what their files say."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        figure=words.figure,
        clock=words.clock,
        percent=words.percent,
        db=words.decibels,
        duration=words.duration,
        share=words.share,
        try_words=try_words,
    )
    heard = players(run)
    return environment.get_template("report.html.j2").render(
        run=run.settings.run,
        summary=_summary(run, cost),
        figures=_figures(cost, qa),
        attention=_attention(run, cost, qa),
        players=_players(run, heard),
        cost=cost,
        slurm=_slurm(cost["slurm"]),
        compared=_compared(cost),
        estimate=estimate,
        plots={name: _markup(plot) for name, plot in _plots(run, cost).items()},
        songs=tables.songs(run),
        heard={player.file["song_id"]: f"play-{number}" for number, player in reversed(list(enumerate(heard)))},
        longest_s=float(np.nanmax(numbers(run.songs, "seconds"), initial=1.0)),
        flag_meanings=FLAGS,
        qa=qa,
        rejected=tables.rejected(run),
        made_with=_made_with(run.songs),
        settings=run.settings,
    )


def _summary(run: Run, cost: Mapping[str, Any]) -> str:
    """One sentence under the title."""
    n_ok, n_sealed, n_shards = run.ok.num_rows, len(run.shards.sealed), run.shards.n_planned
    shards = f"all {n_shards} shards" if n_sealed == n_shards else f"{n_sealed} of {words.count(n_shards, 'shard')}"
    model = ", ".join(counts(run.songs["model_name"]))
    audio = words.duration(cost["audio_hours"] * HOUR_S)
    return f"{words.count(n_ok, 'song')}, {audio} of audio, made with {model}; {shards} finished."


def _figures(cost: Mapping[str, Any], qa: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(value, what it is, a line below)."""
    unit, n_songs = cost["unit"]["name"], sum(cost["n_songs"].values())
    n_ok, n_files, n_flagged = qa["songs"]["ok"], qa["n_files"], qa["n_files_flagged"]
    million = cost["per_million_3_minute_songs"]
    on_gpus = unit == "GPU" and million
    a_million = f"{words.figure(million['gpu_hours'])} GPU-h a million 3-min songs" if on_gpus else "on CPU ranks"
    hours, cores = words.figure(cost["gpu_hours"]), words.figure(cost["core_hours"])
    is_short = cost["gpu_hours"] < 1
    wall = words.duration(cost["gpu_seconds"]["wall_s"])
    return [
        (f"{n_ok:,}", f"of {words.count(n_songs, 'song')} made", words.count(n_files, "file")),
        (words.duration(cost["audio_hours"] * HOUR_S), "of audio", f"{words.figure(cost['audio_hours'])} hours"),
        (wall, f"of {unit} time", f"{hours} {unit}-hours")
        if is_short
        else (hours, f"{unit}-hours", f"{cores} core-hours"),
        (f"{words.figure(cost['x_realtime'])}×", "realtime, all included", a_million),
        (f"{n_flagged:,}", "files to listen to", f"of {n_files:,}, by {words.count(len(qa['flags']), 'kind')} of flag"),
        (f"{qa['rejected_rows']['n']:,}", "manifest rows refused", "each with its remedy below"),
    ]


def _attention(run: Run, cost: Mapping[str, Any], qa: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(sentence, section of the page) for everything that asks for a person."""
    found = []
    if missing := cost["n_shards"] - cost["n_shards_finished"]:
        found.append((f"{words.count(missing, 'shard')} not finished: run snakemake again.", "#cost"))
    if lost := qa["songs"]["failed"] + qa["songs"]["rejected"]:
        found.append((f"{words.count(lost, 'song')} without audio.", "#songs"))
    for name, flag in qa["flags"].items():
        if name in ("unreadable", "altered", "length", "nan", "silent"):
            found.append((f"{words.count(flag['files'], 'file')} flagged {name}: {flag['meaning']}.", "#listen"))
    if qa["rejected_rows"]["n"]:
        found.append((f"{words.count(qa['rejected_rows']['n'], 'manifest row')} refused.", "#rejected"))
    error = cost["closure_error"]
    if error is not None and abs(error) > 0.01:
        found.append((f"The bill does not close: {error:+.1%} of the wall time.", "#cost"))
    return found


def _compared(cost: Mapping[str, Any]) -> list[Row]:
    """Planned and actual, with the GPU time of a run of less than an hour in seconds, and the unit's true name."""
    scale, per = (HOUR_S, "s") if cost["gpu_hours"] < 1 else (1.0, "h")
    rows = []
    for row in cost["planned_and_actual"]:
        if row["unit"] == "GPU-h":
            values = {name: None if row[name] is None else row[name] * scale for name in ("planned", "actual")}
            row = {**row, **values, "unit": f"{cost['unit']['name']}-{per}", "is_part": row["what"] != "all together"}
        rows.append({"is_part": False, **row})
    return rows


def _slurm(slurm: Mapping[str, Any] | None) -> Row | None:
    """What Slurm says: its lines, and the shards, the least efficient first."""
    if slurm is None:
        return None
    shards = least_efficient_first(slurm["shards"])[:MOST_SHARDS]
    told = list(accounting_text.lines(slurm)) if slurm["n_tries"] else []
    return {"lines": told, "problems": slurm["problems"], "shards": shards, "n_shards": len(slurm["shards"])}


def _players(run: Run, heard: list[Player]) -> list[Row]:
    texts = run.lyrics((player.file["shard"], player.file["song_id"]) for player in heard)
    return [
        {"player": player, "file": player.file, "link": tables.link(player.file), **texts[player.file["song_id"]]}
        for player in heard
    ]


def _plots(run: Run, cost: Mapping[str, Any]) -> dict[str, Plot]:
    ok = run.ok
    at_cap = np.array([reason == "cap" for reason in ok["stop_reason"].to_pylist()], dtype=bool)
    qa = run.settings.qa
    made = {
        "stages": plots.stages(cost["gpu_seconds_by_stage"], cost["unit"]["name"]),
        "lengths": plots.lengths(numbers(ok, "predicted_frames") / FRAME_RATE, numbers(ok, "seconds"), at_cap),
        "loudness": plots.loudness(numbers(run.files, "lufs"), (qa.min_lufs, qa.max_lufs)),
    }
    if cost["slurm"] and (shards := cost["slurm"]["shards"]):
        seconds = ([shard[f"{name}_gpu_s"] for shard in shards] for name in ("allocated", "attributed"))
        made["allocated"] = plots.allocated(*seconds)
    return made


def _markup(plot: Plot) -> dict[str, str]:
    return {"svg": Markup(plot.svg), "alt": plot.alt}  # matplotlib's own output, with no text from outside


def _made_with(songs: pa.Table, most: int = 4) -> list[tuple[str, list[str]]]:
    """(what, its values, the most frequent first)."""
    facts = []
    for what, column in _MADE_WITH.items():
        found = list(counts(songs[column].cast(pa.string())))
        if found:
            more = [f"and {len(found) - most} more"] if len(found) > most else []
            facts.append((what, found[:most] + more))
    return facts
