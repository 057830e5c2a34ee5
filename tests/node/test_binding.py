"""Cores and memory of ranks: shared out evenly and without overlap, and really taken."""

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from levo.node import binding
from levo.node.binding import bind, compress, expand, memory_node, share_cores

EIGHT = frozenset(range(8))


@pytest.fixture(autouse=True)
def no_topology(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own cores and NUMA nodes, none at first."""
    monkeypatch.setattr(binding, "CPUS", tmp_path / "cpu")
    monkeypatch.setattr(binding, "NODES", tmp_path / "node")
    return tmp_path


def test_ranks_near_the_same_cores_share_them_evenly() -> None:
    low, high = frozenset(range(4)), frozenset(range(4, 8))
    assert share_cores([low, high, low, high], EIGHT) == [(0, 1), (4, 5), (2, 3), (6, 7)]
    assert share_cores([low, low, low], EIGHT) == [(0,), (1,), (2, 3)]


def test_only_given_cores_are_used() -> None:
    near = [frozenset(range(0, 72)), frozenset(range(72, 144))]
    assert share_cores(near, frozenset({1, 2, 73, 75})) == [(1, 2), (73, 75)]


@pytest.mark.parametrize(
    "near",
    [
        [frozenset(), frozenset()],
        [frozenset(range(4)), frozenset()],
        [frozenset(range(4)), frozenset(range(100, 104))],
        [frozenset(range(5)), frozenset(range(3, 8))],
    ],
)
def test_cores_are_split_evenly_when_not_each_rank_has_near_ones_of_its_own(near: list[frozenset[int]]) -> None:
    assert share_cores(near, EIGHT) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_with_fewer_cores_than_ranks_each_has_them_all() -> None:
    assert share_cores([frozenset()] * 4, frozenset({0, 1})) == [(0, 1)] * 4


def test_threads_of_one_core_stay_together(no_topology: Path) -> None:
    for core in range(8):
        folder = no_topology / f"cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    assert share_cores([EIGHT, EIGHT], EIGHT) == [(0, 1, 4, 5), (2, 3, 6, 7)]


def test_the_memory_node_is_that_of_the_cores(no_topology: Path) -> None:
    for number, cores in enumerate(["0-71\n", "72-143\n", "\n"]):  # the third is a GPU's memory, without cores
        folder = no_topology / f"node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores)
    assert memory_node((0, 5)) == 0 and memory_node((72, 143)) == 1
    assert memory_node((0, 72)) is None and memory_node(()) is None


def test_lists_of_numbers_are_read_and_written_as_the_kernel_does() -> None:
    assert expand("0-2,5\n") == [0, 1, 2, 5] and expand("\n") == []
    assert compress([5, 0, 2, 1]) == "0-2,5" and compress([]) == ""


BIND = """
import ctypes, os, sys
from levo.node.binding import bind
said = bind((int(sys.argv[1]),), int(sys.argv[2]))
mode, mask = ctypes.c_int(-1), (ctypes.c_ulong * 16)()
ctypes.CDLL(None).syscall(int(sys.argv[3]), ctypes.byref(mode), ctypes.byref(mask), 1025, 0, 0)
print(said, sorted(os.sched_getaffinity(0)), mode.value, mask[0], sep="|")
"""


def test_a_process_takes_its_cores_and_prefers_the_memory_of_its_node(root: Path) -> None:
    core = max(os.sched_getaffinity(0))
    ask = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    command = [sys.executable, "-c", BIND, str(core), "0", str(ask)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    said, cores, mode, mask = done.stdout.strip().split("|")
    assert cores == f"[{core}]"
    if "memory not bound" in said:
        pytest.skip(f"the system forbids it here: {said}")
    assert said == f"cores {core}, memory of node 0"
    assert (int(mode), int(mask)) == (binding.MPOL_PREFERRED, 1)


def test_what_the_system_forbids_is_said_and_costs_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    monkeypatch.setattr(binding, "SET_MEMPOLICY", {})
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    said = bind((7,), 3)
    assert said.startswith("not bound to cores 7: Invalid argument, cores 0-1, memory not bound to node 3: unknown on")


def test_a_node_that_is_not_there_is_said() -> None:
    before = ctypes.get_errno()
    assert "memory not bound to node 900" in bind((), 900)
    assert ctypes.get_errno() in (before, 0, 22, 1)
