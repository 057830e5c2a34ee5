"""The page in a real browser: what is in it, that it is drawn, and that nothing leaves the machine.

The browser writes down every request with the one who asked for it: a page, or the browser itself. Names are not
resolved, so none of them gets anywhere.
"""

import json
import os
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fakes.run import HOSTILE, make_run
from matplotlib.image import imread

from levo.reports.report import report_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)  # fmt: skip
BROWSERS_OWN = "not an origin"
"""What stands for the asking page where the browser asks by itself."""
WIDTH, HEIGHT = 1200, 4000
MAIN = (0x0F, 0x6D, 0x68)
"""The light palette's --main: players have none of it, plots are full of it."""


@pytest.fixture(scope="module")
def browser() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None and os.environ.get("CI") == "true":
        pytest.fail("CI has no chromium: the page was not looked at")
    return found or pytest.skip("no chromium here: the page is not looked at")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_run(make_run(tmp_path_factory.mktemp("page") / "t"))


@dataclass(frozen=True)
class Visit:
    """shown: what the browser printed.  asked: addresses that the page asked for, over any network protocol."""

    shown: str
    asked: set[str]


def browse(browser: str, folder: Path, page: Path, *flags: str) -> Visit:
    """Open a page and read the browser's own log of every request afterwards."""
    log = folder / "net.json"
    own = [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    done = subprocess.run(
        [browser, *FLAGS, *own, *flags, page.as_uri()], capture_output=True, text=True, timeout=90, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    net = json.loads(log.read_text(encoding="utf-8"))
    started = net["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
    requests = [event["params"] for event in net["events"] if event["type"] == started and "params" in event]
    return Visit(done.stdout, {r["url"] for r in requests if "url" in r and r["initiator"] != BROWSERS_OWN})


class Elements(HTMLParser):
    """What is in a document: tags with their count, and the attributes of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_tables_plots_and_players_stand_in_the_document(browser: str, page: Path, tmp_path: Path) -> None:
    dom = Elements(browse(browser, tmp_path, page, "--dump-dom").shown)
    assert dom.tags["table"] == 4  # cost, flags, songs, refused rows
    assert dom.tags["svg"] == 3
    players = [attributes for tag, attributes in dom.attributes if tag == "audio"]
    assert len(players) >= 4
    assert all((player["src"] or "").startswith("data:audio/") for player in players)
    assert HOSTILE in dom.text, "the id is shown as it is"
    assert not dom.tags.keys() & {"script", "img", "iframe", "object", "embed"}, "lyrics and ids stay data"


def test_the_screenshot_shows_text_and_drawn_plots(browser: str, page: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    browse(browser, tmp_path, page, f"--screenshot={shot}", f"--window-size={WIDTH},{HEIGHT}")
    pixels = (imread(shot)[:, :, :3] * 255).round().astype(int)
    assert pixels.shape[:2] == (HEIGHT, WIDTH)
    drawn = (abs(pixels - MAIN).max(axis=2) <= 2).sum()
    assert drawn > 10_000, f"{drawn} pixels in the plots' colour: bars are missing"
    dark = (pixels.max(axis=2) < 80).mean()
    assert 0.002 < dark < 0.2, "a page of text has some ink, and not much"


def test_no_request_leaves_the_machine(browser: str, page: Path, tmp_path: Path) -> None:
    """First a page that does ask shows that the log would tell."""
    asking = tmp_path / "asking.html"
    asking.write_text('<img src="http://a.invalid/a.png"><link rel="stylesheet" href="https://b.invalid/b.css">')
    assert browse(browser, tmp_path, asking, "--dump-dom").asked == {
        "http://a.invalid/a.png",
        "https://b.invalid/b.css",
    }
    size = f"--window-size={WIDTH},{HEIGHT}"
    assert browse(browser, tmp_path, page, f"--screenshot={tmp_path / 'page.png'}", size).asked == set()


def test_the_page_asks_for_nothing_even_without_its_policy(browser: str, page: Path, tmp_path: Path) -> None:
    """The policy in the page would block what escaped; here it is taken out, so that only escaping protects."""
    bare = tmp_path / "bare.html"
    text = page.read_text(encoding="utf-8")
    start = text.index('<meta http-equiv="Content-Security-Policy"')
    bare.write_text(text[:start] + text[text.index(">", start) + 1 :], encoding="utf-8")
    assert browse(browser, tmp_path, bare, "--dump-dom").asked == set()
