"""kill -9 of Snakemake at three moments. Its shards may live on; the same command then makes what is missing, once."""

from pathlib import Path
from typing import Any

import pytest
from fakes.clone import Clone, make_clone, write_small_run
from fakes.outcome import songs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture(scope="module")
def undisturbed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The songs of a run that nobody disturbs."""
    clone = make_clone(root, tmp_path_factory.mktemp("kill") / "undisturbed")
    write_small_run(clone)
    clone.snakemake()
    return songs(clone.root / "results/t")


@pytest.mark.parametrize("point", ["part.begin:1", "part.write:1", "seal.before_done:1"])
def test_snakemake_killed_ends_with_the_same_songs(
    clone: Clone, tmp_path: Path, undisturbed: dict[str, dict[str, Any]], point: str
) -> None:
    write_small_run(clone)
    fault = {"LEVO_FAULT": f"{point}:kill-snakemake", "LEVO_FAULT_ONCE": str(tmp_path / "once")}
    killed = clone.try_run("snakemake", *clone.front(), env=fault)
    assert killed.returncode == -9, killed.stdout
    assert (tmp_path / "once").exists()

    locked = clone.try_run("snakemake", *clone.front())
    assert locked.returncode != 0 and "--unlock" in locked.stdout

    clone.snakemake("--unlock")
    clone.snakemake()
    assert songs(clone.root / "results/t") == undisturbed
    assert clone.planned() == {}
