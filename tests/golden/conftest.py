"""Every golden test reports its largest deviation; tests/conftest.py prints one line a number at the end of the run."""

from collections.abc import Callable, Iterator

import pytest
import torch
from golden.compare import BOUND, Deviation


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The golden numbers were made with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def deviation(record_property: Callable[[str, object], None]) -> Deviation:
    def note(name: str, value: float, bound: float = BOUND) -> None:
        record_property("golden", (name, float(value), bound))
        assert value <= bound, f"{name}: largest deviation {value:.3g} is above {bound:.3g}"  # NaN fails as well

    return note
