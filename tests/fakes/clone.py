"""A copy of the checkout in a folder of its own, in which Snakemake can run, be killed and be edited."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

PARTS = ("levo", "workflow", "profiles", "gh200", "config", "Snakefile", "README.md", "Makefile")


@dataclass(frozen=True)
class Clone:
    """A fresh copy; its commands are the README's, with the interpreter of this test."""

    root: Path

    def run(self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 240) -> str:
        """Run and give back everything it printed. Raises if it fails."""
        done = self.try_run(*command, env=env, timeout_s=timeout_s)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def try_run(
        self, *command: str, env: Mapping[str, str] | None = None, timeout_s: float = 240
    ) -> subprocess.CompletedProcess[str]:
        """Run; the caller looks at the exit code. stdout and stderr come as one text.

        Printed into a file and not a pipe: a killed Snakemake leaves shards behind that would hold the pipe open.
        """
        printed = self.root / "printed.txt"
        with printed.open("w") as sink:
            done = subprocess.run(
                [sys.executable, "-m", *command], cwd=self.root, stdin=subprocess.DEVNULL, stdout=sink,
                stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}, timeout=timeout_s,
            )  # fmt: skip
        done.stdout = printed.read_text()
        return done

    def snakemake(self, *arguments: str) -> str:
        """As a user starts it on one machine, with the settings of mine.yaml if there is one."""
        return self.run("snakemake", *self.front(), *arguments)

    def front(self) -> list[str]:
        mine = ["--configfile", "mine.yaml"] if (self.root / "mine.yaml").exists() else []
        return [*mine, "--profile", "profiles/local"]

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs that a dry run announces, by rule."""
        text = self.snakemake("-n", *arguments)
        if "Nothing to be done" in text:
            return {}
        table = text.rpartition("Job stats:")[2].partition("Reasons:")[0]
        return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def make_clone(source: Path, target: Path) -> Clone:
    """Copy the checkout to a folder that does not exist yet."""
    target.mkdir(parents=True)
    for part in PARTS:
        if (source / part).is_symlink():
            (target / part).symlink_to(os.readlink(source / part))
        elif (source / part).is_dir():
            shutil.copytree(source / part, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source / part, target / part)
    return Clone(target)


def write_small_run(clone: Clone) -> None:
    """Settings and manifest of a RUN `t`: six short songs in two shards, two refused rows that make it over 1 MB."""
    settings = {
        "run": "t",
        "manifest": "songs.jsonl",
        "seed": 11,
        "plan": {"n_shards": 2},
        "codec": {"steps": 2},
        "node": {"part_songs": 2, "lease_wait_s": 60, "device": "cpu"},
    }
    (clone.root / "mine.yaml").write_text(yaml.safe_dump(settings))
    songs: list[dict[str, object]] = [
        {
            "song_id": f"song {n}/é",
            "lyrics": "[verse] Salt on the window. Light on the sea ; [outro-short]",
            "max_seconds": 2 + n / 2,
        }
        for n in range(6)
    ]
    songs[1]["renditions"] = 2
    songs[2]["gen_type"] = "separate"
    songs[5].update(seed=19, max_seconds=12)  # ends by itself, after 6 seconds
    songs += [{"song_id": f"too long {n}", "lyrics": "[verse] " + "la " * 200_000} for n in range(2)]
    (clone.root / "songs.jsonl").write_text("".join(json.dumps(song) + "\n" for song in songs))
    assert (clone.root / "songs.jsonl").stat().st_size > 1_000_000, "Snakemake compares checksums of smaller files"
