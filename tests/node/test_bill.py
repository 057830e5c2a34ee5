"""The bill against a bystander's clock: what the ranks' processes lived, as the kernel saw it."""

import time
from pathlib import Path

import pytest
from fakes.shards import SONGS, make_run, plan, settings, start

from levo.node.seal import read_bill

EXIT_S = 0.5  # a rank's interpreter ends after its ledger closed; the bystander looks every 5 ms


def ranks_of(shard_pid: int) -> set[int]:
    """Processes that compute for a shard: spawned by it, and not multiprocessing's own resource tracker."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            command = (stat.parent / "cmdline").read_bytes()
        except (OSError, IndexError):
            continue  # it ended while we looked
        if parent == shard_pid and b"spawn_main" in command:
            found.add(int(stat.parent.name))
    return found


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_the_bill_is_what_the_ranks_lived(tmp_path, n_ranks):
    paths = make_run(tmp_path, SONGS, settings(ranks=n_ranks))
    process = start(tmp_path, FAKE_PLAN=plan(tick_s=0.2))
    born, died = {}, {}
    while process.poll() is None:
        now, alive = time.monotonic(), ranks_of(process.pid)
        born |= {pid: now for pid in alive - born.keys()}
        died |= {pid: now for pid in born.keys() - alive - died.keys()}
        time.sleep(0.005)
    _, said = process.communicate()
    assert process.returncode == 0, said
    lived = sum(died[pid] - born[pid] for pid in born)
    bill = read_bill(paths.provenance)
    assert len(born) == n_ranks
    assert lived - n_ranks * EXIT_S - 0.01 * lived < bill.wall_s < lived + 0.05 * n_ranks + 0.01 * lived
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=0.01)
    assert bill.songs_s > 0.5, "the songs themselves must be part of it"
