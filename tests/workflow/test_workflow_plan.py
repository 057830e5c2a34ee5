"""What Snakemake says before anything runs: number of jobs, refusals, style."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from fakes.clone import Clone

FIXED = {"tiny_model": 1, "check": 1, "plan": 1, "estimate": 1, "report": 1}


@pytest.mark.parametrize("n_shards", [1, 4, 500])
def test_a_dry_run_shows_one_job_a_shard(clone: Clone, n_shards: int) -> None:
    planned = clone.planned("--config", f"plan={{n_shards: {n_shards}}}")
    total = planned.pop("total")
    assert planned == {**FIXED, "generate": n_shards, "qa": n_shards, "all": 1}
    assert total == sum(planned.values())


def test_parsing_never_opens_the_manifest(clone: Clone) -> None:
    os.mkfifo(clone.root / "songs.jsonl")  # whoever opens it waits for ever
    done = clone.try_run("snakemake", *clone.front(), "-n", "--config", "manifest=songs.jsonl", timeout_s=60)
    assert done.returncode == 0, done.stdout


def test_an_unknown_setting_is_three_lines_without_a_traceback(clone: Clone) -> None:
    done = clone.try_run("snakemake", *clone.front(), "-n", "--config", "plan={n_shard: 2}")
    assert done.returncode != 0
    assert "unknown setting `plan.n_shard`" in done.stdout and "did you mean `n_shards`?" in done.stdout
    assert "Traceback" not in done.stdout and ".smk" not in done.stdout


def test_a_dry_run_leaves_nothing_behind(clone: Clone) -> None:
    clone.planned()
    assert not (clone.root / "results").exists() and not (clone.root / "models").exists()


def test_the_estimate_alone_makes_no_song(clone: Clone) -> None:
    assert clone.planned("estimate").keys() == {"tiny_model", "check", "plan", "estimate", "total"}


def test_another_model_is_never_made_by_a_rule(clone: Clone) -> None:
    (clone.root / "models/mine").mkdir(parents=True)
    (clone.root / "models/mine/model.json").touch()
    assert "tiny_model" not in clone.planned("--config", "model=models/mine")


def test_the_command_of_the_readme_plans(clone: Clone) -> None:
    readme = (clone.root / "README.md").read_text()
    command = re.search(r"^ +\.venv/bin/(snakemake .* -n)$", readme, re.MULTILINE)
    assert command is not None
    (clone.root / "my.jsonl").touch()
    assert "results/mine/reports/report.html" in clone.run(*command[1].split())


def test_make_demo_is_the_local_profile(clone: Clone) -> None:
    makefile = (clone.root / "Makefile").read_text()
    assert "$(BIN)/snakemake --profile profiles/local\n" in makefile


def test_lint_is_clean(clone: Clone) -> None:
    assert "good condition" in clone.run("snakemake", "--lint")


def test_snakefmt_is_clean(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "snakefmt.snakefmt", "--check", "Snakefile", "workflow"],
        cwd=root, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_rule_says_what_it_does_and_keeps_a_log(root: Path) -> None:
    for path in (root / "workflow/rules").glob("*.smk"):
        for rule in re.split(r"^rule ", path.read_text(), flags=re.MULTILINE)[1:]:
            keys = set(re.findall(r"^    (\w+):", rule, re.MULTILINE))
            assert keys >= {"output", "log", "benchmark", "retries", "resources", "message", "shell"}, rule


def test_profiles_explain_every_key_and_ignore_edited_code(root: Path) -> None:
    assert not (root / "profiles/default").exists(), "it would win over --profile"
    for path in (root / "profiles").glob("*/config.yaml"):
        lines = path.read_text().splitlines()
        keys = yaml.safe_load(path.read_text())
        for key in keys:
            at = next(n for n, line in enumerate(lines) if line.startswith(f"{key}:"))
            assert lines[at - 1].startswith("#"), f"{path}: no comment above {key}"
        assert keys["rerun-triggers"] == ["mtime", "input"]
        assert keys["rerun-incomplete"] is True and keys["keep-going"] is True
