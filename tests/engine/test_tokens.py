"""The engine's tokens: equal to the golden ones, to the one-loop oracle's, and to themselves in any company."""

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import golden
from fakes.golden import META, decode, golden_request

from levo.engine.decoder import BROKEN, EMPTY
from levo.engine.main_phase import MainPhase
from levo.engine.pages import get_hidden
from levo.engine.phases import rows_of
from levo.engine.philox import split_seed
from levo.engine.request import Sampling
from levo.engine.sampling import draw, greedy
from levo.model import oracle
from levo.songs.text import TextIds

GREEDY = Sampling(temperature=0, window=6)
SAMPLED = Sampling(temperature=1.0, top_k=20, window=6)


@pytest.mark.parametrize("slots", [1, 4, 6])
def test_greedy_tokens_equal_the_golden_ones(golden_lm, golden_items, slots):
    found = decode(golden_lm, [golden_request(item, j) for j, item in enumerate(golden_items)], slots, GREEDY)
    for j, item in enumerate(golden_items):
        wanted = item["greedy_tokens_cut"][0].numpy()
        if wanted.shape[1] == 0:
            assert found[j].error == EMPTY
        else:
            assert np.array_equal(found[j].tokens, wanted), META["items"][j]["name"]


def test_stop_reason_tells_the_end_of_the_song_from_the_cap(golden_lm, golden_items):
    found = decode(golden_lm, [golden_request(item, j) for j, item in enumerate(golden_items)], 4, GREEDY)
    for j, meta in enumerate(META["items"]):
        if found[j].error is None:
            assert found[j].stop_reason == ("eos" if any(meta["eos_frames"]) else "cap"), meta["name"]


def requests(items, n=16):
    """Songs of different conditions and seeds; ten of sixteen differ in length."""
    made = [golden_request(items[j % len(items)], j, seed=100 + j) for j in range(n)]
    return [replace(request, max_frames=20 + 2 * (request.key % 11)) for request in made]


def test_tokens_are_the_same_bits_in_any_company(golden_lm, golden_items):
    """Alone, beside others, in any slot, at any number of slots, first and last in the queue."""
    songs = requests(golden_items)
    alone = {song.key: decode(golden_lm, [song], 1, SAMPLED)[song.key] for song in songs}
    assert len({done.tokens.shape[1] for done in alone.values() if done.error is None}) > 4, "songs must differ"
    slots_seen: dict[int, set[int]] = {song.key: set() for song in songs}
    for slots in (1, 2, 3, 4, 8):
        for order in (songs, songs[::-1], random.Random(slots).sample(songs, len(songs))):
            together = decode(golden_lm, order, slots, SAMPLED)
            for key, done in together.items():
                slots_seen[key].add(done.main_slot)
                assert done.error == alone[key].error
                assert done.error or np.array_equal(done.tokens, alone[key].tokens), f"song {key}, {slots} slots"
                assert done.stop_reason == alone[key].stop_reason
    assert all(len(seen) > 2 for key, seen in slots_seen.items() if alone[key].error is None)


def test_hidden_states_and_logits_are_the_same_bits_in_any_slot(golden_lm, golden_items):
    """Equal tokens could hide small differences: the main hidden states of a song must be equal to the last bit."""

    def hidden(slots, order):
        found = {}
        with torch.inference_mode():
            phase = MainPhase(golden.setup(golden_lm, SAMPLED), slots)
            waiting = list(order)
            while waiting or phase.seats:
                while waiting and phase.free:
                    phase.enter(waiting.pop(0), 0)
                phase.run(1)
                for slot in phase.ended()[0]:
                    key, n = phase.seats[slot].request.key, phase.slots.base + phase.seats[slot].count
                    found[key] = torch.stack([get_hidden(phase.hidden, row, 0, n) for row in rows_of(slot)])
                    phase.leave(slot)
        return found

    songs = requests(golden_items)
    alone = hidden(1, songs)
    for slots in (3, 8):
        for key, states in hidden(slots, songs[::-1]).items():
            assert torch.equal(states, alone[key]), f"song {key} at {slots} slots"


def test_a_song_with_broken_logits_leaves_alone(golden_lm, golden_items):
    """A NaN in one song's prefix fails that song; its neighbours' tokens do not change."""
    songs = requests(golden_items, 6)
    wanted = decode(golden_lm, songs, 4, SAMPLED)
    poisoned = TextIds(songs[2].conditioning.cond.lyric_ids, songs[2].conditioning.cond.structure_ids, (49,) * 10)
    songs[2] = replace(songs[2], conditioning=replace(songs[2].conditioning, cond=poisoned))
    lm = copy.deepcopy(golden_lm)
    lm.condition_provider.conditioners.type_info.output_proj.weight[49] = torch.nan
    found = decode(lm, songs, 4, SAMPLED)
    assert found[2].error == BROKEN
    for key in (0, 1, 3, 4, 5):
        assert found[key].error == wanted[key].error
        assert found[key].error or np.array_equal(found[key].tokens, wanted[key].tokens)


def test_tokens_equal_the_one_loop_oracles(golden_lm, golden_items):
    """Sampled, with the same counter-based draws: two phases and slots against upstream's one loop, song by song."""
    songs = requests(golden_items)
    found = decode(golden_lm, songs, 4, SAMPLED)
    for song in songs:

        def choose(logits, step, seed=song.seed):
            ids = greedy(logits)
            key, steps = torch.tensor([split_seed(seed)]), torch.tensor([step])
            ids[0] = draw(logits[:1], SAMPLED.temperature, SAMPLED.top_k, key, steps)[0]
            return ids

        rules = oracle.Rules(SAMPLED.cfg, SAMPLED.penalty, SAMPLED.window)
        wanted = oracle.generate(
            golden_lm, song.conditioning, song.prompt, META["pad_id"], song.max_frames, choose, rules
        )
        if wanted.cut.shape[1] == 0:
            assert found[song.key].error == EMPTY
        else:
            assert np.array_equal(found[song.key].tokens, wanted.cut)
