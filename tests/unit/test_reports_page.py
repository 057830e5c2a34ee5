"""levo report: four files, a page that stands alone, text that stays text, tables that stay short."""

import base64
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile
from fakes.run import CAPPED, FAILS, HOSTILE, RATE, SILENT, make_run, tone

from levo.errors import ConfigError, NodeError
from levo.reports import plots, tables
from levo.reports.gather import Run
from levo.reports.players import EXCERPT_S, choose, encode, players
from levo.reports.report import report_run
from levo.reports.words import clock, count, figure
from levo.songs.plan import load_calibration

OUTSIDE = re.compile(r"(?:src|href|action|poster|data|srcset)\s*=\s*[\"']?\s*(?:https?:|//)", re.IGNORECASE)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = make_run(tmp_path_factory.mktemp("page") / "t")
    report_run(run_dir)
    return run_dir


@pytest.fixture(scope="module")
def html(finished: Path) -> str:
    return (finished / "reports/report.html").read_text(encoding="utf-8")


def test_every_report_is_written_and_read_back(finished: Path) -> None:
    for name in ("cost.json", "qa.json", "calibration.json"):
        json.loads((finished / "reports" / name).read_text())
    assert load_calibration(finished / "reports/calibration.json").name.startswith("measured: CPU ranks")
    assert sorted(path.name for path in (finished / "reports").iterdir()) == [
        "calibration.json", "cost.json", "qa.json", "report.html",
    ]  # fmt: skip


def test_page_needs_nothing_from_outside_and_runs_no_script(html: str) -> None:
    assert not OUTSIDE.search(html)
    assert "<script" not in html and "@import" not in html and "url(http" not in html
    assert "default-src 'none'" in html


def test_ids_lyrics_and_reasons_are_text(html: str) -> None:
    assert HOSTILE not in html and "&lt;script&gt;" in html
    assert "<img" not in html
    assert "<b>bold" not in html and "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "&lt;nan&gt;" in html


def test_elements_are_closed_and_headings_in_order(html: str) -> None:
    class Balance(HTMLParser):
        empty = {"meta", "link", "br"}

        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.headings: list[int] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag in ("h1", "h2", "h3"):
                self.headings.append(int(tag[1]))
            if tag not in self.empty:
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    parser = Balance()
    parser.feed(html)
    assert not parser.open
    assert parser.headings[0] == 1 and all(
        b - a <= 1 for a, b in zip(parser.headings, parser.headings[1:], strict=False)
    )


def test_ids_are_unique_and_inner_links_lead_somewhere(html: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_links_to_tars_lead_to_files(finished: Path, html: str) -> None:
    links = set(re.findall(r'href="(\.\./[^"]+)"', html))
    assert links and all((finished / "reports" / link).resolve().exists() for link in links)


def test_plots_are_readable_and_take_their_colours_from_the_page(html: str) -> None:
    drawn = re.findall(r"<svg .*?</svg>", html, re.DOTALL)
    assert len(drawn) == 3
    for svg in drawn:
        ElementTree.fromstring(svg)
        assert "var(--main)" in svg and "#040404" not in svg and "DejaVu" not in svg
    assert html.count('role="img" aria-label="') == 3


def test_players_hold_the_sound_of_the_master(finished: Path) -> None:
    heard = players(Run.read(finished))
    kinds = {player.kind for player in heard}
    assert kinds == {"Opus"} or "OPUS" not in soundfile.available_subtypes("OGG")
    for player in heard:
        sound, rate = soundfile.read(io.BytesIO(base64.b64decode(player.uri.partition("base64,")[2])))
        assert rate == RATE
        assert len(sound) / rate == pytest.approx(player.file["seconds"], abs=0.05)
        number = int(player.file["song_id"][-2:]) if player.file["song_id"] != HOSTILE else 4
        master = tone(number, player.file["frames"]) / 32768
        assert np.sqrt(np.mean(sound**2)) == pytest.approx(np.sqrt(np.mean(master**2)), rel=0.05, abs=1e-3)


def test_flagged_songs_come_first_then_every_length(finished: Path) -> None:
    run = Run.read(finished)
    chosen = [(run.files["song_id"][row].as_py(), why) for row, why in choose(run)]
    assert chosen[:2] == [(f"song {SILENT:02d}", "flagged"), (f"song {CAPPED:02d}", "flagged")]
    assert [why for _, why in chosen[2:]] == ["shortest", "in between", "in between", "longest"]
    assert len({song_id for song_id, _ in chosen}) == len(chosen)


def test_a_long_song_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch, finished: Path) -> None:
    monkeypatch.setattr("levo.reports.players.EXCERPT_S", 2)
    assert EXCERPT_S == 60
    heard = players(Run.read(finished))
    assert all(player.is_cut and player.shown_s == 2 for player in heard)


def test_a_rate_that_opus_lacks_is_flac() -> None:
    content, kind = encode(tone(5, 25), 44100)
    assert kind == "FLAC" and content[:4] == b"fLaC"


def test_a_file_that_went_away_costs_its_player_only(finished: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(finished, tmp_path / "t"))
    next(run_dir.glob("shards/00000/*.tar")).unlink()
    report_run(run_dir)
    assert "<audio" in (run_dir / "reports/report.html").read_text()


def test_songs_that_need_attention_stand_first_and_long_tables_are_cut(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.read(finished)
    shown = tables.songs(run)
    assert [row["song_id"] for row in shown.rows[:3]] == [f"song {n:02d}" for n in (FAILS, SILENT, CAPPED)]
    assert not shown.is_cut
    monkeypatch.setattr(tables, "MOST_SONGS", 3)
    assert tables.songs(run).is_cut
    report_run(finished)
    assert "3 of 8 songs" in (finished / "reports/report.html").read_text()


def test_an_unfinished_shard_is_said_on_the_page(finished: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(finished, tmp_path / "t"))
    (run_dir / "shards/00001/provenance.parquet").unlink()
    html = report_run(run_dir).read_text()
    assert "1 shard not finished" in html and "1 of 2 shards finished" in html


def test_a_gpu_run_speaks_of_gpus_and_of_a_million_songs(tmp_path: Path) -> None:
    html = report_run(make_run(tmp_path / "t", n_songs=4, gpu="NVIDIA GH200 120GB")).read_text()
    assert "GPU-hours" in html and "rank-s" not in html and "CPU ranks" not in html
    assert "a million songs of three minutes take" in html
    assert "NVIDIA GH200" in json.loads((tmp_path / "t/reports/calibration.json").read_text())["name"]


def test_what_is_missing_is_said_with_its_remedy(finished: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(finished, tmp_path / "t"))
    (run_dir / "qa/00001.parquet").unlink()
    with pytest.raises(NodeError, match="not been made yet") as caught:
        report_run(run_dir)
    assert "levo qa" in caught.value.fix
    (run_dir / "plan/estimate.json").unlink()
    with pytest.raises(ConfigError, match="no readable estimate"):
        report_run(run_dir)


def test_report_of_the_same_run_is_the_same(finished: Path) -> None:
    first = report_run(finished).read_text()
    second = report_run(finished).read_text()
    sound = re.compile(r"data:audio[^\"]+")  # an Ogg stream has a random number
    assert sound.sub("", first) == sound.sub("", second)


def test_plots_stand_any_run() -> None:
    nothing = np.array([])
    for made in (
        plots.lengths(nothing, nothing, nothing.astype(bool)),
        plots.lengths(np.ones(5000), np.ones(5000), np.zeros(5000, bool)),
        plots.loudness(np.array([np.nan, np.nan]), (-40, -5)),
        plots.loudness(np.array([-14.0]), (-40, -5)),
        plots.stages({"main": 0.0, "idle": 0.0}, "GPU"),
    ):
        ElementTree.fromstring(made.svg)
        assert made.alt


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (0.0, "0"),
        (24, "24"),
        (1234567.0, "1,234,567"),
        (12.34, "12.3"),
        (0.5, "0.50"),
        (-0.0123, "−0.012"),
    ],
)
def test_figures_are_short(value: float | None, words: str) -> None:
    assert figure(value) == words


def test_small_words() -> None:
    assert (clock(59.6), clock(187.2), clock(None)) == ("0:59", "3:07", "–")
    assert (count(1, "song"), count(2000, "song")) == ("1 song", "2,000 songs")
