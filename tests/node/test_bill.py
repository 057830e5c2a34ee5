"""The bill against a bystander's clock: what the ranks' processes lived, as the kernel saw it."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.shards import SONGS, make_run, plan, settings, start

from levo.node.ledger import RankLedger, read_ledgers
from levo.node.paths import ShardPaths
from levo.node.seal import read_bill

EXIT_S = 0.5
"""A rank's interpreter ends after its ledger closed; what it waits for a core meanwhile is not in it."""


@dataclass(frozen=True)
class Sight:
    """A rank at one moment. at_s, born_s: since boot.  waited_s: so far, for a core: it could run and was not let."""

    at_s: float
    born_s: float
    waited_s: float


def see_ranks(shard_pid: int) -> dict[int, Sight]:
    """Processes that compute for a shard: spawned by it, and not multiprocessing's own resource tracker."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) != shard_pid or b"spawn_main" not in (stat.parent / "cmdline").read_bytes():
                continue
            schedstat = stat.parent / "schedstat"  # some kernels have none
            waited_s = int(schedstat.read_text().split()[1]) / 1e9 if schedstat.exists() else 0.0
        except (OSError, IndexError):
            continue  # it ended while we looked
        born_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        found[int(stat.parent.name)] = Sight(time.clock_gettime(time.CLOCK_BOOTTIME), born_s, waited_s)
    return found


def closed_s(paths: ShardPaths, ledger: RankLedger) -> float:
    """When a ledger was written for the last time, since boot."""
    since_boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return paths.ledger(ledger.attempt, ledger.rank).stat().st_mtime - since_boot_s


def waited_since(sights: list[Sight], moment_s: float) -> float:
    """Seconds that a rank waited for a core from the moment on."""
    before = [sight.waited_s for sight in sights if sight.at_s <= moment_s]
    return sights[-1].waited_s - max(before, default=0.0)


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_bill_is_what_the_ranks_lived(tmp_path, n_ranks):
    """A rank cannot bill more than it lived, nor less but for its exit. A busy machine makes the exit longer by what
    the kernel lets the rank wait for a core, and that the kernel counts."""
    paths = make_run(tmp_path, SONGS, settings(ranks=n_ranks))
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=0.2))
    seen: dict[int, list[Sight]] = {}
    missed_s: dict[int, float] = {}
    while process.poll() is None:
        alive = see_ranks(process.pid)
        for pid, sight in alive.items():
            seen.setdefault(pid, []).append(sight)
        now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        missed_s |= {pid: now_s for pid in seen.keys() - alive.keys() - missed_s.keys()}
        time.sleep(0.005)
    _, said = process.communicate()
    assert process.returncode == 0, said
    bill, ledgers = read_bill(paths.provenance), read_ledgers(paths)
    assert len(seen) == len(ledgers) == n_ranks
    at_most = sum(missed_s[pid] - sights[0].born_s for pid, sights in seen.items())
    at_least = sum(sights[-1].at_s - sights[0].born_s for sights in seen.values())
    pairs = zip(sorted(seen), ledgers, strict=True)  # both in the order in which the ranks were started
    waited = sum(waited_since(seen[pid], closed_s(paths, ledger)) for pid, ledger in pairs)
    assert bill.wall_s > 0.99 * at_least - waited - EXIT_S * n_ranks
    assert bill.wall_s < 1.01 * at_most + 0.05 * n_ranks
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=0.01)
    assert bill.songs_s > 0.5, "the songs themselves must be part of it"
