"""Prediction of lengths, and its fit to provenance."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from levo.errors import ConfigError, ManifestError
from levo.songs.length import LengthModel, fit, fit_file, load

VERSE = "在这宁静的夜晚我迷失在梦中.滴答声随思绪飘向星空.没有了喧嚣车马的纷扰.只剩单调的音符回荡"


def table(path: Path, rows: list[tuple[str, str, str, int, str, str]]) -> Path:
    names = ["lyrics", "language", "gen_type", "frames", "stop_reason", "outcome"]
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return path


def test_built_in_parameters_give_the_briefs_lengths() -> None:
    sung = f"[verse] {VERSE} ; [chorus] {VERSE}"
    full = f"[intro-long] ; {sung} ; [inst-long] ; {sung} ; [outro-long]"
    assert LengthModel().seconds(full, "zh", "mixed") == pytest.approx(163, rel=0.15)
    one = "[verse] " + " ".join(["word"] * 40)
    assert LengthModel().seconds(one, "en", "vocal") == pytest.approx(27, rel=0.15)


def test_prediction_stays_between_one_second_and_the_cap() -> None:
    model = LengthModel()
    assert model.predict("[silence]", "en", "mixed", 6750) == 50
    assert model.predict("[intro-long] ; [verse] la", "en", "mixed", 250) == 250
    assert LengthModel(bgm_s=0).predict(".", "none", "bgm", 6750) == 25


def test_fit_finds_the_parameters_behind_the_songs_and_keeps_what_it_cannot_see(tmp_path: Path) -> None:
    true = LengthModel(
        section_s={**LengthModel().section_s, "[verse]": 9.0, "[intro-short]": 3.0},
        unit_s={**LengthModel().unit_s, "en": 0.8},
    )
    rows = []
    for i in range(400):
        lyrics = "[intro-short] ; " * (i % 2) + "[verse] " + " ".join(["la"] * (5 + i % 23))
        rows.append((lyrics, "en", "mixed", round(true.seconds(lyrics, "en", "mixed") * 25), "eos", "ok"))
    for stop, outcome in (("cap", "ok"), ("eos", "failed")):
        rows += [("[verse] la", "en", "mixed", 6750, stop, outcome)] * 50
    rows.append((".", "none", "bgm", 2000, "eos", "ok"))
    found = fit([table(tmp_path / "a.parquet", rows[:200]), table(tmp_path / "b.parquet", rows[200:])])
    assert found.section_s["[verse]"] == pytest.approx(9, abs=0.2)
    assert found.section_s["[intro-short]"] == pytest.approx(3, abs=0.1)
    assert found.unit_s["en"] == pytest.approx(0.8, abs=0.02)
    assert found.section_s["[outro-long]"] == LengthModel().section_s["[outro-long]"]
    assert found.unit_s["zh"] == LengthModel().unit_s["zh"]
    assert (found.bgm_s, found.fitted_songs) == (80.0, 401)
    assert found.rms_s is not None and found.rms_s < 0.1


def test_fitted_parameters_come_back_from_their_file(tmp_path: Path) -> None:
    source = table(tmp_path / "p.parquet", [("[verse] la la", "en", "mixed", 100, "eos", "ok")])
    model = fit_file([source], tmp_path / "new" / "length.json")
    assert load(tmp_path / "new" / "length.json") == model != LengthModel()
    assert load(None) == LengthModel()
    assert min(model.section_s.values()) >= 0


def test_nothing_to_fit_and_wrong_files_are_said(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="nothing to fit"):
        fit([table(tmp_path / "p.parquet", [("[verse] la", "en", "mixed", 100, "cap", "ok")])])
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(ManifestError, match="provenance"):
        fit([tmp_path / "x.parquet"])
    (tmp_path / "l.json").write_text('{"section_s": {"[verse]": -1}}')
    with pytest.raises(ConfigError, match="length parameters"):
        load(tmp_path / "l.json")
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.json")
