"""Snakemake itself is killed, interrupted and ended, one after the other, in one campaign."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
from cluster.campaign import QUICK, SHARD_TABLES, Campaign
from cluster.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_snakemake_is_killed_interrupted_and_ended(
    make: Callable[..., Campaign], lab: Lab, expected: Any, figures: dict[str, dict[str, float]]
) -> None:
    campaign = make(ranks=1, slots=1)
    waits: dict[str, float] = {}

    def begin(n_jobs: int) -> "subprocess.Popen[bytes]":
        return campaign.start(*QUICK, "--jobs", str(n_jobs), *SHARD_TABLES)

    def strike(process: "subprocess.Popen[bytes]", number: signal.Signals, others: set[int]) -> tuple[int, set[int]]:
        """A signal when one of its shards is in its middle, and its end; others: shards that are not its own.

        Gives back that shard, and all that ran at the signal.
        """
        with campaign.held(others) as (shard, _):
            began = time.monotonic()
            os.kill(process.pid, number)
            running = set(campaign.jobs())
        process.wait(200)
        waits[number.name] = time.monotonic() - began
        return shard, running

    killed, orphans = strike(begin(2), signal.SIGKILL, set())
    assert killed in orphans, "its jobs run on"
    locked = begin(2)
    assert locked.wait(60) != 0 and "--unlock" in campaign.printed.read_text()
    campaign.finish(campaign.start("--unlock", *SHARD_TABLES))

    interrupted, _ = strike(begin(4), signal.SIGINT, orphans)
    lab.wait("no job of it is left", lambda: not set(campaign.jobs()) - orphans, 60)
    ended, _ = strike(begin(2), signal.SIGTERM, orphans)
    assert not set(campaign.jobs()) - orphans, "it has waited for its jobs"

    campaign.finish(begin(6))
    campaign.judge(expected)
    assert campaign.planned(*SHARD_TABLES) == {}
    for name, number in (("SIGKILL", killed), ("SIGINT", interrupted), ("SIGTERM", ended)):
        figures[f"snakemake {name}"] = {
            "seconds": waits[name],
            "songs_redone": campaign.songs_redone(number),
            "lost_s": campaign.lost_s(number),
        }
    assert campaign.songs_redone(killed) == 0, "its orphan was waited for, not raced"
