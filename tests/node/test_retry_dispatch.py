"""Which songs are tried again after a loss, in what company, and when one is given up."""

import pytest

from levo.node.dispatch import Dispatch
from levo.songs.song import Song


def songs(n):
    return [
        Song(f"song {i}", "[verse] la", None, "mixed", 1, i, 20.0, "en", 3, 1, 100 - i, "songs.jsonl", i)
        for i in range(n)
    ]


def queue(n=20, losses=None, slots=8, retries=2, ranks=1):
    dispatch = Dispatch(songs(n), losses or {}, slots, retries)
    for rank in range(ranks):
        dispatch.join(rank)
    return dispatch


def take(dispatch, rank, n):
    return [song.song_id for _ in range(n) if (song := dispatch.next_song(rank)) is not None]


def finish(dispatch, rank, ids):
    for song_id in ids:
        dispatch.left(rank, song_id)
    dispatch.committed(rank, ids)


def test_songs_leave_in_their_order():
    assert take(queue(3), 0, 5) == ["song 0", "song 1", "song 2"]


def test_songs_of_a_lost_rank_go_last_to_the_others():
    dispatch = queue(6, slots=64, ranks=2)
    first = take(dispatch, 0, 2)
    assert dispatch.lost(0) == first
    assert take(dispatch, 1, 6) == ["song 2", "song 3", "song 4", "song 5", *first]


def test_a_song_that_was_out_of_the_engine_is_not_blamed_for_the_loss():
    dispatch = queue(4, ranks=2)
    take(dispatch, 0, 2)
    dispatch.left(0, "song 0")
    assert dispatch.lost(0) == ["song 1"]
    assert dispatch.losses == {"song 0": 0, "song 1": 1, "song 2": 0, "song 3": 0}


def test_suspects_are_tried_in_an_eighth_of_the_company_then_alone():
    dispatch = queue(20, losses={f"song {i}": 1 for i in range(20)}, slots=64)
    assert len(take(dispatch, 0, 20)) == 8
    dispatch = queue(20, losses={f"song {i}": 2 for i in range(20)}, slots=64)
    assert len(take(dispatch, 0, 20)) == 1


def test_a_suspect_waits_until_the_work_of_others_is_on_disk():
    dispatch = queue(2, losses={"song 1": 1})
    take(dispatch, 0, 1)
    assert take(dispatch, 0, 1) == []
    dispatch.left(0, "song 0")
    assert take(dispatch, 0, 1) == []
    dispatch.committed(0, ["song 0"])
    assert take(dispatch, 0, 1) == ["song 1"]


@pytest.mark.parametrize("retries", [0, 1, 2, 3])
@pytest.mark.parametrize("slots", [1, 8, 64])
def test_a_song_that_kills_every_rank_is_given_up_and_costs_no_other_song(slots, retries):
    """Each kill takes all that is in the engine; a new rank comes, as in the next attempt."""
    dispatch = queue(100, slots=slots, retries=retries)
    made, given_up, kills = set(), set(), 0
    while dispatch.open:
        while (song := dispatch.next_given_up(0)) is not None:
            given_up.add(song.song_id)
            dispatch.committed(0, [song.song_id])
        ids = take(dispatch, 0, slots)
        if "song 7" in ids:
            dispatch.lost(0)
            dispatch.join(0)
            kills += 1
        else:
            finish(dispatch, 0, ids)
            made.update(ids)
    assert given_up == {"song 7"}
    assert len(made) == 99
    assert kills <= max(retries + 1, 3)


def test_losses_of_earlier_attempts_count():
    assert queue(2, losses={"song 0": 3}).next_given_up(0).song_id == "song 0"


def test_out_of_memory_leads_to_smaller_company():
    dispatch = queue(8, slots=8)
    ids = take(dispatch, 0, 8)
    assert dispatch.returned(0, ids) == ids
    assert len(take(dispatch, 0, 8)) == 1


def test_few_songs_are_shared_between_the_ranks():
    dispatch = queue(6, slots=8, ranks=2)
    assert len(take(dispatch, 0, 8)) == 3
    assert len(take(dispatch, 1, 8)) == 3


def test_a_song_is_open_until_it_is_committed():
    dispatch = queue(1)
    take(dispatch, 0, 1)
    dispatch.left(0, "song 0")
    assert dispatch.open == 1
    dispatch.committed(0, ["song 0"])
    assert dispatch.open == 0
