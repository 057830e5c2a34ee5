"""Where the files of a RUN lie. The only place that spells their names; opens none of them.

Parts, journals, ledgers and logs carry the attempt in their names: two attempts never write the same file.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True, order=True)
class PartName:
    """A part by its name: the n-th that a rank committed in an attempt."""

    attempt: int
    rank: int
    number: int

    def __str__(self) -> str:
        return f"a{self.attempt:03d}-r{self.rank}-{self.number:05d}"


_PART = re.compile(r"(?:part|audio)-a(\d+)-r(\d+)-(\d+)\.(?:parquet|tar)")


def part_name(path: Path) -> PartName | None:
    """The part that a rows file or a tar belongs to by its name; None for any other file."""
    match = _PART.fullmatch(path.name)
    return PartName(*map(int, match.groups())) if match else None


@dataclass(frozen=True)
class ShardPaths:
    """One shard. out: what is handed on.  work: what a rerun needs; undeclared, so Snakemake never deletes it."""

    run_dir: Path
    number: int

    @cached_property
    def name(self) -> str:
        """The shard's number as in paths."""
        return f"{self.number:05d}"

    @cached_property
    def out(self) -> Path:
        """RUN/shards/NNNNN."""
        return self.run_dir / "shards" / self.name

    @cached_property
    def work(self) -> Path:
        """RUN/work/NNNNN."""
        return self.run_dir / "work" / self.name

    @property
    def tokens(self) -> Path:
        """Tokens of the songs that are ok."""
        return self.out / "tokens.parquet"

    @property
    def audio(self) -> Path:
        """A row an audio file."""
        return self.out / "audio.parquet"

    @property
    def provenance(self) -> Path:
        """A row a song; written last, so it is the shard's done mark."""
        return self.out / "provenance.parquet"

    @property
    def qa(self) -> Path:
        """Measures of the shard's audio."""
        return self.run_dir / "qa" / f"{self.name}.parquet"

    @property
    def lease(self) -> Path:
        """Folder of the leases, one file a holder."""
        return self.work / "lease"

    @property
    def quarantine(self) -> Path:
        """Folder of what was found damaged or cut off."""
        return self.work / "quarantine"

    def journal(self, attempt: int) -> Path:
        """What happened in an attempt, a JSON line an event."""
        return self.work / f"journal-a{attempt:03d}.jsonl"

    def ledger(self, attempt: int, rank: int) -> Path:
        """What a rank spent its time on."""
        return self.work / f"ledger-a{attempt:03d}-r{rank}.json"

    def log(self, attempt: int, rank: int | None = None) -> Path:
        """What a rank printed; without a rank, the parent."""
        return self.work / (f"log-a{attempt:03d}.txt" if rank is None else f"log-a{attempt:03d}-r{rank}.txt")

    def tar(self, attempt: int, rank: int, number: int) -> Path:
        """Audio of a part. It counts only with its rows."""
        return self.out / f"audio-{PartName(attempt, rank, number)}.tar"

    def part(self, attempt: int, rank: int, number: int) -> Path:
        """Rows of a part: its commit mark."""
        return self.work / f"part-{PartName(attempt, rank, number)}.parquet"


@dataclass(frozen=True)
class RunPaths:
    """results/RUN."""

    run_dir: Path

    @property
    def config(self) -> Path:
        """The settings that the RUN was started with."""
        return self.run_dir / "config.json"

    @property
    def songs(self) -> Path:
        """Canonical songs."""
        return self.run_dir / "manifest" / "songs.parquet"

    @property
    def rejected(self) -> Path:
        """Refused rows of the manifest, with reasons."""
        return self.run_dir / "manifest" / "rejected.parquet"

    @property
    def plan(self) -> Path:
        """Songs by shard."""
        return self.run_dir / "plan" / "shards.parquet"

    @property
    def estimate(self) -> Path:
        """Predicted cost."""
        return self.run_dir / "plan" / "estimate.json"

    @property
    def reports(self) -> Path:
        """Folder of the reports."""
        return self.run_dir / "reports"

    def shard(self, number: int) -> ShardPaths:
        """One shard's files."""
        return ShardPaths(self.run_dir, number)

    def shards(self) -> list[ShardPaths]:
        """Every shard that has a folder in shards/, by number; sealed or not."""
        found = self.run_dir.glob("shards/[0-9]*")
        return [self.shard(number) for number in sorted(int(path.name) for path in found if path.name.isdigit())]
