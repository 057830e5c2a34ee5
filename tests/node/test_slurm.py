"""Slurm's commands: what they print is read, and what they do not say is said."""

from pathlib import Path

import pytest
from fakes.commands import put_commands

from levo.node import slurm


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:07", 7),
        ("06:00:00", 21600),
        ("1-02:03:04", 93784),
        ("12-00:00:00", 1036800),
        ("2-12", 216000),
        ("30:00", 1800),
        ("45", 2700),
        ("00:01.250", 1),
        ("UNLIMITED", None),
        ("INVALID", None),
        ("", None),
    ],
)
def test_durations_in_every_form_that_slurm_writes(text: str, seconds: float | None) -> None:
    assert slurm.duration_s(text) == seconds


def test_a_line_of_names_and_values_is_read_with_spaces_in_it_and_around_it() -> None:
    assert slurm.entries("no pair\nA=1 B=x y CPUs/Task=2 D=\nE   = f g\n") == [
        {"A": "1", "B": "x y", "CPUs/Task": "2", "D": ""},
        {"E": "f g"},
    ]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'out'; printf 'first\\n\\nlast\\n' >&2; exit 3", "^sinfo ended with 3: last$"),
        ("echo out; exit 1", "^sinfo ended with 1: out$"),
        ("kill -9 $$", "^sinfo ended with -9: it said nothing$"),
        ("exec sleep 5", "^sinfo did not answer within 0.2 s$"),
        ("#!/no/such/shell", "^sinfo could not be started: No such file"),
    ],
)
def test_a_command_that_gives_no_answer_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setenv("PATH", put_commands(tmp_path, sinfo=script))
    with pytest.raises(slurm.NoAnswer, match=why):
        slurm.ask("sinfo", timeout_s=0.2 if "sleep" in script else None)


def test_a_command_that_is_not_here_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(slurm.NoAnswer, match="^sinfo is not on PATH$"):
        slurm.ask("sinfo")


def test_no_job_and_no_configuration_are_no_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", put_commands(tmp_path, scontrol="exit 0"))
    for asked in (slurm.config, lambda: slurm.job("7")):
        with pytest.raises(slurm.NoAnswer):
            asked()
    assert slurm.partitions() == []
