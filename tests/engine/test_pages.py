"""Pages: nobody's song suffers when they run out, none is lost, and the forecast says what will be needed."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from levo.bench.sizes import random_lm
from levo.bench.steady import Songs
from levo.engine.build import make_setup
from levo.engine.decoder import Decoder
from levo.engine.forecast import Ahead, Costs, demand, fits
from levo.engine.memory import GIB, MemoryPlan, plan_memory
from levo.engine.pages import PAGE, OutOfPages, Pool, Table, unit_shape
from levo.engine.request import Sampling, no_book
from levo.errors import ConfigError
from levo.model.config import LMConfig

SMALL = LMConfig(
    dim=32, intermediate_size=48, num_heads=2, head_dim=16, num_layers=2, num_layers_sub=1, code_size=64, code_depth=3,
    rope_theta=1e4, rope_theta_sub=1e4, delays=(0, 5, 5), cfg_coef=1.5, lyric_len=100, prompt_len=27, style_len=23,
    frame_rate=25, max_seconds=10.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def small_lm():
    with torch.inference_mode():
        return random_lm(SMALL, torch.device("cpu"), torch.float32, endless=True, rows=(400, 400))


def decoder(lm, slots: int, n_units: int) -> Decoder:
    setup = make_setup(lm, 0, 16, Sampling(window=6, top_k=5), MemoryPlan(n_units, n_units))
    return Decoder(setup, slots, 4, no_book)


def run(machine: Decoder, n_songs: int) -> dict[int, np.ndarray]:
    supply, found = Songs(120, 240, seed=3, lyrics=50), {}
    machine.queue.extend(supply.next() for _ in range(n_songs))
    with torch.inference_mode():
        while machine.live:
            for _, done in machine.step():
                assert done.error is None
                found[done.key] = done.tokens
    return found


def test_a_wrong_forecast_preempts_the_newest_and_changes_no_bit(small_lm, monkeypatch):
    roomy = decoder(small_lm, 6, 400)
    wanted = run(roomy, 7)
    tight = decoder(small_lm, 6, 44)
    monkeypatch.setattr(tight, "fits", lambda request: True)
    found = run(tight, 7)
    assert tight.n_preempted > 0 and roomy.n_preempted == 0
    assert wanted.keys() == found.keys() and all(np.array_equal(wanted[key], found[key]) for key in wanted)


def test_a_song_whose_end_finds_no_page_waits_for_one(small_lm):
    """104 frames end two positions before a page does, so the chunk behind the end needs another page of each pool."""
    song = replace(Songs(104, 104, lyrics=50).next(), max_frames=104)
    machine = decoder(small_lm, 2, 100)
    pools = machine.setup.kv, machine.setup.hidden
    machine.queue.append(song)
    with torch.inference_mode():
        machine.step()
        taken = [pool.take(len(pool.free)) for pool in pools]
        for _ in range(40):
            assert not machine.step()
        assert machine.live == 1 and machine.n_preempted == 0
        for pool, parts in zip(pools, taken, strict=True):
            pool.give(parts)
        found = []
        while machine.live:
            found += machine.step()
    assert found[0][1].error is None and found[0][1].tokens.shape == (3, 104)


def test_no_page_leaks(small_lm):
    machine = decoder(small_lm, 3, 80)
    for _ in range(2):
        run(machine, 4)
        held = machine.main.n_shared_units + machine.sub.n_shared_units
        assert len(machine.setup.kv.free) == 80 - held
        assert len(set(machine.setup.kv.free)) == len(machine.setup.kv.free), "a page was given back twice"


def test_a_forecast_that_is_right_never_preempts(small_lm):
    machine = decoder(small_lm, 6, 44)
    run(machine, 7)
    assert machine.n_preempted == 0


def test_pool_refuses_more_than_it_has_and_then_takes_nothing():
    pool = Pool(3, (1,), torch.empty(1))
    table = Table(pool, 2, 8, 2)
    table.grow(0, PAGE)
    with pytest.raises(OutOfPages):
        table.grow(1, 2 * PAGE)
    assert len(pool.free) == 1 and table.n_pages(1) == 0
    table.drop(0)
    assert sorted(pool.free) == [0, 1, 2]


COSTS = Costs(prefix_len=952, max_delay=250, main_parts=3, sub_parts=1, n_shared=7)


def test_demand_follows_a_song_through_both_phases():
    units, hidden = demand([Ahead(False, 0, 1000)], COSTS, np.array([0, 1000, 1001, 2000, 2001]))
    begin, end = -(-(952 + 250) // PAGE), -(-(952 + 1000 + 250) // PAGE)
    assert units.tolist() == [(2 * begin - 7) * 3, (2 * end - 7) * 3, 2 * begin - 7, 2 * end - 7, 0]
    assert hidden.tolist() == [2 * begin - 7, 2 * end - 7, 2 * end - 7, 2 * end - 7, 0]


def test_staggered_songs_need_less_than_songs_that_start_together():
    together = [Ahead(False, 0, 4500) for _ in range(8)]
    staggered = [Ahead(i % 2 == 1, 4500 * (i // 2) // 4, 4500) for i in range(8)]
    ticks = np.arange(0, 9200, 64)
    assert demand(staggered, COSTS, ticks)[0].max() < 0.75 * demand(together, COSTS, ticks)[0].max()


def test_fits_is_the_peak_of_the_demand():
    songs = [Ahead(random.Random(i).random() < 0.5, 100 * i, 3000) for i in range(6)]
    peak = demand(songs, COSTS, np.arange(0, 6200, 64))[0].max()
    assert fits(songs, COSTS, int(peak), 10**6) and not fits(songs, COSTS, int(peak) - 1, 10**6)


def test_a_song_that_outlives_its_prediction_goes_on_needing_pages():
    units, _ = demand([Ahead(False, 2000, 500)], COSTS, np.array([0, 100]))
    assert units.min() > 0


def test_too_little_memory_for_one_song_is_said_in_gib():
    with pytest.raises(ConfigError, match=r"0\.0 GiB are left for songs, but one of 10 s takes"):
        plan_memory(SMALL, 4, 1000, 4)
    plan = plan_memory(SMALL, 4, 10 * GIB, 4)
    unit_bytes, hidden_bytes = 4 * math.prod(unit_shape(SMALL)), 4 * PAGE * SMALL.dim
    assert plan.n_units * unit_bytes + plan.n_hidden * hidden_bytes < 10 * GIB
