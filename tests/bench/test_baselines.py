"""The public ways, rebuilt: what a step of the eager one asks of the host."""

import pytest
import torch

from levo.bench.baselines import StepTime, count_dispatches


def test_operations_are_counted_and_views_are_not():
    x = torch.ones(4, 6)

    def work() -> torch.Tensor:
        return (x.t()[1:3] * 2 + 1).sum()  # two views, then three operations

    assert count_dispatches(work) == 3
    assert count_dispatches(lambda: x.view(2, 12)[0].unsqueeze(0)) == 0


def test_microseconds_a_dispatch_are_for_eager_steps_only():
    assert StepTime(1, 0.018, 0.002, 2000).us_a_dispatch == pytest.approx(10)
    assert StepTime(16, 0.018, 0.002).us_a_dispatch is None
