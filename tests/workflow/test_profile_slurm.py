"""`snakemake --profile gh200` against Slurm's commands as scripts: what is asked for, refused, and waited out."""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml
from fakes.clone import Clone
from fakes.outcome import songs
from fakes.slurm_commands import FakeSlurm, make_slurm, rule_of, without_paths, wrapped

QUICK = ["--slurm-init-seconds-before-status-checks", "1", "--max-status-checks-per-second", "5"]
SBATCH = (
    "--parsable --job-name RUN --output LOG --export=ALL --comment rule_{} -A lab -p {} -t {} {}--qos=normal --mem {}"
)


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return make_slurm(tmp_path / "slurm")


@pytest.fixture
def done(finished: Clone, tmp_path: Path) -> Clone:
    """The finished RUN `t` without its sealed files. The parts are kept, so that every rule runs again in seconds."""
    copy = Clone(Path(shutil.copytree(finished.root, tmp_path / "a copy", symlinks=True)))
    for name in ("shards", "qa", "reports"):
        shutil.rmtree(copy.root / "results/t" / name)
    os.utime(copy.root / "songs.jsonl")
    return copy


def drive(clone: Clone, slurm: FakeSlurm, *arguments: str) -> str:
    """The promised command, with the settings of mine.yaml where there is one."""
    mine = ["--configfile", "mine.yaml"] if (clone.root / "mine.yaml").exists() else []
    return clone.run("snakemake", *mine, "--profile", "gh200", *arguments, env=slurm.env)


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_what_each_rule_asks_slurm_for(done: Clone, finished: Clone, slurm: FakeSlurm) -> None:
    """Word by word. Meanwhile sbatch refuses once and sacct fails twice: the run goes on."""
    slurm.answer("sbatch", (1, "sbatch: error: AssocMaxSubmitJobLimit"))
    slurm.answer(
        "sacct", (1, "slurm_persist_conn: Connection refused"), (1, "Slurm accounting storage is disabled"), (0, "")
    )
    printed = drive(done, slurm, *QUICK)
    assert "AssocMaxSubmitJobLimit" in printed

    asked = {rule_of(words): without_paths(words) for words in slurm.submissions()}
    alone = "--exclusive --signal=TERM@300 --open-mode=append"
    node = f"--requeue --cpus-per-task=288 {alone} -D ROOT --gres=gpu:4"
    one, sixteen = (f"--requeue --ntasks=1 --cpus-per-task={n} -D ROOT" for n in (1, 16))
    shard = re.sub(r".*_", "", asked["generate"][asked["generate"].index("--comment") + 1])
    number = re.sub(r".*_", "", asked["qa"][asked["qa"].index("--comment") + 1])
    expected = {
        "check": f"{SBATCH.format('check', 'cpu', 120, '', 8000)} {one}",
        "generate": f"{SBATCH.format(f'generate_wildcards_{shard}', 'normal', 1440, '-C gh200 ', 800000)} {node}",
        "qa": f"{SBATCH.format(f'qa_wildcards_{number}', 'cpu', 240, '', 16000)} {sixteen}",
        "report": f"{SBATCH.format('report', 'cpu', 120, '', 8000)} {one}",
    }
    assert {rule: " ".join(words) for rule, words in asked.items()} == expected
    for words in slurm.submissions():
        assert wrapped(words)[1:3] == ["-m", "snakemake"]
    assert songs(done.root / "results/t") == songs(finished.root / "results/t")
    assert "Nothing to be done" in drive(done, slurm, "-n")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_job_preempted_for_good_is_tried_again(done: Clone, slurm: FakeSlurm) -> None:
    """Requeued first, and left to Slurm; then gone from the queue: the plugin alone would wait for it for ever."""
    slurm.answer("sbatch", (0, "99"))
    slurm.answer("sacct", (0, "99|PREEMPTED"), (0, "99|PREEMPTED"))
    slurm.answer("squeue", (0, "PENDING"))
    target = "results/t/shards/00000/provenance.parquet"
    os.utime(done.root / "songs.jsonl", (0, 0))  # only the shard is to be made
    printed = drive(done, slurm, *QUICK, target)
    assert "SLURM jobid 99" in printed and "SLURM status is: 'CANCELLED'" in printed
    assert [rule_of(words) for words in slurm.submissions()] == ["generate"]
    assert (done.root / target).exists()


def test_a_site_setting_that_does_not_fit_stops_before_the_first_job(clone: Clone, slurm: FakeSlurm) -> None:
    path = clone.root / "profiles/gh200/config.yaml"
    path.write_text(path.read_text().replace("slurm_partition: normal", "slurm_partition: gpu"))
    line = path.read_text().splitlines().index("    slurm_partition: gpu") + 1
    for _ in range(2):  # the second time too: no lock is left
        refused = clone.try_run("snakemake", "--profile", "gh200", env=slurm.env)
        assert refused.returncode != 0
        assert "no partition 'gpu' on this cluster" in refused.stdout, refused.stdout
        assert f"gh200/config.yaml, line {line}: " in refused.stdout
        assert "Traceback" not in refused.stdout
    assert slurm.submissions() == []
    assert not (clone.root / "models").exists(), "nothing ran here either"


def test_where_there_is_no_slurm_it_says_so(clone: Clone, slurm: FakeSlurm) -> None:
    slurm.answer("sinfo", (1, "slurm_load_partitions: Unable to contact slurm controller"))
    refused = clone.try_run("snakemake", "--profile", "gh200", env=slurm.env)
    assert refused.returncode != 0 and "Unable to contact slurm controller" in refused.stdout
    assert "Traceback" not in refused.stdout


def test_two_thousand_shards_are_planned_in_ten_seconds(clone: Clone, slurm: FakeSlurm) -> None:
    before = os.times()
    text = drive(clone, slurm, "-n", "--quiet", "--config", "plan={n_shards: 2000}")
    after = os.times()  # of the machine's time: it may be busy with other tests
    assert after.children_user + after.children_system - before.children_user - before.children_system < 10
    assert "Building DAG of jobs" in text


@pytest.mark.parametrize("where", ["subfolder", "directory"])
def test_elsewhere_it_says_what_to_type(clone: Clone, slurm: FakeSlurm, tmp_path: Path, where: str) -> None:
    root = clone.root
    if where == "subfolder":
        said = Clone(root / "config").try_run("snakemake", "-s", "../Snakefile", "--profile", "../gh200", "-n")
    else:
        said = clone.try_run("snakemake", "--profile", "gh200", "--directory", str(tmp_path / "far"), "-n")
    assert said.returncode != 0
    assert f"cd {root} && snakemake --profile gh200" in said.stdout and "Traceback" not in said.stdout


def test_from_a_subfolder_with_directory_it_works(clone: Clone) -> None:
    sub = Clone(clone.root / "config")
    text = sub.run("snakemake", "-s", "../Snakefile", "--profile", "../gh200", "--directory", "..", "-n")
    assert re.search(r"^total +14$", text, re.MULTILINE)


def test_with_apptainer_rules_run_in_the_image(clone: Clone, tmp_path: Path) -> None:
    script = tmp_path / "bin/apptainer"
    script.parent.mkdir()
    script.write_text(
        '#!/bin/bash\n[ "$1" = --version ] && echo "apptainer version 1.3.4" && exit\necho "$@" >> calls.txt\n'
        'while [ "$1" != bash ]; do shift; done; exec "$@"\n'
    )
    script.chmod(0o755)
    (tmp_path / "levo.sif").touch()
    env = {"PATH": f"{script.parent}:{os.environ['PATH']}"}
    command = ["snakemake", "models/tiny/model.json", "--profile", "profiles/local", "--sdm", "apptainer"]
    refused = clone.try_run(*command, env=env)
    assert refused.returncode != 0 and "fix:   export LEVO_IMAGE=" in refused.stdout
    clone.run(*command, "--apptainer-args=--nv", env={**env, "LEVO_IMAGE": str(tmp_path / "levo.sif")})
    called = (clone.root / "calls.txt").read_text()
    assert " --nv " in called and f"{tmp_path / 'levo.sif'} bash -c " in called
    assert "exec python -m levo model tiny models/tiny" in called


def test_profiles_hold_no_key_that_snakemake_has_given_up(root: Path) -> None:
    given_up = {"max-jobs-per-second", "use-conda", "use-singularity", "use-envmodules", "cluster", "drmaa", "slurm"}
    for path in (root / "profiles").glob("*/config.yaml"):
        keys = yaml.safe_load(path.read_text()).keys()
        assert not keys & given_up, path
        assert not {key for key in keys if key.startswith("slurm-array")}, f"{path}: arrays run the wrong shard"


def test_every_line_to_edit_has_its_comment(root: Path) -> None:
    """Keys below default-resources and set-resources too."""
    for path in (root / "profiles").glob("*/config.yaml"):
        lines = path.read_text().splitlines()
        assert len(lines) <= 80, path
        for before, line in zip(lines, lines[1:], strict=False):
            if re.match(r" +\w+: +\S", line):
                assert before.strip().startswith("#"), f"{path}: no comment above {line.strip()}"
