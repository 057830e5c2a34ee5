"""What a Slurm profile asks for, against the cluster that sinfo and sacctmgr describe."""

from pathlib import Path
from typing import Any

import pytest

from levo.errors import ConfigError
from levo.node import site
from levo.node.site import Order, check_site

SINFO = """\
normal|288|800000|gpu:gh200:4(S:0-3)|gh200,nvme|1-00:00:00|REQUEUE
normal|64+|256000+|gpu:a100:8(S:0-1),nvme:1|a100|1-00:00:00|REQUEUE
scavenge|288|800000|gpu:gh200:4|gh200|infinite|CANCEL
cpu|64|256000|(null)|(null)|2:00:00|OFF
"""
ASKED = {
    "slurm_account": "lab",
    "qos": "normal",
    "slurm_partition": "normal",
    "constraint": "gh200",
    "gres": "gpu:4",
    "cpus_per_task": 288,
    "mem_mb": 800000,
    "runtime": 1440,
}
PROFILE = """\
default-resources:
  slurm_partition: cpu
set-resources:
  generate:
    slurm_partition: gpu
    gres: "'gpu:8'"
    qos: fast
"""


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the commands print; a test may change it."""
    prints = {"sinfo": SINFO, "sacctmgr": "lab|normal,long\nRoot|normal\n"}
    monkeypatch.setattr(site, "_ask", lambda *command: prints[command[0]])
    return prints


def refusal(profiles: list[Path] | None = None, gpus: int = 4, **changed: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        check_site([Order("generate", {**ASKED, **changed})], profiles or [], gpus)
    return str(refused.value)


def test_what_the_cluster_has_is_accepted() -> None:
    assert check_site([Order("generate", ASKED), Order("qa", {"slurm_partition": "cpu"})], [], 4) == []


@pytest.mark.parametrize(
    ("key", "value", "what", "choice"),
    [
        ("slurm_account", "EDIT", "you have no account 'EDIT'", "lab, root"),
        ("qos", "fast", "no QOS 'fast' for account 'lab'", "long, normal"),
        ("slurm_partition", "gpu", "no partition 'gpu' on this cluster", "cpu, normal, scavenge"),
        ("constraint", "h100", "no node of partition normal has constraint 'h100'", "a100, gh200 nvme"),
        ("constraint", "gh200&a100", "has constraint 'gh200&a100'", "a100, gh200 nvme"),
        ("gres", "gpu:h100:4", "has gres 'gpu:h100:4'", "gpu:gh200:4"),
        ("cpus_per_task", 300, "has cpus_per_task 300", "288"),
        ("mem_mb", 900000, "has mem_mb 900000", "800000"),
        ("runtime", 2000, "has runtime 2000", "at most 1440 minutes"),
    ],
)
def test_what_it_has_not_is_refused_with_what_there_is(key: str, value: object, what: str, choice: str) -> None:
    said = refusal(**{key: value})
    assert "rule generate" in said and what in said and choice in said, said


def test_nodes_must_have_all_of_it_at_once() -> None:
    """Eight GPUs are on one kind of node, 288 cores on the other."""
    assert "has cpus_per_task 288" in refusal(gpus=8, gres="gpu:8", constraint=None)


def test_the_line_of_the_profile_is_named(tmp_path: Path) -> None:
    profile = tmp_path / "config.yaml"
    profile.write_text(PROFILE)
    assert f"{profile}, line 5: slurm_partition" in refusal([profile], slurm_partition="gpu")
    assert f"{profile}, line 6: gres" in refusal([profile], gres="gpu:8")
    assert f"{profile}, line 7: qos" in refusal([profile], qos="fast")
    assert "constraint, given on the command line" in refusal([profile], constraint="h100")
    profile.write_text("default-resources: # all of them\n  - \"slurm_account='EDIT'\"\n  - runtime=3d # long\n")
    assert f"{profile}, line 2: slurm_account" in refusal([profile], slurm_account="EDIT")
    assert f"{profile}, line 3: runtime" in refusal([profile], runtime=3 * 24 * 60), "as Snakemake says it"
    assert f"{profile}, line 3: runtime" in refusal([profile], runtime="3d"), "as the profile says it"


def test_the_bill_counts_the_gpus_that_a_job_gets() -> None:
    assert "asks for 8 GPUs a node, setting cost.gpus_per_node is 4" in refusal(gres="gpu:8")


def test_constraints_with_operators_are_left_to_slurm() -> None:
    assert check_site([Order("generate", {**ASKED, "constraint": "[gh200|h100]"})], [], 4) == []


def test_a_partition_that_cancels_is_pointed_out() -> None:
    (warning,) = check_site([Order("generate", {**ASKED, "slurm_partition": "scavenge"})], [], 4)
    assert "scavenge preempts by CANCEL" in warning


def test_without_accounting_the_account_is_not_checked_and_that_is_said(cluster: dict[str, str]) -> None:
    cluster["sacctmgr"] = ""
    (note,) = check_site([Order("generate", ASKED)], [], 4)
    assert "are not checked" in note


def test_no_slurm_at_all_is_an_error_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="sinfo is not on PATH"):
        check_site([Order("generate", ASKED)], [], 4)
