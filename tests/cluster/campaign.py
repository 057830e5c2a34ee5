"""A RUN of six shards on the test cluster: driven by `snakemake --profile gh200`, disturbed, and judged at the end."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cluster.lab import Lab
from cluster.processes import command_of, signal_all
from fakes.clone import make_clone
from fakes.outcome import songs

from levo.node.journal import Event, History
from levo.node.paths import RunPaths, ShardPaths
from levo.node.seal import read_bill

SHARDS, SONGS_A_SHARD = 6, 8
# Not of the profile: a test must not wait for looks that a campaign of days can wait for.
QUICK = ["--slurm-init-seconds-before-status-checks", "2", "--max-status-checks-per-second", "2"]
SHARD_TABLES = [f"results/t/shards/{shard:05d}/provenance.parquet" for shard in range(SHARDS)]
PATIENCE_S = 300.0


def write_campaign(root: Path, source: Path, ranks: int | None, slots: int) -> None:
    """A fresh clone whose own config/config.yaml asks for six shards of short songs, so that no option is needed.

    ranks: of a node; None is one a GPU.  slots: 1 makes one song after the other, so that a shard has a long middle.
    """
    make_clone(source, root)
    path = root / "config/config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings.update(run="t", manifest="songs.jsonl", seed=11, plan={**settings["plan"], "n_shards": SHARDS})
    settings["codec"]["steps"] = 2
    settings["engine"]["slots"] = slots
    settings["node"].update(part_songs=1, ranks=ranks, lease_wait_s=20)
    path.write_text(yaml.safe_dump(settings))
    rows = [
        {"song_id": f"song {n}/é", "lyrics": "[verse] Salt on the window ; [outro-short]", "max_seconds": 3}
        for n in range(SHARDS * SONGS_A_SHARD)
    ]
    (root / "songs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def made_songs(run: Path) -> dict[str, dict[str, Any]]:
    """The songs, without their measures, for which disturbed campaigns do not wait, and their number of slots."""
    made = songs(run)
    for facts in made.values():
        facts.pop("qa", None)
        del facts["provenance"]["batch_size"]
    return made


@dataclass
class Campaign:
    """root: the clone.  env: for Snakemake and its jobs."""

    root: Path
    lab: Lab
    env: dict[str, str] = field(default_factory=dict)
    started: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.root / "results/t"

    # Snakemake

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        """The promised command, in the background; its output goes to printed-N.txt."""
        with (self.root / f"printed-{len(self.started) + 1}.txt").open("wb") as sink:
            process = subprocess.Popen(
                [Path(sys.executable).parent / "snakemake", "--profile", "gh200", *arguments],
                cwd=self.root, env={**os.environ, **self.env}, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
            )  # fmt: skip
        self.started.append(process)
        return process

    @property
    def printed(self) -> Path:
        """What the last start printed."""
        return self.root / f"printed-{len(self.started)}.txt"

    def finish(self, process: "subprocess.Popen[bytes]", timeout_s: float = 900) -> str:
        """Wait for its good end; gives back what it printed."""
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not over after {timeout_s:g} s:\n{self.printed.read_text()}") from None
        text = self.printed.read_text()
        assert code == 0, text
        return text

    def end(self) -> None:
        """No Snakemake of this campaign lives any more."""
        for process in self.started:
            process.kill()
            process.wait()

    def planned(self, *targets: str) -> dict[str, int]:
        """Jobs that `-n` announces, by rule."""
        text = self.finish(self.start("-n", *targets))
        if "Nothing to be done" in text:
            return {}
        table = text.rpartition("Job stats:")[2].partition("Reasons:")[0]
        words = [line.split() for line in table.splitlines()]
        return {row[0]: int(row[1]) for row in words if len(row) == 2 and row[1].isdigit()}

    # Shards and their jobs

    def shard(self, number: int) -> ShardPaths:
        return RunPaths(self.run).shard(number)

    def events(self, number: int, name: str) -> list[Event]:
        """Events of this name in all journals of a shard."""
        return [event for event in History.read(self.shard(number)).events if event.name == name]

    def jobs(self, state: str = "R") -> dict[int, str]:
        """Slurm's job of each shard that has one in this state (R: running, PD: waiting)."""
        found = {}
        for line in self.lab.ask("squeue", "-h", "-t", state, "-o", "%A %k").splitlines():
            job, _, comment = line.partition(" ")
            if comment.startswith("rule_generate_wildcards_"):
                found[int(comment[-5:])] = job
        return found

    def in_the_middle(self, taken: set[int]) -> tuple[int, str]:
        """A running shard, not one of `taken`, that has committed a song and has more to do: (number, job)."""
        found: list[tuple[int, str]] = []

        def look() -> bool:
            # Files first: they are read in no time, and squeue is not.
            middle = [number for number in range(SHARDS) if number not in taken and self._is_in_the_middle(number)]
            jobs = self.jobs() if middle else {}
            found.extend((number, jobs[number]) for number in middle if number in jobs)
            return bool(found)

        self.lab.wait("a shard is in its middle", look, PATIENCE_S, poll_s=0.05)
        return found[0]

    def _is_in_the_middle(self, number: int) -> bool:
        return 0 < len(self.events(number, "commit")) < SONGS_A_SHARD - 1

    def ranks_of(self, job: str) -> list[int]:
        """The rank processes of a job."""
        return [pid for pid in self.lab.processes_of(job) if "spawn_main" in command_of(pid)]

    @contextmanager
    def held(self, taken: set[int]) -> Iterator[tuple[int, str]]:
        """As in_the_middle, and its ranks stand still until the block is left: however fast this machine is, the shard
        cannot be over before what is done to it there."""
        while True:
            number, job = self.in_the_middle(taken)
            ranks = self.ranks_of(job)
            signal_all(ranks, signal.SIGSTOP)
            if ranks and self._is_in_the_middle(number):
                break
            signal_all(ranks, signal.SIGCONT)
        try:
            yield number, job
        finally:
            signal_all(ranks, signal.SIGCONT)

    def wait_event(self, number: int, name: str, after_s: float) -> Event:
        """The first such event of a shard after a moment (time.time())."""
        self.lab.wait(f"shard {number}: {name}", lambda: bool(self._after(number, name, after_s)), PATIENCE_S)
        return self._after(number, name, after_s)[0]

    def _after(self, number: int, name: str, after_s: float) -> list[Event]:
        return [event for event in self.events(number, name) if event.time_s > after_s]

    # Judgement

    def judge(self, undisturbed: Mapping[str, Any]) -> None:
        """No song lost, none twice, none made again that was committed, every attempt's log kept, every second billed.

        "None twice" is what the sealed tables say, and the bits of every song are those of the undisturbed campaign.
        """
        assert made_songs(self.run) == undisturbed
        for number in range(SHARDS):
            self._judge_shard(number)
        for job, log in self._slurm_logs():
            assert log.exists() and log.stat().st_size > 0, f"job {job} left no log"

    def _judge_shard(self, number: int) -> None:
        paths = self.shard(number)
        made = Counter(song for event in self.events(number, "commit") for song in event.fields["songs"])
        assert max(made.values()) == 1, f"shard {number} made a song again that was done: {made}"
        for journal in paths.work.glob("journal-*.jsonl"):
            attempt = int(journal.name[9:12])
            assert paths.log(attempt).exists(), f"no log of attempt {attempt} of shard {number}"
        bill = read_bill(paths.provenance)
        assert abs(bill.songs_s + bill.load_s + bill.idle_s + bill.lost_s - bill.wall_s) <= 0.01 * bill.wall_s + 0.01

    def _slurm_logs(self) -> Iterator[tuple[str, Path]]:
        """Every job of a shard that accounting knows and that had a node, with its log."""
        names = ",".join(self._run_ids())
        rows = self.lab.ask(
            "sacct", "-X", "-n", "-P", "--name", names, "-S", "now-1days", "-o", "JobIDRaw,Comment,NodeList"
        )
        for row in rows.splitlines():
            job, comment, nodes = row.split("|")
            if comment.startswith("rule_generate") and nodes.startswith("nid"):
                yield job, self.root / f".snakemake/slurm_logs/rule_generate/{comment[-5:]}/{job}.log"

    def _run_ids(self) -> list[str]:
        texts = [path.read_text() for path in self.root.glob("printed-*.txt")]
        return [line.split(": ")[1] for text in texts for line in text.splitlines() if line.startswith("SLURM run ID")]

    def songs_redone(self, number: int) -> int:
        """Songs of a shard that were begun more than once: those in flight at a fault."""
        given = Counter(event.fields["song"] for event in self.events(number, "give"))
        return sum(given.values()) - len(given)

    def lost_s(self, number: int) -> float:
        """Rank-seconds of lost work that the bill shows for a shard."""
        return read_bill(self.shard(number).provenance).lost_s
