"""Which songs are still begun before a job's end."""

import math

import pytest
from fakes.shards import song

from levo.node.deadline import SPREAD, Deadline
from levo.node.dispatch import Dispatch
from levo.node.slurm_job import SlurmJob


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


MINUTE = song(0, predicted_frames=60 * 25)
HALF = song(1, predicted_frames=30 * 25)
COST = {MINUTE.song_id: 6.0, HALF.song_id: 3.0}


def deadline(limit_s: float | None, clock: Clock, company: int = 10) -> Deadline:
    job = SlurmJob("77", limit_s=limit_s, end_s=None if limit_s is None else clock.now + limit_s)
    return Deadline(job, COST, company, clock)


@pytest.mark.parametrize(("limit_s", "margin_s"), [(600, 60), (3000, 300), (86400, 300)])
def test_the_margin_is_a_share_of_a_short_limit(limit_s: float, margin_s: float) -> None:
    assert deadline(limit_s, Clock()).left_s == limit_s - margin_s


@pytest.mark.parametrize("job", [None, SlurmJob("77")])
def test_without_a_known_limit_everything_fits(job: SlurmJob | None) -> None:
    end = Deadline(job, {}, 1)
    assert end.fits(MINUTE) and end.left_s == math.inf and not end.is_far


def test_before_any_song_is_measured_the_plan_predicts() -> None:
    clock = Clock()
    end = deadline(600, clock)
    assert end.needs_s(MINUTE) == 60 and end.needs_s(HALF) == 30
    clock.now += 600 - 60 - 45
    assert end.fits(HALF) and not end.fits(MINUTE)


def test_afterwards_the_pace_of_this_attempt_predicts() -> None:
    clock = Clock()
    end = deadline(600, clock)
    end.took(HALF, 200)
    end.took(MINUTE, 250)
    assert end.needs_s(MINUTE) == pytest.approx(SPREAD * 300)
    assert end.fits(MINUTE)
    clock.now += 200
    assert not end.fits(MINUTE) and end.fits(HALF)
    for _ in range(40):
        end.took(MINUTE, 10)
    assert end.needs_s(MINUTE) == pytest.approx(SPREAD * 10), "the last songs count"


def test_a_wrong_speed_file_keeps_nobody_from_trying() -> None:
    clock = Clock()
    end = deadline(600, clock, company=10_000)
    assert end.fits(MINUTE)
    clock.now += 271
    assert not end.fits(MINUTE)


def test_a_signal_long_before_the_end_is_preemption() -> None:
    clock = Clock()
    end = deadline(86400, clock)
    assert end.is_far
    clock.now += 86400 - 360  # --signal=TERM@300 comes up to a minute early
    assert not end.is_far


def test_songs_without_time_are_passed_over() -> None:
    songs = [song(n, predicted_frames=100 - n) for n in range(4)]
    dispatch = Dispatch(songs, {}, slots=2, retries=2)
    dispatch.join(0)
    assert dispatch.next_song(0, lambda s: s.predicted_frames < 99) == songs[2]
    assert dispatch.next_song(0, lambda s: False) is None
    assert dispatch.next_song(0) == songs[0]
    assert [s.song_id for s in dispatch.waiting] == [songs[1].song_id, songs[3].song_id]
