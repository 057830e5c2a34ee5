"""`snakemake --profile gh200` in a fresh clone, on a real Slurm cluster: from lyrics to songs, bill and page."""

import json
from collections import defaultdict
from typing import Any

import pytest
from cluster.campaign import SHARDS, SONGS_A_SHARD, Campaign
from cluster.slurm_files import GPUS
from fakes.outcome import rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]
Undisturbed = tuple[Campaign, dict[str, int]]


def test_it_makes_every_song_with_its_provenance_bill_and_page(undisturbed: Undisturbed, expected: Any) -> None:
    campaign, _ = undisturbed
    assert len(expected) == SHARDS * SONGS_A_SHARD
    assert {song["provenance"]["outcome"] for song in expected.values()} == {"ok"}
    campaign.judge(expected)
    for name in ("plan/estimate.json", "reports/report.html", "reports/qa.json"):
        assert (campaign.run / name).stat().st_size > 0, name
    assert json.loads((campaign.run / "reports/cost.json").read_text())["n_shards_finished"] == SHARDS
    assert list((campaign.root / "results/efficiency").glob("*.csv"))


def test_it_plans_the_true_number_of_jobs_before_and_none_after(undisturbed: Undisturbed) -> None:
    campaign, before = undisturbed
    rules = {"tiny_model": 1, "check": 1, "plan": 1, "estimate": 1, "generate": SHARDS, "qa": SHARDS, "report": 1}
    assert before == {**rules, "all": 1, "total": 18}
    assert campaign.planned() == {}


def test_each_job_is_one_task_with_four_ranks_on_four_devices(undisturbed: Undisturbed) -> None:
    campaign, _ = undisturbed
    jobs = defaultdict(list)
    for row in rows(campaign.run, "provenance"):
        jobs[row["slurm_job_id"]].append(row)
    assert len(jobs) == SHARDS
    for job in jobs.values():
        assert {row["device_index"] for row in job} == set(range(GPUS)) == {row["rank"] for row in job}
        assert {(row["slurm_tasks"], row["slurm_cores"], row["slurm_restarts"]) for row in job} == {(1, 288, 0)}
