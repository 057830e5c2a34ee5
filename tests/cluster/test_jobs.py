"""Jobs are cancelled, requeued, preempted and run out of time in the middle of shards."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from cluster.campaign import QUICK, SHARD_TABLES, SHARDS, Campaign
from cluster.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def preempt(lab: Lab, job: str) -> None:
    """A job of a higher partition wants this job's node."""
    node = lab.node_of(job)
    lab.ask("sbatch", "-A", "lab", "-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")


def move_a_waiting_shard(campaign: Campaign, lab: Lab) -> tuple[int, str]:
    """Move one waiting shard to the partition that preempts by CANCEL, without grace, and let it wait for its release;
    gives back (number, job)."""
    lab.wait(
        "all nodes are busy and a shard waits", lambda: len(campaign.jobs()) == 4 and campaign.jobs("PD") != {}, 300
    )
    number, job = next(iter(campaign.jobs("PD").items()))
    lab.ask("scontrol", "update", f"JobId={job}", "Partition=scavenge")
    lab.ask("scontrol", "hold", job)
    return number, job


def test_jobs_are_cancelled_requeued_preempted_and_out_of_time(
    make: Callable[..., Campaign], lab: Lab, expected: Any, figures: dict[str, dict[str, float]]
) -> None:
    campaign = make(ranks=1, slots=1)
    snakemake = campaign.start(*QUICK, *SHARD_TABLES)
    last, cancellable = move_a_waiting_shard(campaign, lab)
    shards: dict[str, int] = {}
    jobs: dict[str, str] = {}
    began: dict[str, float] = {}
    strikes: dict[str, Callable[[str], object]] = {
        "scancel": lambda job: lab.ask("scancel", job),
        "scontrol requeue": lambda job: lab.ask("scontrol", "requeue", job),
        # Slurm's SIGTERM comes 300 s before the end: now.
        "time limit": lambda job: lab.ask("scontrol", "update", f"JobId={job}", "TimeLimit=5"),
        "preempted (REQUEUE)": lambda job: preempt(lab, job),
    }
    with ExitStack() as stack:  # the other four, one a node
        for name in strikes:
            shards[name], jobs[name] = stack.enter_context(campaign.held(set(shards.values())))
        for name, strike in strikes.items():
            began[name] = time.time()
            strike(jobs[name])
        for name in strikes:
            campaign.wait_event(shards[name], "stop", began[name])
    lab.ask("scontrol", "release", cancellable)
    name = "preempted (CANCEL)"
    with campaign.held(set(range(SHARDS)) - {last}) as (shards[name], jobs[name]):
        assert jobs[name] == cancellable
        began[name] = time.time()
        preempt(lab, cancellable)
        lab.wait("it is killed", lambda: cancellable not in campaign.jobs().values(), 300)

    printed = campaign.finish(snakemake)
    campaign.judge(expected)
    assert f"SLURM-job '{cancellable}' failed, SLURM status is: 'CANCELLED'" in printed
    for name, number in shards.items():
        back = [event.time_s for event in campaign.events(number, "start") if event.time_s > began[name]]
        assert back, f"{name}: shard {number} was over before it"
        figures[name] = {
            "seconds": back[0] - began[name],
            "songs_redone": campaign.songs_redone(number),
            "lost_s": campaign.lost_s(number),
        }
    assert figures[name]["lost_s"] > 0.05, "killed without grace: what was in flight is lost work on the bill"
