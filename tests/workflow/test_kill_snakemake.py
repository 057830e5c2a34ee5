"""kill -9 of Snakemake at three moments. Its shards may live on; the same command then makes what is missing, once."""

import json
from collections import Counter
from pathlib import Path

import pytest
from fakes.clone import Clone, write_small_run
from fakes.outcome import songs

TARGETS = ["results/t/qa/00000.parquet", "results/t/qa/00001.parquet"]  # the page is not of interest here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


def commits(run: Path) -> Counter[str]:
    """How often each song was committed, over all shards and attempts."""
    lines = [line for path in run.glob("work/*/journal-*.jsonl") for line in path.read_text().splitlines()]
    return Counter(song for event in map(json.loads, lines) if event["event"] == "commit" for song in event["songs"])


@pytest.mark.parametrize("point", ["part.begin:1", "part.write:1", "seal.before_done:1"])
def test_snakemake_killed_ends_with_the_same_songs(clone: Clone, tmp_path: Path, finished: Clone, point: str) -> None:
    write_small_run(clone)
    fault = {"LEVO_FAULT": f"{point}:kill-snakemake", "LEVO_FAULT_ONCE": str(tmp_path / "once")}
    killed = clone.try_run("snakemake", *clone.front(), *TARGETS, env=fault)
    assert killed.returncode == -9, killed.stdout
    assert (tmp_path / "once").exists()

    locked = clone.try_run("snakemake", *clone.front(), *TARGETS)
    assert locked.returncode != 0 and "--unlock" in locked.stdout

    clone.snakemake("--unlock", *TARGETS)
    clone.snakemake(*TARGETS)
    undisturbed = songs(finished.root / "results/t")
    assert songs(clone.root / "results/t") == undisturbed
    # The shards that outlived Snakemake were waited for, not raced: no song was made twice.
    assert commits(clone.root / "results/t") == dict.fromkeys(undisturbed, 1)
    logs = [path.read_text() for path in (clone.root / "results/t/logs/generate").iterdir()]
    assert any("songs done, 0 to make" in log for log in logs), logs
    assert clone.planned(*TARGETS) == {}
