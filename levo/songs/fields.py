"""The fields of a manifest row: their names, types and ranges. Knows no file formats and no text rules.

Both name sets are read: upstream's (idx, gt_lyric, descriptions) and ours. A field that is null counts as not given.
"""

import difflib
import math
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from levo.errors import ManifestError
from levo.songs.reasons import Refused
from levo.songs.song import GEN_TYPES, GenType

ALIASES = {"idx": "song_id", "gt_lyric": "lyrics", "descriptions": "description"}
PROMPT_FIELDS = ("prompt_tokens", "prompt_audio_path", "auto_prompt_audio_type")
FIELDS = (
    "song_id",
    "lyrics",
    "description",
    "gen_type",
    "seed",
    "renditions",
    "max_seconds",
    *PROMPT_FIELDS,
)
NAMES = (*FIELDS, *ALIASES)
MAX_ID_CHARACTERS = 512
MAX_RENDITIONS = 100


@dataclass(frozen=True)
class Asked:
    """A row's values, of the right types and in range. Text is as given; seed and max_seconds are None if not given.

    prompt_tokens: file of an audio prompt's tokens.  auto_prompt: genre of an automatic one. Never both.
    """

    song_id: str
    lyrics: str | None
    description: str | None
    gen_type: GenType
    seed: int | None
    renditions: int
    max_seconds: float | None
    prompt_tokens: str | None = None
    auto_prompt: str | None = None


def check_names(names: list[str], path: Path) -> None:
    """Column names of a CSV or Parquet file. An unknown one would refuse every row, so it stops the check at once."""
    for name in names:
        if name not in NAMES:
            raise ManifestError(f"unknown column `{name}`", where=str(path), fix=nearest(name))
        if names.count(name) > 1:
            raise ManifestError(f"two columns are named `{name}`", where=str(path), fix="keep one of them")


def nearest(name: str) -> str:
    """What an unknown field may have been meant to be."""
    near = difflib.get_close_matches(name, NAMES, n=1)
    return f"did you mean `{near[0]}`? Else remove it" if near else "remove it; known fields: " + ", ".join(NAMES)


def canonical_names(row: dict[str, Any]) -> dict[str, Any]:
    """The row under our own names, without nulls. Raises Refused for unknown fields and for two names of one thing."""
    fields: dict[str, Any] = {}
    for name, value in row.items():
        if name not in NAMES:
            raise Refused("unknown_field", field=name, near=nearest(name))
        ours = ALIASES.get(name, name)
        if value is not None and ours in fields:
            first = next(n for n in row if n != name and ALIASES.get(n, n) == ours)
            raise Refused("conflicting_fields", fields=f"`{first}` and `{name}`")
        if value is not None:
            fields[ours] = value
    return fields


def id_of(row: dict[str, Any]) -> str | None:
    """The row's id in NFC, if it has a usable one: so that a refused row can still be named."""
    value = row.get("song_id") if row.get("song_id") is not None else row.get("idx")
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or _trouble(value):
        return None
    return unicodedata.normalize("NFC", value)


def read_fields(row: dict[str, Any], max_seconds: float) -> Asked:
    """Values of a row. max_seconds: the longest song allowed. Raises Refused with the first field that is wrong."""
    fields = canonical_names(row)
    song_id = id_of(row)
    if fields.get("song_id", "") == "":
        raise Refused("missing_id")
    if song_id is None:
        value = fields["song_id"]
        raise Refused("bad_id", why=_trouble(value) if isinstance(value, str) else f"is {kind_of(value)}")
    for name in ("lyrics", "description"):
        if not isinstance(fields.get(name, ""), str):
            raise Refused("bad_type", field=name, kind=kind_of(fields[name]))
    _check_prompt(fields)
    return Asked(
        song_id=song_id,
        lyrics=fields.get("lyrics"),
        description=fields.get("description"),
        gen_type=_gen_type(fields.get("gen_type", "mixed")),
        seed=_whole(fields.get("seed"), "bad_seed", 0, 2**63 - 1),
        renditions=_whole(fields.get("renditions"), "bad_renditions", 1, MAX_RENDITIONS) or 1,
        max_seconds=_seconds(fields.get("max_seconds"), max_seconds),
        prompt_tokens=fields.get("prompt_tokens"),
        auto_prompt=fields.get("auto_prompt_audio_type"),
    )


def _check_prompt(fields: dict[str, Any]) -> None:
    """At most one prompt, and none that needs an encoder for recordings."""
    given = [name for name in PROMPT_FIELDS if name in fields]
    if len(given) > 1:
        raise Refused("conflicting_fields", fields=" and ".join(f"`{name}`" for name in given))
    for name in given:
        if not isinstance(fields[name], str):
            raise Refused("bad_type", field=name, kind=kind_of(fields[name]))
    if "prompt_audio_path" in given:
        raise Refused("prompt_recording")


def numbers_from_text(row: dict[str, Any]) -> dict[str, Any]:
    """A CSV row, whose cells are all text, with its number fields as numbers where they are written as such."""
    typed = dict(row)
    for name, number in (("seed", int), ("renditions", int), ("max_seconds", float)):
        if name in row:
            try:
                typed[name] = number(row[name])
            except ValueError:
                continue  # stays text, and read_fields says what it should be
    return typed


def kind_of(value: object) -> str:
    """A value's kind, for sentences."""
    kinds = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}
    return kinds.get(type(value), "an object" if isinstance(value, dict) else f"of type {type(value).__name__}")


def _trouble(song_id: str) -> str:
    """What is wrong with an id, or ""."""
    if not 1 <= len(song_id) <= MAX_ID_CHARACTERS:
        return f"has {len(song_id)} characters"
    if song_id != song_id.strip():
        return "begins or ends with a space"
    if not song_id.isprintable():
        return f"holds an invisible character: {song_id[:80]!r}"
    return ""


def _gen_type(value: object) -> GenType:
    for known in GEN_TYPES:
        if value == known:
            return known
    raise Refused("bad_gen_type", value=_shown(value), known=", ".join(GEN_TYPES))


def _whole(value: object, code: str, least: int, most: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(code, value=_shown(value), most=most)
    return value


def _seconds(value: object, most: float) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= most or math.isnan(value):
        raise Refused("bad_max_seconds", value=_shown(value), most=most)
    return float(value)


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else f"{value}"
    return text if len(text) <= 60 else text[:57] + "..."
