"""Lines of progress, and spans of time in words."""

from collections.abc import Callable

import pytest
from fakes.run import Clock

from levo.pace import EVERY_S, Pace, duration

Counted = Callable[[Pace, int, float], list[str]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted(clock: Clock, capsys: pytest.CaptureFixture[str]) -> Counted:
    """What it prints while n more are done, each in so many seconds."""

    def count(pace: Pace, n: int, each_s: float) -> list[str]:
        for _ in range(n):
            clock.pass_s(each_s)
            pace.add()
        return capsys.readouterr().out.splitlines()

    return count


def test_a_line_every_few_seconds_says_how_far_how_fast_and_how_long(clock: Clock, counted: Counted) -> None:
    pace = Pace("files", 5000, clock)
    assert counted(pace, 60, 0.25) == ["40 of 5,000 files, 4 a second, 21 min left"]
    assert len(counted(pace, 100, EVERY_S)) == 100, "one is not silent for long"


def test_where_the_end_is_not_known_no_time_left_is_claimed(clock: Clock, counted: Counted) -> None:
    assert counted(Pace("rows", None, clock), 30_000, 1 / 2500)[-1].endswith("rows, 2,500 a second")


def test_a_short_loop_is_silent(clock: Clock, counted: Counted) -> None:
    assert counted(Pace("rows", 3, clock), 3, 1) == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "2 h 00 min"), (86400, "24 h 00 min")]
)
def test_spans_of_time_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
