"""Copies of the checkout for the tests of the workflow."""

from pathlib import Path

import pytest
from fakes.clone import Clone, make_clone, write_small_run


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Clone:
    """A fresh copy for one test. The odd name is on purpose: paths with spaces must work."""
    return make_clone(root, tmp_path / "a clone")


@pytest.fixture(scope="session")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone with a finished RUN `t`. Tests may look and plan here; what they change, they change in a copy."""
    clone = make_clone(root, tmp_path_factory.mktemp("workflow") / "finished")
    write_small_run(clone)
    clone.snakemake()
    return clone
