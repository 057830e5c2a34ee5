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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_snakemake_is_killed_interrupted_and_ended(
    make: Callable[..., Campaign], lab: Lab, expected: Any, figures: dict[str, dict[str, float]]
) -> None:
    campaign = make(ranks=2, slots=1)
    waits: dict[str, float] = {}

    def begin() -> "subprocess.Popen[bytes]":
        return campaign.start(*QUICK, *SHARD_TABLES)

    def strike(process: "subprocess.Popen[bytes]", number: signal.Signals, taken: set[int]) -> int:
        shard, _ = campaign.in_the_middle(taken)
        began = time.monotonic()
        os.kill(process.pid, number)
        process.wait(200)
        waits[number.name] = time.monotonic() - began
        return shard

    killed = strike(begin(), signal.SIGKILL, set())
    assert campaign.jobs(), "its jobs run on"
    locked = campaign.start(*QUICK, *SHARD_TABLES)
    assert locked.wait(60) != 0 and "--unlock" in campaign.printed.read_text()
    campaign.finish(campaign.start("--unlock", *SHARD_TABLES))

    interrupted = strike(begin(), signal.SIGINT, {killed})
    lab.wait("no job is left", lambda: not campaign.jobs(), 60)
    ended = strike(begin(), signal.SIGTERM, {killed, interrupted})
    assert not campaign.jobs(), "it has waited for its jobs"

    campaign.finish(begin())
    campaign.judge(expected)
    assert campaign.planned(*SHARD_TABLES) == {}
    for name, number in (("SIGKILL", killed), ("SIGINT", interrupted), ("SIGTERM", ended)):
        figures[f"snakemake {name}"] = {
            "seconds": waits[name],
            "songs_redone": campaign.songs_redone(number),
            "lost_s": campaign.lost_s(number),
        }
