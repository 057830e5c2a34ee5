"""Slurm's commands as small scripts on PATH, for what a real cluster cannot be told to do: odd answers and refusals.

Jobs really run, as processes of this machine. Every sbatch is written down word by word.
"""

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# {folder}: calls.jsonl (one sbatch a line), jobs/ID (state of a job), odd/COMMAND (answers to give first, one a line).
ODD = """
odd = FOLDER / "odd" / Path(sys.argv[0]).name
answers = odd.read_text().splitlines() if odd.exists() else []
if answers:
    odd.write_text("".join(line + "\\n" for line in answers[1:]))
    code, said = json.loads(answers[0])
    print(said, file=sys.stderr if code else sys.stdout)
    sys.exit(code)
"""
SBATCH = """
words = sys.argv[1:]
with (FOLDER / "calls.jsonl").open("a") as calls:
    print(json.dumps(words), file=calls)
job = str(len((FOLDER / "calls.jsonl").read_text().splitlines()))
command = next(word for word in words if word.startswith("--wrap="))[7:]
log = words[words.index("--output") + 1].replace("%j", job)
(FOLDER / "jobs" / job).write_text("RUNNING")
state = FOLDER / "jobs" / job
body = f"{{ {command} ; }} && echo -n COMPLETED > {state} || echo -n FAILED > {state}"
with open(log, "w") as sink:
    subprocess.Popen(["bash", "-c", body], stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
                     env={**os.environ, "SLURM_JOB_ID": job})
print(job)
"""
SRUN = """
words = sys.argv[1:]
while words[0].startswith("-"):
    words.pop(0)
os.execvp(words[0], words)
"""
SACCT = """
if "--name" in sys.argv:
    for path in (FOLDER / "jobs").iterdir():
        print(path.name, path.read_text(), sep="|")
"""
SQUEUE = """
job = next(word for word in sys.argv if word.startswith("--jobs="))[7:]
known = FOLDER / "jobs" / job
if not known.exists() or known.read_text() != "RUNNING":
    sys.exit("slurm_load_jobs error: Invalid job id specified")
print("RUNNING")
"""
PRINTS = """
print((FOLDER / Path(sys.argv[0]).name).with_suffix(".txt").read_text(), end="")
"""
SCRIPTS = {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "squeue": SQUEUE, "scancel": ""}
ANSWERS = {
    "sinfo": "normal|288|800000|gpu:gh200:4(S:0-3)|gh200,nvme|1-00:00:00|REQUEUE\n"
    "scavenge|288|800000|gpu:gh200:4(S:0-3)|gh200|infinite|CANCEL\ncpu|64|256000|(null)|(null)|4:00:00|OFF\n",
    "sacctmgr": "lab\n",
    "scontrol": "MinJobAge = 300 sec\nMaxArraySize = 1001\n",
}


@dataclass(frozen=True)
class FakeSlurm:
    """A folder of commands. env: what a process needs to find them."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def submissions(self) -> list[list[str]]:
        """The words of every sbatch so far."""
        calls = self.folder / "calls.jsonl"
        return [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []

    def answer(self, command: str, *answers: tuple[int, str]) -> None:
        """What a command says first, once each: exit code, text. Then it works as before."""
        (self.folder / "odd" / command).write_text("".join(json.dumps(answer) + "\n" for answer in answers))

    def says(self, command: str, text: str) -> None:
        """What sinfo, sacctmgr or scontrol prints from now on."""
        (self.folder / "bin" / f"{command}.txt").write_text(text)


def make_slurm(folder: Path) -> FakeSlurm:
    """Write the commands into a new folder."""
    for name in ("bin", "jobs", "odd"):
        (folder / name).mkdir(parents=True)
    head = (
        f"#!{sys.executable}\nimport json, os, subprocess, sys\nfrom pathlib import Path\n"
        f"FOLDER = Path({str(folder)!r})\n"
    )
    fake = FakeSlurm(folder)
    prints = PRINTS.replace("FOLDER /", 'FOLDER / "bin" /')
    for name, body in [*SCRIPTS.items(), *((name, prints) for name in ANSWERS)]:
        script = folder / "bin" / name
        script.write_text(head + ODD + body)
        script.chmod(0o755)
    for name, text in ANSWERS.items():
        fake.says(name, text)
    return fake


def rule_of(words: Sequence[str]) -> str:
    """The rule of a submission: the plugin writes it into the comment."""
    return words[words.index("--comment") + 1].removeprefix("rule_").partition("_wildcards_")[0]


def without_paths(words: Sequence[str]) -> list[str]:
    """A submission with placeholders for what differs from run to run, and without the wrapped command."""
    named = {"--job-name": "RUN", "--output": "LOG", "-D": "ROOT"}
    kept = [named.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return [word for word in kept if not word.startswith("--wrap=")]


def wrapped(words: Sequence[str]) -> list[str]:
    """The command that a submission wraps, in words."""
    return shlex.split(next(word for word in words if word.startswith("--wrap="))[7:])
