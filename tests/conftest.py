"""Shared by all tests: one thread a process, and one tiny model a session."""

import os
from pathlib import Path

import pytest

# Before torch is imported anywhere: thread counts change bits, and a test machine is shared.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory written by `levo model tiny`."""
    from levo.model.tiny import write_tiny

    path = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny(path)
    return path
