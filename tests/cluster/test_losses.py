"""Nodes, services and ranks are lost in the middle of shards."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cluster.campaign import QUICK, SHARD_TABLES, SHARDS, Campaign
from cluster.lab import Lab
from cluster.processes import signal_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def refuse_once(folder: Path) -> str:
    """A PATH whose sbatch refuses the first shard's submission, once."""
    folder.mkdir()
    script = folder / "sbatch"
    script.write_text(
        f"#!{sys.executable}\nimport os, sys\nonce = {str(folder / 'refused')!r}\n"
        "if any('rule_generate' in word for word in sys.argv) and not os.path.exists(once):\n"
        "    open(once, 'w').close()\n    sys.exit('sbatch: error: Slurm temporarily unable to accept job')\n"
        f"os.execv({shutil.which('sbatch')!r}, sys.argv)\n"
    )
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_nodes_accounting_and_ranks_are_lost(
    make: Callable[..., Campaign], lab: Lab, expected: Any, tmp_path: Path, figures: dict[str, dict[str, float]]
) -> None:
    campaign = make(ranks=2, slots=1)  # the other rank goes on when one is killed
    campaign.env = {
        "PATH": refuse_once(tmp_path / "refusing"),
        "LEVO_FAULT": "rank.step:40:oom",
        "LEVO_FAULT_ONCE": str(tmp_path / "out-of-memory"),
    }
    snakemake = campaign.start(*QUICK, *SHARD_TABLES)
    began: dict[str, float] = {}
    shards: dict[str, int] = {}

    def out_of_memory() -> set[int]:
        return {n for n in range(SHARDS) for event in campaign.events(n, "lost") if "memory" in event.fields["how"]}

    def strike(stack: ExitStack, name: str) -> str:
        """Hold a shard in its middle that nothing has happened to; gives back its job."""
        shards[name], job = stack.enter_context(campaign.held(out_of_memory() | set(shards.values())))
        began[name] = time.time()
        return job

    lab.wait("a rank is out of memory", lambda: bool(out_of_memory()), 300)
    with ExitStack() as lost:
        job = strike(lost, "node off")
        lab.stop_accounting()
        off = lab.node_of(job)
        lab.power_off(off)

        job = strike(lost, "zombie")
        zombie, cut = lab.processes_of(job), lab.node_of(job)
        signal_all(zombie, signal.SIGSTOP)  # the node hangs; it will wake up when the shard is somebody else's
        lab.cut_off(cut)

        with ExitStack() as stack:
            job = strike(stack, "rank killed")
            os.kill(campaign.ranks_of(job)[0], signal.SIGKILL)

        for name, node in (("node off", off), ("zombie", cut)):
            back = campaign.wait_event(shards[name], "start", began[name])
            figures[name] = {"seconds": back.time_s - began[name]}
            if name == "zombie":
                signal_all(zombie, signal.SIGCONT)
            lab.start_node(node)
    lab.start_accounting()
    figures["rank killed"] = {}

    printed = campaign.finish(snakemake)
    assert "temporarily unable to accept job" in printed
    campaign.judge(expected)
    (shards["out of memory"],) = out_of_memory()
    figures["out of memory"] = {}
    for name, number in shards.items():
        figures[name] |= {"songs_redone": campaign.songs_redone(number), "lost_s": campaign.lost_s(number)}
        assert campaign.lost_s(number) > 0.05, f"{name}: the bill of shard {number} shows no lost work"
    (killed,) = campaign.events(shards["rank killed"], "lost")
    assert len(killed.fields["songs"]) <= 2, "of the slot, and on its way to the disk"
