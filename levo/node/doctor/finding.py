"""What `levo doctor` finds: one fact, how bad it is, and what to do about it."""

from dataclasses import dataclass

OK, NOTE, WARNING, PROBLEM = "ok", "note", "warning", "PROBLEM"
LEVELS = (OK, NOTE, WARNING, PROBLEM)
"""Note: good to know. Warning: works, but slower, or not everything. Problem: songs cannot be made (well) here."""


@dataclass(frozen=True)
class Finding:
    """fix: what to do, for everything that is worse than ok."""

    level: str
    what: str
    found: str
    fix: str = ""

    def __post_init__(self) -> None:
        assert self.level in LEVELS and (self.fix or self.level == OK), f"{self.what}: a finding comes with a remedy"


def good(what: str, found: str) -> Finding:
    """A finding that needs nothing."""
    return Finding(OK, what, found)
