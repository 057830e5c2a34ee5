"""A language model of the released size with random weights, on the GPU, in fp16."""

import pytest
import torch

if not torch.cuda.is_available():
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header():
    return None if torch.cuda.is_available() else "tests/gpu: skipped, this machine has no GPU"


def pytest_collection_modifyitems(items):
    """Those that see every GPU idle come first: later ones leave this process a context on one."""
    items.sort(key=lambda item: "test_several_gpus" not in item.nodeid)


@pytest.fixture(scope="session")
def full_size_lm():
    from levo.bench.sizes import random_lm, v2_large

    with torch.inference_mode():
        return random_lm(v2_large(), torch.device("cuda"), torch.float16, endless=True)
