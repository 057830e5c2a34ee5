"""`levo doctor`: each machine that it can meet gets the right level and a remedy, and no check hides another."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.commands import put_commands

from levo.errors import EXIT_FAILED, EXIT_OK, EXIT_USABLE
from levo.node import doctor as doctors
from levo.node.doctor import Diagnosis, doctor
from levo.node.doctor.cluster import check_slurm, judge_commands
from levo.node.doctor.compute import TorchBuild, judge_gpu, judge_torch
from levo.node.doctor.finding import LEVELS, NOTE, OK, PROBLEM, WARNING, Finding, good
from levo.node.doctor.job import judge_job_gpus
from levo.node.doctor.storage import check_model, check_output, judge_quota, judge_reading, judge_space

GB = 10**9


def test_this_machine_is_looked_at_whole(tiny_dir: Path, tmp_path: Path) -> None:
    diagnosis = doctor(tiny_dir, tmp_path / "not" / "there" / "yet")
    seen = {finding.what for finding in diagnosis.findings}
    assert seen >= {"machine", "Python", "torch", "attention", "model", "model path", "audio", "Snakemake", "space"}
    assert not [f for f in diagnosis.findings if "the check itself failed" in f.found]
    levels = {finding.what: finding.level for finding in diagnosis.findings}
    assert {levels[what] for what in ("audio", "model", "rename, link", "Python", "attention")} == {OK}
    assert list(tmp_path.iterdir()) == []
    assert all(len(line) < 250 for line in str(diagnosis).splitlines())


BUILDS = {
    "cuda on x86": (TorchBuild("2.13.0", "13.0", True, "x86_64", True), OK, ""),
    "GH200": (TorchBuild("2.13.0+cu130", "13.0", True, "aarch64", True), OK, ""),
    "CPU only on GH200": (TorchBuild("2.8.0+cpu", None, False, "aarch64", True), PROBLEM, "aarch64 is a CUDA 13 build"),
    "CPU only on a login node": (
        TorchBuild("2.8.0", None, False, "aarch64", False),
        WARNING,
        "for GH200 nodes: make",
    ),
    "CPU only beside a GPU": (TorchBuild("2.13.0+cpu", None, False, "x86_64", True), PROBLEM, "make setup TORCH="),
    "laptop": (TorchBuild("2.13.0+cpu", None, False, "x86_64", False), NOTE, "tiny model"),
    "old driver": (TorchBuild("2.13.0", "13.0", False, "x86_64", True), PROBLEM, "driver"),
    "cuda on a login node": (TorchBuild("2.13.0", "13.0", False, "x86_64", False), NOTE, "in a job with GPUs"),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_torch_that_cannot_use_the_gpus_is_flagged_with_the_line_to_install(kind: str) -> None:
    build, level, fix = BUILDS[kind]
    finding = judge_torch(build)
    assert (finding.level, fix in finding.fix) == (level, True)


def test_gpus_are_judged_by_capability_and_memory() -> None:
    levels = [
        judge_gpu("GPU 0", "", *facts).level for facts in (((9, 0), 95), ((8, 0), 80), ((9, 0), 16), ((7, 0), 32))
    ]
    assert levels == [OK, NOTE, WARNING, PROBLEM]


def test_gpus_of_a_job_must_be_those_that_slurm_gave() -> None:
    job = {"SLURM_JOB_ID": "7"}
    assert judge_job_gpus({**job, "SLURM_GPUS_ON_NODE": "4"}, 4, {}).level == OK
    assert judge_job_gpus({**job, "SLURM_JOB_GPUS": "0,1,2,3"}, 1, {}).level == PROBLEM
    assert judge_job_gpus({**job, "SLURM_GPUS_ON_NODE": "4"}, 0, {}).level == PROBLEM
    assert judge_job_gpus(job, 0, {}).level == WARNING
    assert judge_job_gpus(job, 4, {}).level == OK


def test_slurm_commands_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert judge_commands([], "slurm 24.05").level == OK
    assert judge_commands(["sacct"], "slurm 24.05").level == WARNING
    assert judge_commands(["squeue"], "slurm 24.05").level == PROBLEM
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    names = ("sbatch", "squeue", "scancel", "srun", "scontrol", "sinfo")
    put_commands(tmp_path, **dict.fromkeys(names, "echo slurm 24.05"))
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = {finding.what: finding for finding in check_slurm()}
    assert findings["Slurm"].found == "slurm 24.05; not found: sacct"
    assert findings["plugin"].level == OK and "srun --gpus-per-node=4" in findings["Slurm job"].fix


def stats(free_bytes: float, files: int, free_files: int) -> os.statvfs_result:
    blocks = int(free_bytes / 4096)
    return os.statvfs_result((4096, 4096, blocks, blocks, blocks, files, free_files, free_files, 0, 255))


def test_space_files_quota_and_reading_speed_are_judged() -> None:
    assert judge_space(Path("/x"), stats(1e12, 10**7, 10**6)).level == OK
    assert judge_space(Path("/x"), stats(1e9, 10**7, 10**6)).level == WARNING
    assert judge_space(Path("/x"), stats(1e12, 10**7, 50)).level == WARNING
    assert judge_space(Path("/x"), stats(1e12, 0, 0)).level == OK, "a file system that counts no inodes"
    assert judge_quota("/x 100 0 1000000 - 12 0 100 -").level == OK
    assert judge_quota("/x 100 0 0 - 95* 0 100 -").level == WARNING
    assert judge_quota("nonsense").level == NOTE
    assert judge_reading(12 * GB, GB, 0.2, GB, 0.1).level == OK
    slow = judge_reading(12 * GB, GB, 10, GB, 0.1)
    assert slow.level == WARNING and "120 s to read" in slow.fix


def test_a_model_that_is_not_whole_is_a_problem(tiny_dir: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny_dir, tmp_path / "model"))
    (model / "codec" / "vae.safetensors").unlink()
    (finding,) = check_model(model)
    assert finding.level == PROBLEM and "vae.safetensors" in finding.found
    (model / "config.yaml").write_text("max_dur: 1\n")
    assert "config.yaml was changed" in next(iter(check_model(model))).found
    assert next(iter(check_model(tmp_path))).level == PROBLEM
    assert next(iter(check_model(None))).level == NOTE


def test_an_output_that_cannot_be_written_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **named: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    (finding,) = check_output(tmp_path)
    assert finding.level == PROBLEM and "not writable: Permission denied" in finding.found


def test_exit_code_follows_the_worst_finding() -> None:
    codes = [Diagnosis([good("a", "b"), Finding(level, "a", "b", "mend it")]).exit_code for level in LEVELS[1:]]
    assert codes == [EXIT_OK, EXIT_USABLE, EXIT_FAILED]
    assert Diagnosis([good("a", "b")]).exit_code == EXIT_OK


def test_a_finding_that_is_not_ok_has_a_remedy() -> None:
    with pytest.raises(AssertionError, match="comes with a remedy"):
        Finding(WARNING, "a", "b")


def test_a_check_that_fails_is_told_and_hides_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken() -> list[Finding]:
        raise subprocess.SubprocessError("no such thing")

    monkeypatch.setattr(doctors, "check_torch", broken)
    findings = doctor(None, tmp_path).findings
    assert "the check itself failed: SubprocessError: no such thing" in findings[2].found
    assert findings[-1].what == "locks"
