"""Faults fire exactly where, when and as often as they are told to."""

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from levo.errors import ConfigError
from levo.node import faults
from levo.node.faults import fault


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    faults._reached.clear()
    monkeypatch.delenv("LEVO_FAULT", raising=False)
    monkeypatch.delenv("LEVO_FAULT_ONCE", raising=False)


def test_without_an_order_nothing_happens() -> None:
    for _ in range(3):
        fault("part.write")


def test_it_fires_at_the_nth_time_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVO_FAULT", "part.write:3:raise")
    for number in range(1, 6):
        fault("part.begin")
        if number == 3:
            with pytest.raises(OSError, match="planned fault at part.write"):
                fault("part.write")
        else:
            fault("part.write")


def test_out_of_memory_is_torchs_where_torch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfMemoryError(RuntimeError):
        pass

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
    monkeypatch.setenv("LEVO_FAULT", "rank.step:1:oom")
    with pytest.raises(OutOfMemoryError):
        fault("rank.step")


def test_one_hit_in_a_whole_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "from levo.node.faults import fault; fault('x'); fault('x')"
    env = {**os.environ, "LEVO_FAULT": "x:2:kill", "LEVO_FAULT_ONCE": str(tmp_path / "once")}
    running = [subprocess.Popen([sys.executable, "-c", code], env=env, stderr=subprocess.DEVNULL) for _ in range(4)]
    assert sorted(process.wait() for process in running) == [-9, 0, 0, 0]
    assert (tmp_path / "once").exists()


@pytest.mark.parametrize("order", ["part.write", "part.write:1", "a:0:kill", "a:x:kill", "a:1:explode", ":::"])
def test_a_wrong_order_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setenv("LEVO_FAULT", order)
    with pytest.raises(ConfigError, match="not a fault"):
        fault("part.write")


SHARD = """
import multiprocessing, time
from levo.node.faults import fault

def rank():
    fault("part.begin")

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=rank, daemon=True)
    process.start()
    process.join()
    fault("seal.before_done")
    time.sleep(30)
"""


@pytest.mark.parametrize("point", ["part.begin", "seal.before_done"])
def test_the_shard_is_killed_from_its_rank_and_from_itself(tmp_path: Path, point: str) -> None:
    (tmp_path / "fake_shard.py").write_text(SHARD)
    command = [sys.executable, str(tmp_path / "fake_shard.py")]
    env = {**os.environ, "LEVO_FAULT": f"{point}:1:kill-shard"}
    assert subprocess.run(command, env=env, stderr=subprocess.DEVNULL, timeout=20).returncode == -9


WRAP = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]) % 256)"


def test_every_snakemake_above_is_killed_and_nothing_beyond(tmp_path: Path) -> None:
    """A caller, two Snakemakes with a shell between them (as its local executor does), a shell, the shard."""
    package = tmp_path / "snakemake"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(WRAP)
    script = tmp_path / "bin/snakemake"
    script.parent.mkdir()
    script.write_text(WRAP)
    alive = tmp_path / "alive"
    shard = f"from levo.node.faults import fault; fault('x'); open({str(alive)!r}, 'w').close()"
    (tmp_path / "shard.py").write_text(shard)
    inner = f"{sys.executable} -m snakemake sh -c '{sys.executable} {tmp_path / 'shard.py'}; true'; true"
    command = [sys.executable, "-c", WRAP, sys.executable, str(script), "sh", "-c", inner]
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    env = {**os.environ, "LEVO_FAULT": "x:1:kill-snakemake", "PYTHONPATH": path}
    done = subprocess.run(command, env=env, stderr=subprocess.DEVNULL, timeout=20)
    assert done.returncode == -9 % 256
    for _ in range(100):
        if alive.exists():
            return
        time.sleep(0.05)
    raise AssertionError("the shard was killed, too")
