"""How long a song will be, predicted from its lyrics. Knows no tokens and no model.

seconds = sum over sections of section_s[tag] + sum over sung sections of unit_s[language] * units; units are characters
in zh, ja and ko, words elsewhere (language.py). A bgm song, whose lyrics are not read, is bgm_s long. The built-in
parameters are a guess, set so that the brief's full-song structure with some 190 Chinese characters gives its 163 s and
one verse gives its 27 s. `levo fit-length` replaces them by ridge least squares over provenance: doubling a built-in
value counts as much as one second of error in one song, so that what the songs do not show stays as it was.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from levo.disk import write_json
from levo.errors import ConfigError, ManifestError
from levo.songs.language import LANGUAGES, sung_units
from levo.songs.lyrics import split
from levo.songs.song import FRAME_RATE
from levo.songs.text import STRUCTURE_TAGS

_SECTION_S = {
    "[verse]": 5.0,
    "[chorus]": 5.0,
    "[bridge]": 5.0,
    "[intro-short]": 5.0,
    "[intro-medium]": 12.0,
    "[intro-long]": 22.0,
    "[outro-short]": 5.0,
    "[outro-medium]": 12.0,
    "[outro-long]": 22.0,
    "[inst-short]": 5.0,
    "[inst-medium]": 12.0,
    "[inst-long]": 22.0,
    "[silence]": 2.0,
}
_UNIT_S = {"zh": 0.4, "ja": 0.25, "ko": 0.35, "en": 0.55, "es": 0.6}
_LEAST_S = 1.0
_COLUMNS = ["lyrics", "language", "gen_type", "frames", "stop_reason", "outcome"]


Seconds = Annotated[float, Field(ge=0)]


class LengthModel(BaseModel):
    """Parameters in seconds, all at least 0. fitted_songs 0 means the built-in guess; rms_s is the error of the fit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    section_s: dict[str, Seconds] = Field(default=_SECTION_S)
    unit_s: dict[str, Seconds] = Field(default=_UNIT_S)
    bgm_s: float = Field(default=150.0, ge=0)
    fitted_songs: int = 0
    rms_s: float | None = None

    def seconds(self, lyrics: str, language: str, gen_type: str) -> float:
        """Predicted length of canonical lyrics in seconds, before any cap."""
        if gen_type == "bgm":
            return self.bgm_s
        total = 0.0
        for tag, words in split(lyrics):
            total += self.section_s[tag] + (self.unit_s[language] * sung_units(words, language) if words else 0.0)
        return total

    def predict(self, lyrics: str, language: str, gen_type: str, max_frames: int) -> int:
        """Predicted frames: at least one second, at most the song's cap."""
        seconds = max(_LEAST_S, self.seconds(lyrics, language, gen_type))
        return min(max_frames, round(seconds * FRAME_RATE))

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        write_json(path, self.model_dump())


def load(path: Path | None) -> LengthModel:
    """Parameters from a file; None: the built-in ones."""
    if path is None:
        return LengthModel()
    fix = "set plan.length_model to a file made by `levo fit-length`, or to null"
    try:
        model = LengthModel.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ConfigError("no such file of length parameters", where=str(path), fix=fix) from None
    except ValidationError as error:
        raise ConfigError(
            f"not a file of length parameters: {error.errors()[0]['msg']}", where=str(path), fix=fix
        ) from None
    if set(model.section_s) != set(STRUCTURE_TAGS) or set(model.unit_s) != set(LANGUAGES):
        raise ConfigError("length parameters miss a tag or a language", where=str(path), fix=fix)
    return model


def fit(provenance: list[Path]) -> LengthModel:
    """Fit to the songs in provenance.parquet files that ended by themselves; the cap's lengths say nothing."""
    start = LengthModel()
    prior = np.array([*start.section_s.values(), *start.unit_s.values()])
    gram, moment = np.zeros((prior.size, prior.size)), np.zeros(prior.size)
    square, n = 0.0, 0
    bgm: list[float] = []
    for row in _ended(provenance):
        seconds = row["frames"] / FRAME_RATE
        if row["gen_type"] == "bgm":
            bgm.append(seconds)
            continue
        features = _features(row["lyrics"], row["language"])
        gram += np.outer(features, features)
        moment += features * seconds
        square += seconds**2
        n += 1
    if not n and not bgm:
        raise ManifestError(
            "no song of these files ended by itself, so there is nothing to fit",
            where=", ".join(map(str, provenance[:3])),
            fix="give provenance.parquet files of finished shards",
        )
    hold = np.diag(1.0 / prior**2)
    found = np.maximum(np.linalg.solve(gram + hold, moment + hold @ prior), 0.0)
    error = max(0.0, float(square - 2 * found @ moment + found @ gram @ found))  # sum of squares, in s^2
    values = [round(float(value), 6) for value in found]
    return LengthModel(
        section_s=dict(zip(start.section_s, values, strict=False)),
        unit_s=dict(zip(start.unit_s, values[len(start.section_s) :], strict=True)),
        bgm_s=float(np.mean(bgm)) if bgm else start.bgm_s,
        fitted_songs=n + len(bgm),
        rms_s=round((error / n) ** 0.5, 3) if n else None,
    )


def fit_file(provenance: list[Path], out: Path) -> LengthModel:
    """`levo fit-length`: fit, and save to `out`."""
    model = fit(provenance)
    model.save(out)
    return model


def _features(lyrics: str, language: str) -> np.ndarray:
    """[tags + languages]: count of each section, then sung units under their language."""
    features = np.zeros(len(STRUCTURE_TAGS) + len(LANGUAGES))
    for tag, words in split(lyrics):
        features[STRUCTURE_TAGS.index(tag)] += 1
        features[len(STRUCTURE_TAGS) + LANGUAGES.index(language)] += sung_units(words, language)
    return features


def _ended(provenance: list[Path]) -> Iterator[dict[str, Any]]:
    for path in provenance:
        try:
            with pq.ParquetFile(path) as table:
                for batch in table.iter_batches(batch_size=4096, columns=_COLUMNS):
                    rows = batch.to_pylist()
                    yield from [row for row in rows if row["outcome"] == "ok" and row["stop_reason"] == "eos"]
        except (OSError, ValueError, KeyError) as error:
            fix = "give provenance.parquet files of finished shards"
            raise ManifestError(f"not a readable provenance file: {error}", where=str(path), fix=fix) from None
