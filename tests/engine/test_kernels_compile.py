"""Every Triton kernel compiles at the released sizes for the GPUs that the profiles name, on a machine without one.

The interpreter (test_kernels.py) proves numbers, and forgives what a compiler refuses.
"""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("triton") is None:  # not imported: the tests beside this one interpret
    pytest.skip("Triton is not installed: pip install triton", allow_module_level=True)
SHARED_BYTES = {"80": 163 * 1024, "90": 227 * 1024}
"""What a block may have on A100; on H200 and GH200 (CUDA C++ Programming Guide, compute capabilities)."""


def launched(root: Path) -> set[str]:
    """Names of the kernels that are launched anywhere: `_name[grid](...)`."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (root / "levo/engine/kernels").glob("*.py")]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {ast.unparse(f.value) for f in calls if isinstance(f, ast.Subscript)}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("capability", SHARED_BYTES)
def test_every_kernel_compiles_and_fits(capability: str, root: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")])
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "fakes.compile_kernels", capability], capture_output=True, text=True,
        env={**env, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shared: dict[str, int] = {}
    for name, n_bytes in (line.split() for line in done.stdout.splitlines()):
        shared[name] = max(shared.get(name, 0), int(n_bytes))
    assert shared.keys() == launched(root)
    assert max(shared.values()) <= SHARED_BYTES[capability], shared
