"""Every command whose disk takes no more says so in three lines, and leaves no half file under a name that counts."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.run import make_run

from levo.disk import is_temporary
from levo.errors import EXIT_FAILED, EXIT_MODEL

ROOT = Path(__file__).parents[2]
BYTES = 64
"""A file may not grow beyond this; the kernel refuses it as it refuses a full disk."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("full") / "run")


@pytest.fixture
def run_dir(finished: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def levo(folder: Path, *words: object) -> tuple[int, str]:
    """A command, run in a folder, whose files may not grow; exit code, and what it said on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "levo", *map(str, words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES)),
    )  # fmt: skip
    return done.returncode, done.stderr


COMMANDS: dict[str, Callable[[Path, Path], tuple[object, ...]]] = {
    "start": lambda run, tiny: ("start", "--config", ROOT / "config/config.yaml"),
    "check": lambda run, tiny: (
        "check",
        ROOT / "config/songs.example.jsonl",
        "--model",
        tiny,
        "--out",
        run / "manifest",
    ),
    "plan": lambda run, tiny: ("plan", run),
    "estimate": lambda run, tiny: ("estimate", run),
    "qa": lambda run, tiny: ("qa", run, 0),
    "report": lambda run, tiny: ("report", run),
    "retry": lambda run, tiny: ("retry", run),
    "fit-length": lambda run, tiny: ("fit-length", run / "shards/00000/provenance.parquet", "--out", run / "l.json"),
    "sing": lambda run, tiny: ("sing", "[verse] Sea", "--model", tiny, "--max-seconds", 1, "--out", run / "a.flac"),
    "model tiny": lambda run, tiny: ("model", "tiny", run / "tiny"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_said_in_three_lines(command: str, run_dir: Path, tiny_dir: Path) -> None:
    before = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    code, said = levo(run_dir, *COMMANDS[command](run_dir, tiny_dir))
    assert code in (EXIT_FAILED, EXIT_MODEL), said
    what, where, fix = said.splitlines()[-3:]
    assert "File too large" in what and where.startswith("  where: ") and "space" in fix, said
    after = {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}
    assert after.keys() >= before.keys() and not [path for path in after if is_temporary(path)]
    assert [path for path in after if after[path] != before.get(path)] == []
