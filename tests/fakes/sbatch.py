"""Slurm's commands as scripts on PATH: sbatch really runs its script here, as a process; the others tell of it.

FOLDER/jobs/N.sh is what was submitted as job N, N.pid its process, N.state what sacct says when it is gone.
FAKE_SBATCH in the environment: "refuse", or "lose" (the job is gone at once, CANCELLED, and was never run).
"""

import sys
from pathlib import Path

import pytest
from fakes.commands import put_commands

_HEAD = """#!{python}
import json, os, re, signal, subprocess, sys
from pathlib import Path
jobs = Path({jobs!r})

def is_running(job):
    pid = jobs / f"{{job}}.pid"
    try:
        return pid.exists() and Path(f"/proc/{{pid.read_text()}}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

def all_jobs():
    return sorted(path.stem for path in jobs.glob("*.sh"))
"""
_SCRIPTS = {
    "srun": "sys.exit('no srun here')",
    "sbatch": """
kind = os.environ.get("FAKE_SBATCH", "")
if kind == "refuse":
    sys.exit("sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified")
number = str(len(all_jobs()) + 1)
text = Path(sys.argv[1]).read_text()
(jobs / f"{number}.sh").write_text(text)
if kind == "lose":
    (jobs / f"{number}.state").write_text("CANCELLED by 0")
else:
    log = re.search(r"#SBATCH --output='?([^'\\n]+)", text)[1].replace("%j", number)
    job = {"SLURM_JOB_ID": number, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "SLURM_NODEID": "0"}
    with open(log, "a") as out:
        process = subprocess.Popen(["bash", jobs / f"{number}.sh"], env={**os.environ, **job}, stdout=out, stderr=out,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
    (jobs / f"{number}.pid").write_text(str(process.pid))
print(f"Submitted batch job {number}")
""",
    "squeue": "print(*filter(is_running, all_jobs()), sep='\\n')",
    "sacct": """
print("JobID|State|NodeList")
for job in all_jobs():
    state = jobs / f"{job}.state"
    print(f"{job}|{'RUNNING' if is_running(job) else state.read_text() if state.exists() else 'COMPLETED'}|nid001")
""",
    "scancel": """
(jobs / f"{sys.argv[1]}.state").write_text("CANCELLED by 0")
os.killpg(int((jobs / f"{sys.argv[1]}.pid").read_text()), signal.SIGKILL)
""",
    "scontrol": """
shown = json.loads((jobs.parent / "scontrol.json").read_text())
found = shown.get(" ".join([word for word in sys.argv[1:] if word[0] != "-"][:2]))
sys.exit("scontrol: error: no such thing") if found is None else print(found)
""",
}


class FakeSlurm:
    """The commands in a folder, first on PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.jobs = folder / "jobs"
        self.jobs.mkdir(parents=True)
        head = _HEAD.format(python=sys.executable, jobs=str(self.jobs))
        path = put_commands(folder / "bin", **{name: head + body for name, body in _SCRIPTS.items()})
        monkeypatch.setenv("PATH", path)

    def submitted(self) -> list[str]:
        """The scripts, in the order of their submission."""
        return [path.read_text() for path in sorted(self.jobs.glob("*.sh"), key=lambda path: int(path.stem))]

    def options(self, number: int = 1) -> dict[str, str]:
        """The #SBATCH lines of a job: option -> value, "" without one."""
        lines = self.submitted()[number - 1].splitlines()
        words = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
        return {word.partition("=")[0]: word.partition("=")[2] for word in words}
