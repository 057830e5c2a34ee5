"""One cluster a session, and one undisturbed campaign on it that the others are compared with."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.campaign import Campaign, made_songs, write_campaign
from cluster.lab import FOLDER, Lab, why_not


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    reason = why_not()
    if reason is not None:
        if os.environ.get("CI"):
            pytest.fail(f"CI has no cluster: {reason}")
        pytest.skip(reason)
    cluster = Lab()
    cluster.up()
    yield cluster
    cluster.down()


@pytest.fixture(scope="session")
def make(lab: Lab, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Campaign]:
    def make_campaign(ranks: int | None, slots: int) -> Campaign:
        clone = tmp_path_factory.mktemp("cluster") / "clone"
        write_campaign(clone, root, ranks, slots)
        return Campaign(clone, lab)

    return make_campaign


@pytest.fixture(scope="session")
def undisturbed(make: Callable[..., Campaign]) -> tuple[Campaign, dict[str, int]]:
    """The promised command in a fresh clone: (the campaign, jobs that -n announced before)."""
    campaign = make(ranks=None, slots=8)
    before = campaign.planned()
    campaign.finish(campaign.start())
    return campaign, before


@pytest.fixture(scope="session")
def expected(undisturbed: tuple[Campaign, dict[str, int]]) -> dict[str, Any]:
    """The songs that every campaign must end with."""
    return made_songs(undisturbed[0].run)


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, dict[str, float]]]:
    """By fault, what it cost. They are left beside the lab, for docs/faults.md."""
    found: dict[str, dict[str, float]] = {}
    yield found
    (FOLDER / "faults.json").write_text(json.dumps(found, indent=1) + "\n")


@pytest.fixture(autouse=True)
def no_jobs_left(lab: Lab) -> Iterator[None]:
    """A failed test must not slow the next one down."""
    yield
    lab.ask("scancel", "--user=root")
    lab.wait("the queue is empty", lambda: not lab.ask("squeue", "-h").strip())
