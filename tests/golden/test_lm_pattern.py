"""Delay pattern against upstream's, all cases exactly."""

import numpy as np
import pytest
from golden.lm_golden import meta, tensors

from levo.model import pattern

CASES = range(7)


def case(i: int, name: str) -> np.ndarray:
    return tensors("pattern")[f"p{i}.{name}"].numpy()


def codes(i: int) -> np.ndarray:
    m = meta()["pattern"][i]
    return np.arange(m["K"] * m["T"], dtype=np.int32).reshape(1, m["K"], m["T"])


def shape(i: int) -> tuple[int, list[int]]:
    m = meta()["pattern"][i]
    return m["T"], m["delays"]


@pytest.mark.parametrize("i", CASES)
def test_build_places_every_frame_as_upstream(i: int) -> None:
    frames, delays = shape(i)
    values, mask = pattern.build(codes(i), delays, -7)
    np.testing.assert_array_equal(values, case(i, "values"))
    np.testing.assert_array_equal(mask, case(i, "mask").astype(bool))
    at = pattern.step_frames(frames, delays)
    flat = np.where(at >= 0, np.arange(len(delays))[:, None] * frames + at, len(delays) * frames)
    np.testing.assert_array_equal(flat, case(i, "indexes"))
    assert pattern.n_steps(frames, delays) == meta()["pattern"][i]["steps"] == values.shape[-1]


@pytest.mark.parametrize("i", CASES)
def test_valid_steps_are_the_first_ones(i: int) -> None:
    frames, delays = shape(i)
    n = pattern.n_valid_steps(frames, delays)
    values, mask = pattern.build(codes(i), delays, -7)
    assert n == meta()["pattern"][i]["valid_steps"]
    np.testing.assert_array_equal(values[..., :n], case(i, "values.valid"))
    np.testing.assert_array_equal(mask[:, :n], case(i, "mask.valid").astype(bool))


@pytest.mark.parametrize("i", CASES)
def test_revert_gives_the_codes_back(i: int) -> None:
    frames, delays = shape(i)
    reverted, mask = pattern.revert(case(i, "values"), frames, delays, -9)
    np.testing.assert_array_equal(reverted, case(i, "reverted"))
    np.testing.assert_array_equal(mask, case(i, "reverted_mask").astype(bool))
    steps = pattern.n_steps(frames, delays)
    flat = np.arange(len(delays))[:, None] * steps + pattern.frame_steps(frames, delays)
    np.testing.assert_array_equal(flat, case(i, "reverted_indexes"))


@pytest.mark.parametrize("i", CASES)
def test_revert_fills_what_a_short_sequence_does_not_reach(i: int) -> None:
    reverted, mask = pattern.revert(case(i, "values")[..., :-2], *shape(i), -9)
    np.testing.assert_array_equal(reverted, case(i, "reverted_short"))
    np.testing.assert_array_equal(mask, case(i, "reverted_short_mask").astype(bool))


@pytest.mark.parametrize("i", CASES)
def test_logit_pick_is_one_step_before_the_frame(i: int) -> None:
    frames, delays = shape(i)
    pick = pattern.logit_pick(frames, delays, pattern.n_steps(frames, delays))
    np.testing.assert_array_equal(pick, case(i, "logit_pick"))
    np.testing.assert_array_equal(pick >= 0, case(i, "logit_mask").astype(bool))
