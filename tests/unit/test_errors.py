"""Errors are for the person who reads them."""

import pytest

from levo.errors import (
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_MODEL,
    EXIT_MORE_TO_DO,
    ConfigError,
    LevoError,
    ManifestError,
    ModelError,
    NodeError,
)


def test_an_error_says_what_where_and_what_to_do() -> None:
    error = LevoError("song `a` has no lyrics", where="songs.jsonl:7", fix="add the field `lyrics`")
    assert str(error).splitlines() == [
        "song `a` has no lyrics",
        "  where: songs.jsonl:7",
        "  fix:   add the field `lyrics`",
    ]


def test_an_error_without_a_place_prints_no_empty_lines() -> None:
    assert str(LevoError("the disk is full")) == "the disk is full"


@pytest.mark.parametrize(
    ("kind", "code"),
    [(ConfigError, EXIT_INPUT), (ManifestError, EXIT_INPUT), (ModelError, EXIT_MODEL), (NodeError, EXIT_FAILED)],
)
def test_each_kind_has_its_exit_code(kind: type[LevoError], code: int) -> None:
    assert kind("x").exit_code == code


def test_more_to_do_is_told_from_every_failure() -> None:
    assert EXIT_MORE_TO_DO == 75  # sysexits.h, EX_TEMPFAIL
    assert EXIT_MORE_TO_DO not in (0, 1, EXIT_INPUT, EXIT_MODEL, EXIT_FAILED)
