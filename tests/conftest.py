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


@pytest.fixture(scope="session")
def qwen_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Qwen2's real vocab.json and merges.txt."""
    from fakes.qwen2 import tiktoken_file, write_qwen2

    source = tiktoken_file()
    if source is None:
        pytest.skip("the PyPI package dashscope, which carries the Qwen2 vocabulary, is not installed")
    return write_qwen2(tmp_path_factory.mktemp("qwen"), source)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the golden tests noted, from whichever process they ran in."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    noted = sorted(value for report in reports for name, value in report.user_properties if name == "golden")
    if not noted:
        return
    terminalreporter.section("golden numbers: largest deviation (bound)")
    for name, value, bound in noted:
        shown = "exact" if value == 0 else f"{value:.2e}"
        terminalreporter.write_line(f"{name:<48} {shown:>9}  ({'exact' if bound == 0 else f'{bound:.0e}'})")
