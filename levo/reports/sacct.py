"""Asking Slurm's accounting, and reading what it answers. Knows jobs, and no RUN.

`sacct -D` lists every try of a job: after a requeue the same id comes again, with another submit time. Whatever is odd
(no answer in time, an error, a line of another shape) is a problem in words, never an exception: the bill stands
without Slurm's second opinion.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from levo.node import slurm

FIELDS = (
    "JobIDRaw", "JobName", "State", "ExitCode", "Submit", "Eligible", "Start", "End", "Elapsed", "AllocCPUS", "NNodes",
    "AllocTRES", "NodeList", "Partition", "Comment", "SubmitLine",
)  # fmt: skip
"""SubmitLine is last: it is free text, and may hold the delimiter. It tells the comment that a job was submitted with
even where accounting stores none: at sites without AccountingStoreFlags=job_comment, and while the job runs."""
IDS_A_CALL, NAMES_A_CALL = 200, 20
CALL_S, ALL_CALLS_S = 60.0, 240.0
"""How long one call may take, and all together."""

_ID = re.compile(r"\d+")
_COMMENT = re.compile(r"--comment[ =]['\"]?([^\s'\"]+)")
_ALL_GPUS, _KIND_OF_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)"), re.compile(r"(?:^|,)gres/gpu:[^=,]+=(\d+)")


@dataclass(frozen=True)
class JobTry:
    """One try of one job. Times are seconds since 1970, null where Slurm knows none.

    state: its first word; state_text: all of it ("CANCELLED by 0").  signal: that ended the job, or 0.  gpus: null
    where Slurm's accounting lists none (AccountingStorageTRES without gres/gpu, or a job that never started).
    """

    job_id: str
    job_name: str
    comment: str
    partition: str
    state: str
    state_text: str
    exit_code: int | None
    signal: int | None
    submit_s: float | None
    eligible_s: float | None
    start_s: float | None
    end_s: float | None
    elapsed_s: float
    cpus: int
    nodes: int
    gpus: int | None
    node_list: str


class Sacct:
    """Asks in batches, until its time is up."""

    def __init__(self, since_s: float) -> None:
        """since_s: jobs that ended before are not looked for (seconds since 1970)."""
        self.since = datetime.fromtimestamp(since_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        self.ends = time.monotonic() + ALL_CALLS_S
        self.failure: str | None = None
        self.odd: dict[str, None] = {}

    @property
    def problems(self) -> list[str]:
        """What was odd, in words."""
        found = [self.failure] if self.failure else []
        if self.odd:
            first = next(iter(self.odd))
            found.append(f"lines of sacct that have another shape: {len(self.odd)}, the first: {first[:120]!r}")
        return found

    def ask(self, option: str, values: Sequence[str]) -> list[JobTry]:
        """Tries of these jobs. option: `jobs` or `name`. After a call that failed no further one is made."""
        size = IDS_A_CALL if option == "jobs" else NAMES_A_CALL
        found: list[JobTry] = []
        for first in range(0, len(values), size):
            if self.failure is None:
                found += self._call(f"--{option}={','.join(values[first : first + size])}")
        return found

    def _call(self, chosen: str) -> list[JobTry]:
        command = (
            "sacct", "--duplicates", "--allocations", "--allusers", "--parsable2", "--noheader",
            f"--starttime={self.since}", f"--format={','.join(FIELDS)}", chosen,
        )  # fmt: skip
        timeout_s = max(0.1, min(CALL_S, self.ends - time.monotonic()))
        environment = {**os.environ, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"}  # its times depend on both
        try:
            tries, odd = parse(slurm.ask(*command, timeout_s=timeout_s, environment=environment))
        except slurm.NoAnswer as error:
            self.failure = str(error)
            return []
        self.odd |= dict.fromkeys(odd)
        return tries


def parse(text: str) -> tuple[list[JobTry], list[str]]:
    """(tries, lines that are none)."""
    tries, odd = [], []
    for line in filter(str.strip, text.splitlines()):
        try:
            tries.append(_try(line))
        except ValueError:
            odd.append(line)
    return tries, odd


def _try(line: str) -> JobTry:
    values = line.split("|", len(FIELDS) - 1)
    if len(values) != len(FIELDS):
        raise ValueError(line)
    found = dict(zip(FIELDS, (value.strip() for value in values), strict=True))
    if not _ID.fullmatch(found["JobIDRaw"]):
        raise ValueError(line)
    exit_code, signal = _exit(found["ExitCode"])
    elapsed_s = slurm.duration_s(found["Elapsed"])
    if elapsed_s is None:
        raise ValueError(line)
    return JobTry(
        job_id=found["JobIDRaw"],
        job_name=found["JobName"],
        comment=found["Comment"] or (submitted[1] if (submitted := _COMMENT.search(found["SubmitLine"])) else ""),
        partition=found["Partition"],
        state=(found["State"].split() or ["UNKNOWN"])[0].rstrip("+"),
        state_text=found["State"],
        exit_code=exit_code,
        signal=signal,
        submit_s=_time_s(found["Submit"]),
        eligible_s=_time_s(found["Eligible"]),
        start_s=_time_s(found["Start"]),
        end_s=_time_s(found["End"]),
        elapsed_s=elapsed_s,
        cpus=int(found["AllocCPUS"] or 0),
        nodes=int(found["NNodes"] or 0),
        gpus=gpus_of(found["AllocTRES"]),
        node_list=found["NodeList"],
    )


def gpus_of(tres: str) -> int | None:
    """GPUs in a list of trackable resources: the count of all kinds, or the kinds' counts added up."""
    if every := _ALL_GPUS.search(tres):
        return int(every[1])
    kinds = _KIND_OF_GPUS.findall(tres)
    return sum(map(int, kinds)) if kinds else None


def _time_s(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # Unknown, None, N/A
        return None


def _exit(text: str) -> tuple[int | None, int | None]:
    """CODE:SIGNAL."""
    numbers: Iterator[int | None] = (int(part) if part.isdigit() else None for part in text.partition(":")[::2])
    code, signal = numbers
    return code, signal
