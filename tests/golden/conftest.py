"""Every golden test reports its largest deviation; pytest prints one line a number at the end of the run."""

from collections.abc import Iterator

import pytest
import torch
from golden.compare import BOUND, Deviation

_noted: list[tuple[str, float, float]] = []


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """The golden numbers were made with one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def deviation() -> Deviation:
    def note(name: str, value: float, bound: float = BOUND) -> None:
        _noted.append((name, float(value), bound))
        assert value <= bound, f"{name}: largest deviation {value:.3g} is above {bound:.3g}"  # NaN fails as well

    return note


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not _noted:
        return
    terminalreporter.section("golden numbers: largest deviation (bound)")
    for name, value, bound in sorted(_noted):
        shown = "exact" if value == 0 else f"{value:.2e}"
        terminalreporter.write_line(f"{name:<48} {shown:>9}  ({'exact' if bound == 0 else f'{bound:.0e}'})")
