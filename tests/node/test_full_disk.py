"""A command whose disk takes no more says so in three lines, and leaves no half file under a name that counts."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.run import make_run

from levo.errors import EXIT_FAILED

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "config/songs.example.jsonl"
PROVENANCE = "shards/00000/provenance.parquet"
SHORT = ("--max-seconds", 1)
SMALL, MODEL = 64, 8192
"""Bytes that a file may have: the kernel refuses more as it refuses a full disk. MODEL: torch writes a file itself."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("full") / "run")


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def levo(folder: Path, n_bytes: int, *words: object) -> tuple[int, str]:
    """A command, run in a folder, whose files may not grow; exit code, and what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "levo", *map(str, words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes)),
    )  # fmt: skip
    return done.returncode, done.stderr


COMMANDS: dict[str, tuple[int, Callable[[Path, Path], tuple[object, ...]]]] = {
    "start": (SMALL, lambda run, tiny: ("start", "--config", ROOT / "config/config.yaml")),
    "check": (SMALL, lambda run, tiny: ("check", EXAMPLE, "--model", tiny, "--out", run / "manifest")),
    "plan": (SMALL, lambda run, tiny: ("plan", run)),
    "estimate": (SMALL, lambda run, tiny: ("estimate", run)),
    "qa": (SMALL, lambda run, tiny: ("qa", run, 0)),
    "report": (SMALL, lambda run, tiny: ("report", run)),
    "retry": (SMALL, lambda run, tiny: ("retry", run)),
    "fit-length": (SMALL, lambda run, tiny: ("fit-length", run / PROVENANCE, "--out", run / "length.json")),
    "sing": (MODEL, lambda run, tiny: ("sing", "[verse] Sea", "--model", tiny, "--out", run / "a.flac", *SHORT)),
    "model tiny": (MODEL, lambda run, tiny: ("model", "tiny", run / "tiny")),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said_in_three_lines(command: str, run_dir: Path, tiny_dir: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    n_bytes, words = COMMANDS[command]
    code, said = levo(run_dir, n_bytes, *words(run_dir, tiny_dir))
    assert code == EXIT_FAILED, said
    what, where, fix = said.splitlines()[-3:]
    assert "File too large" in what and where.startswith("  where: ") and "space" in fix, said
    assert before == {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
