"""Copies of the checkout for the tests of the workflow."""

from pathlib import Path

import pytest
from fakes.clone import Clone, make_clone


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Clone:
    """A fresh copy for one test. The odd name is on purpose: paths with spaces must work."""
    return make_clone(root, tmp_path / "a clone")
