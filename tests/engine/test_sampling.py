"""What a tick does with logits: guidance, the penalty's quirk, ties, the draw."""

import torch

from levo.engine.philox import split_seed
from levo.engine.sampling import draw, greedy, guide, penalise


def keys(n, seed=0):
    return torch.tensor([split_seed(seed + i) for i in range(n)])


def test_guidance_pairs_neighbouring_rows():
    logits = torch.tensor([[1.0, 2.0], [0.0, 4.0], [5.0, 5.0], [5.0, 5.0]])
    assert guide(logits, 1.5).tolist() == [[1.5, 1.0], [5.0, 5.0]]


def test_penalty_divides_each_seen_code_once_and_raises_negative_logits():
    logits = torch.tensor([[2.0, -2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]])
    seen = torch.tensor([[True, True, False, False, False, False, False, False, True]])  # EOS, the last, never
    found = penalise(logits, seen, 2.0)
    assert found.tolist() == [[1.0, -1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]]


def test_equal_logits_go_to_the_lowest_id():
    assert greedy(torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])).tolist() == [1, 0]


def test_ties_with_the_kth_value_are_all_drawn():
    """Four ids tie at the second place of top-2: each must be drawn; the fifth, below, never.

    2,000 draws: a fair id of five misses all of them with probability 0.8 ** 2000.
    """
    logits = torch.tensor([[2.0, 1.9, 1.9, 1.9, 1.9, 1.0]]).expand(2000, -1).contiguous()
    ids = draw(logits, 1.0, 2, keys(2000), torch.zeros(2000, dtype=torch.int64))
    assert sorted(set(ids.tolist())) == [0, 1, 2, 3, 4]


def test_draws_follow_the_softmax():
    """20,000 draws of known probabilities; the bound is 5 standard errors of a share."""
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).expand(20_000, -1).contiguous()
    ids = draw(logits * 0.9, 0.9, 4, keys(20_000), torch.zeros(20_000, dtype=torch.int64))
    shares = torch.bincount(ids, minlength=4) / 20_000
    assert (shares - torch.tensor([0.5, 0.3, 0.15, 0.05])).abs().max() < 5 * (0.25 / 20_000) ** 0.5


def test_a_banned_id_is_never_drawn_even_when_top_k_reaches_it():
    logits = torch.tensor([[1.0, -torch.inf, 0.5]]).expand(500, -1).contiguous()
    ids = draw(logits, 1.0, 3, keys(500), torch.zeros(500, dtype=torch.int64))
    assert set(ids.tolist()) == {0, 2}


def test_a_slots_draw_ignores_its_neighbours_and_its_place():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 257, generator=generator)
    steps = torch.arange(8)
    together = draw(logits, 0.9, 50, keys(8), steps)
    order = torch.tensor([5, 2, 7, 0, 1, 3, 6, 4])
    shuffled = draw(logits[order], 0.9, 50, keys(8)[order], steps[order])
    assert torch.equal(shuffled, together[order])
