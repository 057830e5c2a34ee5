"""How far found numbers are from golden ones, and how far they may be."""

from typing import Protocol

import torch
from torch import Tensor

# The golden numbers are float32 results of another operation order (upstream's batched GEMMs, other fusions). Upstream
# itself differs by 1.9e-5 between its cached and its whole forward, and a second implementation by 5e-5; so 1e-4.
BOUND = 1e-4
EXACT = 0.0


class Deviation(Protocol):
    """The fixture `deviation`: notes a number for the summary, and fails when it is above the bound."""

    def __call__(self, name: str, value: float, bound: float = BOUND) -> None: ...


def largest(found: Tensor, wanted: Tensor) -> float:
    """Largest absolute difference; equal infinities and equal NaN count as equal, and a lone one as infinite."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} instead of {tuple(wanted.shape)}"
    found, wanted = found.double(), wanted.double()
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    return float(torch.where(same, 0.0, (found - wanted).abs().nan_to_num(nan=float("inf"))).max())


def n_different(found: Tensor, wanted: Tensor) -> int:
    """Number of different ids."""
    assert found.shape == wanted.shape, f"{tuple(found.shape)} instead of {tuple(wanted.shape)}"
    return int((found.long() != wanted.long()).sum())
