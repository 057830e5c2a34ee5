"""kill -9 of a rank and of the shard process, each at three moments: only songs in flight are made again."""

import re

import pyarrow.parquet as pq
import pytest
from fakes.shards import SONGS, lasting, make_run, run, settings

from levo.node.seal import read_bill


@pytest.mark.parametrize("victim", ["kill", "kill-shard"])
@pytest.mark.parametrize("moment", ["part.begin:1", "part.write:2"])
def test_kill_before_and_in_a_part(tmp_path, undisturbed, moment, victim):
    paths = make_run(tmp_path, SONGS, settings())
    code, said = run(tmp_path, LEVO_FAULT=f"{moment}:{victim}", LEVO_FAULT_ONCE=str(tmp_path / "once"))
    assert code == (4 if victim == "kill" else -9)
    assert not paths.provenance.exists()
    if victim == "kill":
        assert "every rank is lost (rank 0: killed by SIGKILL)" in said and str(paths.log(1, 0)) in said
    n_done = _committed(paths)
    assert n_done == (0 if moment == "part.begin:1" else 2)

    code, said = run(tmp_path, LEVO_FAULT=f"{moment}:{victim}", LEVO_FAULT_ONCE=str(tmp_path / "once"))
    assert code == 0, said
    in_flight = _resuming(said, n_done, 6 - n_done)
    assert 1 <= in_flight <= 6 - n_done
    assert lasting(paths) == undisturbed
    assert _attempts(paths).count(1) == n_done
    _check_bill(paths)


def test_kill_of_a_rank_after_its_last_part_costs_nothing(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings())
    code, said = run(tmp_path, LEVO_FAULT="rank.idle:1:kill")
    assert code == 0, said
    assert lasting(paths) == undisturbed


def test_kill_of_the_shard_after_the_last_part_only_seals_again(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings())
    code, _ = run(tmp_path, LEVO_FAULT="seal.before_done:1:kill-shard")
    assert code == -9 and paths.tokens.exists() and not paths.provenance.exists()
    code, said = run(tmp_path)
    assert code == 0 and _resuming(said, 6, 0) == 0
    assert lasting(paths) == undisturbed
    assert set(_attempts(paths)) == {1}
    assert not list(paths.work.glob("ledger-a002*")), "no rank was started"


def test_when_one_of_two_ranks_dies_the_other_makes_its_songs(tmp_path, undisturbed):
    paths = make_run(tmp_path, SONGS, settings(ranks=2))
    code, said = run(tmp_path, LEVO_FAULT="part.write:1:kill", LEVO_FAULT_ONCE=str(tmp_path / "once"))
    assert code == 0, said
    assert "killed by SIGKILL" in said
    assert lasting(paths) == undisturbed
    assert set(_attempts(paths)) == {1}


def _check_bill(paths):
    """What the killed attempt had cost is lost work, and nothing is forgotten."""
    bill = read_bill(paths.provenance)
    assert len(bill.attempts) == 2 and bill.lost_s > 0
    assert bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s == pytest.approx(bill.wall_s, rel=0.01)


def _committed(paths):
    return sum(pq.read_metadata(path).num_rows for path in paths.work.glob("part-*.parquet"))


def _resuming(said, n_done, n_missing):
    found = re.search(r"resuming: (\d+) songs done, (\d+) to make, (\d+) were in flight at the last attempt", said)
    assert found, said
    assert (int(found[1]), int(found[2])) == (n_done, n_missing)
    return int(found[3])


def _attempts(paths):
    return pq.read_table(paths.provenance, columns=["attempt"])["attempt"].to_pylist()
