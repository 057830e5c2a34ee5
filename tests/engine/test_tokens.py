"""The engine's tokens: equal to the golden ones, to the one-loop oracle's, and to themselves in any company."""

import random

import numpy as np
import pytest
import torch
from fakes.golden import META, decode, golden_request

from levo.engine.decoder import EMPTY
from levo.engine.request import Sampling

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
