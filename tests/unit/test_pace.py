"""Lines of progress, and spans of time in words."""

import pytest
from fakes.run import Clock

from levo.pace import EVERY_S, Pace, duration


def test_a_line_every_few_seconds_says_how_far_how_fast_and_how_long() -> None:
    clock, said = Clock(), list[str]()
    pace = Pace("files", 5000, said.append, clock)
    for _ in range(60):
        clock.pass_s(0.25)
        pace.add()
    assert said == ["40 of 5,000 files, 4 a second, 21 min left"]
    for _ in range(100):
        clock.pass_s(EVERY_S)
        pace.add()
    assert len(said) == 101, "one is not silent for long"


def test_where_the_end_is_not_known_no_time_left_is_claimed() -> None:
    clock, said = Clock(), list[str]()
    pace = Pace("rows", None, said.append, clock)
    for _ in range(30_000):
        clock.pass_s(1 / 2500)
        pace.add()
    assert said[-1].endswith("rows, 2,500 a second")


def test_a_short_loop_is_silent() -> None:
    clock, said = Clock(), list[str]()
    pace = Pace("rows", 3, said.append, clock)
    for _ in range(3):
        clock.pass_s(1)
        pace.add()
    assert said == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "2 h 00 min"), (86400, "24 h 00 min")]
)
def test_spans_of_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
