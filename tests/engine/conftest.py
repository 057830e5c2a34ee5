import pytest
import torch
from fakes import golden


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def golden_lm():
    return golden.golden_lm()


@pytest.fixture(scope="session")
def golden_items():
    return golden.golden_items()
