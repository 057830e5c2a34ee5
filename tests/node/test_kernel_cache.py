"""Compiled kernels are run as code, so their folder is the user's own."""

import os
import stat
import subprocess
import sys
import tempfile

import pytest

from levo.errors import NodeError
from levo.node.kernel_cache import VARIABLE, use_kernel_cache


@pytest.fixture(autouse=True)
def node(tmp_path, monkeypatch):
    """A node whose temporary folder is empty."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    os.environ.pop(VARIABLE, None)


def test_it_is_on_the_node_private_and_found_again(node):
    path = use_kernel_cache()
    assert path.parent == node and stat.S_IMODE(path.stat().st_mode) == 0o700
    assert os.environ.pop(VARIABLE) == str(path)
    assert use_kernel_cache() == path


def test_a_folder_that_the_environment_names_stays(node, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(node / "mine"))
    assert use_kernel_cache() == node / "mine"
    assert list(node.iterdir()) == []


def test_a_folder_that_others_may_write_is_refused(node):
    path = use_kernel_cache()
    del os.environ[VARIABLE]
    path.chmod(0o770)
    with pytest.raises(NodeError, match="not this user's alone"):
        use_kernel_cache()


def test_a_link_is_refused(node):
    (node / "elsewhere").mkdir()
    (node / f"levo-triton-{os.getuid()}").symlink_to(node / "elsewhere")
    with pytest.raises(NodeError, match="not this user's alone"):
        use_kernel_cache()


FILL = """
import sys
from triton.runtime.cache import get_cache_manager
manager = get_cache_manager("b" * 64)
for _ in range(200):
    names = {name: manager.put(name.encode() * 20000, name) for name in ("kernel.cubin", "kernel.json")}
    manager.put_group("kernel.json", names)
    found = manager.get_group("kernel.json")
    assert found is not None and all(len(open(path, "rb").read()) == 20000 * len(name) for name, path in found.items())
"""


def test_four_processes_fill_tritons_cache_at_once(node):
    """What the docstring says of Triton, on the Triton that is installed: an entry is whole or not there."""
    pytest.importorskip("triton")
    env = os.environ | {VARIABLE: str(use_kernel_cache())}
    ranks = [subprocess.Popen([sys.executable, "-c", FILL], env=env, stderr=subprocess.PIPE) for _ in range(4)]
    said = [rank.communicate(timeout=100)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, said
    assert len(list(node.rglob("kernel.*"))) == 2
