"""`levo rehearse-node` and a sweep on the real Slurm cluster that the tests start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from levo.bench.cluster import runner
from levo.bench.cluster_task import OK, OUT_OF_TIME, Task

STEPS = ["plan", "songs", "qa", "report", "verify", "forecast"]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> object:
    """The cluster of this folder's conftest."""
    try:
        return request.getfixturevalue("cluster")
    except pytest.FixtureLookupError:
        pytest.skip("no fixture `cluster` here: the cluster's tests are not part of this checkout")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.usefixtures("lab")
def test_a_rehearsal_is_one_job_on_a_whole_node_with_four_ranks(root: Path, tmp_path: Path, tiny_dir: Path) -> None:
    config = yaml.safe_load((root / "config/config.yaml").read_text())
    config |= {"model": str(tiny_dir), "codec": {"steps": 2}, "limits": {"max_seconds": 4}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "rehearsal"
    words = ["rehearse-node", "--config", str(tmp_path / "config.yaml"), "--profile", "gh200", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "levo", *words, "--minutes", "10"],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    said = json.loads(done.stdout.splitlines()[-1])
    outcomes = {step["name"]: step["is_ok"] for step in said["steps"]}
    # doctor rightly misses a driver for the GPUs that the job was given: the lab's are device nodes.
    assert [name for name in STEPS if not outcomes[name]] == [], done.stdout + done.stderr
    assert "4 given by Slurm" in (out / "logs/doctor.txt").read_text()
    assert len(said["figures"]["ranks"]) == 4
    (record,) = [json.loads(path.read_text()) for path in (tmp_path / "jobs").glob("*.json")]
    job = record["slurm_job_id"]
    allocated = subprocess.check_output(["sacct", "-XnP", "-j", job, "-o", "AllocTRES,NNodes"], text=True)
    assert "gres/gpu=4" in allocated and "cpu=288" in allocated and allocated.strip().endswith("|1")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("lab")
def test_each_configuration_is_a_job_and_one_that_hangs_is_a_row(tmp_path: Path) -> None:
    good = Task({"n": 1}, (sys.executable, "-c", "print('{\"x_realtime\": 1}')"), 1)
    slow = Task({"n": 2}, (sys.executable, "-c", "import time; time.sleep(300)"), 0.1)
    records = runner("slurm", "gh200", ["gres=gpu:1"])([good, slow], tmp_path / "out", print)
    assert [record["outcome"] for record in records] == [OK, OUT_OF_TIME]
    assert len({record["slurm_job_id"] for record in records}) == 2
