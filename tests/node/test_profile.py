"""What a profile asks Slurm for, as Snakemake would read it."""

from pathlib import Path

import pytest

from levo.errors import ConfigError
from levo.node.profile import minutes, part_of_node, read_profile, with_options

AS_MAPPING = """
slurm-requeue: true
default-resources:
  slurm_account: music
  slurm_partition: cpu
  mem_mb: 1000
set-resources:
  generate:
    slurm_partition: gpu
    qos: long
    constraint: gh200
    gres: "'gpu:gh200:4'"
    cpus_per_task: 288
    mem_mb: 800000
    runtime: 12h
    slurm_extra: "'--exclusive --signal=TERM@300 --mail-type=END'"
"""
AS_LISTS = """
default-resources: ["slurm_account='music'", mem_mb=0, runtime=90]
set-resources:
  generate: ["gres='gpu:4'"]
"""


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "profiles/site/config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(AS_MAPPING)
    return path


def test_a_node_job_asks_for_what_the_profile_sets_for_generate(profile: Path) -> None:
    job = read_profile("site")
    assert job.options == {
        "account": "music", "partition": "gpu", "qos": "long", "constraint": "gh200", "gres": "gpu:gh200:4",
        "cpus-per-task": "288", "mem": "800000M", "exclusive": True, "mail-type": "END",
    }  # fmt: skip
    assert (minutes(job.rules["generate"]["runtime"]), job.is_requeued) == (720, True)
    assert job.rules["check"] == {"slurm_account": "music", "slurm_partition": "cpu", "mem_mb": 1000}


def test_lists_of_pairs_are_read_too_and_no_memory_is_asked_for_with_0(profile: Path) -> None:
    profile.write_text(AS_LISTS)
    job = read_profile("site")
    assert job.options == {"account": "music", "gres": "gpu:4"}
    assert (minutes(job.rules["generate"]["runtime"]), job.is_requeued) == (90, False)


def test_a_link_at_the_root_is_found_first_as_by_snakemake(profile: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "config.yaml").write_text(AS_LISTS)
    (tmp_path / "site").symlink_to(other)
    assert read_profile("site").options["gres"] == "gpu:4"


def test_fewer_gpus_get_their_share_of_the_node_and_do_not_keep_it_alone(profile: Path) -> None:
    options = with_options(read_profile("site"), ["gres=gpu:1", "nice"])
    assert options["gres"] == "gpu:1" and options["nice"] is True
    assert (options["cpus-per-task"], options["mem"]) == ("72", "200000M")
    assert "exclusive" not in options and options["partition"] == "gpu"


@pytest.mark.parametrize("gres", ["gpu:4", "gpu:h100:8"])
def test_as_many_gpus_as_before_change_nothing_else(profile: Path, gres: str) -> None:
    options = read_profile("site").options
    assert part_of_node(options, gres) == {**options, "gres": gres}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "no readable profile"),
        ("- a list", "no readable profile"),
        ("default-resources: [no_value]", "no readable profile"),
        ("set-resources: {generate: {runtime: soon}}", "runtime 'soon' is no time"),
        ("set-resources: {generate: {slurm_extra: exclusive}}", "'exclusive' is not --NAME"),
    ],
)
def test_a_profile_that_cannot_be_read_is_said_in_words(profile: Path, content: str, words: str) -> None:
    profile.write_text(content)
    with pytest.raises(ConfigError, match=words):
        read_profile("site")


def test_the_profiles_of_this_project_can_be_read(root: Path) -> None:
    for path in (root / "profiles").glob("*/config.yaml"):
        read_profile(str(path.parent))
