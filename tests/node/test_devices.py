"""Where ranks are put, and which GPUs are refused: NVML and the driver by stand-ins, everything else real."""

import os
import sys
from collections.abc import Callable

import pytest
from fakes.nvml import FakeGpu, fake_pynvml

from levo.errors import NodeError
from levo.node import devices, driver
from levo.node.devices import MIB, Place, choose_places
from levo.node.slurm_job import SlurmJob
from levo.settings import Settings

TOTAL = 140 << 30
Say = Callable[[str], None]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, no driver, nothing given, and nobody waits."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE", "SLURM_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(devices, "memory_node", lambda cores: min(cores) // 4)
    monkeypatch.setattr(devices, "FREE_WAIT_S", 0.0)
    monkeypatch.setattr(driver, "look", driver.Sight)


def gpus(
    monkeypatch: pytest.MonkeyPatch, *fakes: FakeGpu, init_fails: str = "", torch_cuda: str | None = "13.0"
) -> None:
    """A machine with these GPUs, all visible to CUDA."""
    seen = driver.Sight(tuple(driver.Visible(gpu.uuid, TOTAL) for gpu in fakes))
    monkeypatch.setattr(driver, "look", lambda: seen)
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(*fakes, init_fails=init_fails))
    monkeypatch.setattr(devices, "torch_cuda", lambda: torch_cuda)


def two(**changes: object) -> tuple[FakeGpu, FakeGpu]:
    """Two GPUs, each beside four of the eight cores; CUDA counts them the other way round than NVML."""
    return FakeGpu("b", 1, {4, 5, 6, 7}), FakeGpu("a", 0, {0, 1, 2, 3}, **changes)  # type: ignore[arg-type]


def settings(memory_gib: float | None = None, **node: object) -> Settings:
    return Settings.model_validate({"node": node, "engine": {"memory_gib": memory_gib}})


def test_one_rank_a_gpu_named_by_uuid_with_the_cores_and_the_memory_beside_it(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    gpus(monkeypatch, *two())
    assert choose_places(settings(), None, said.append) == [
        Place("GPU-b", 1, (4, 5, 6, 7), 1),
        Place("GPU-a", 0, (0, 1, 2, 3), 0),
    ]
    assert not said


def test_without_nvml_cores_are_split_evenly_and_that_is_said(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, *two(), init_fails="Driver Not Loaded")
    places = choose_places(settings(), None, said.append)
    assert [(place.gpu, place.device_index, place.cores) for place in places] == [
        ("GPU-b", 0, (0, 1, 2, 3)),
        ("GPU-a", 1, (4, 5, 6, 7)),
    ]
    assert len(said) == 1 and "Driver Not Loaded" in said[0]


def test_mig_instances_are_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, FakeGpu("x", cores={0}, instance_of=2), FakeGpu("y", cores={0}, instance_of=2))
    places = choose_places(settings(), None, said.append)
    assert [(place.gpu, place.device_index) for place in places] == [("MIG-x", 2), ("MIG-y", 2)]


def test_fewer_ranks_than_gpus_may_be_asked_for_and_more_not(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, *two(used_bytes=9999 * MIB))
    assert [place.gpu for place in choose_places(settings(ranks=1), None, said.append)] == ["GPU-b"], "a is not used"
    with pytest.raises(NodeError, match=r"node.ranks is 3, but there are 2 GPUs for 1 each") as raised:
        choose_places(settings(ranks=3), None, said.append)
    assert raised.value.exit_code == 4 and "ranks_per_gpu" in raised.value.fix


def test_ranks_that_share_a_gpu_split_its_memory_and_cores(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, *two())
    places = choose_places(settings(ranks_per_gpu=2), None, said.append)
    assert [(place.gpu, place.cores) for place in places] == [
        ("GPU-b", (4, 5)),
        ("GPU-a", (0, 1)),
        ("GPU-b", (6, 7)),
        ("GPU-a", (2, 3)),
    ]
    assert {place.memory_gib for place in places} == {70.0}
    three = choose_places(settings(ranks=3, ranks_per_gpu=2), None, said.append)
    assert [place.memory_gib for place in three] == [70.0, None, 70.0]
    chosen = choose_places(settings(ranks_per_gpu=2, memory_gib=20), None, said.append)
    assert {place.memory_gib for place in chosen} == {20.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"used_bytes": 700 * MIB}, "GPU-a is busy: 700 MiB are used, by processes not visible here"),
        ({"used_bytes": 9 * MIB, "pids": [41, 42]}, "GPU-a is busy: 9 MiB are used, by processes 41, 42"),
    ],
)
def test_a_busy_gpu_is_refused_with_its_uuid_and_what_is_known_of_its_user(
    monkeypatch: pytest.MonkeyPatch, said: list[str], changes: dict[str, object], words: str
) -> None:
    gpus(monkeypatch, *two(**changes))
    with pytest.raises(NodeError, match=words) as raised:
        choose_places(settings(), None, said.append)
    assert raised.value.exit_code == 4


def test_an_idle_gpu_may_hold_a_little_and_a_process_that_ends_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    gpus(monkeypatch, *two(used_bytes=90 * MIB))
    assert len(choose_places(settings(), None, said.append)) == 2
    ending = two(used_bytes=50_000 * MIB, pids=[7])
    gpus(monkeypatch, *ending)
    monkeypatch.setattr(devices, "FREE_WAIT_S", 20.0)

    def pass_time(seconds: float) -> None:
        ending[1].used_bytes, ending[1].pids = 0, []

    monkeypatch.setattr(devices.time, "sleep", pass_time)
    assert len(choose_places(settings(), None, said.append)) == 2


@pytest.mark.parametrize("listed", ["0,0", "GPU-a,GPU-b,GPU-a"])
def test_a_gpu_named_twice_is_refused(monkeypatch: pytest.MonkeyPatch, said: list[str], listed: str) -> None:
    gpus(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    with pytest.raises(NodeError, match="is named twice"):
        choose_places(settings(), None, said.append)


def test_a_gpu_that_fell_off_the_bus_is_missed(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, *two())
    job = SlurmJob("77", gpus=(0, 1, 2))
    with pytest.raises(NodeError, match=r"was given 3 GPUs \(0, 1, 2\), but CUDA sees 2"):
        choose_places(settings(), job, said.append)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b,GPU-a")  # what was narrowed on purpose is not missed
    assert len(choose_places(settings(), job, said.append)) == 2


def test_nothing_falls_back_to_the_cpu_in_silence(monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    gpus(monkeypatch, *two(), torch_cuda=None)
    with pytest.raises(NodeError, match="this torch is built without CUDA"):
        choose_places(settings(), None, said.append)
    monkeypatch.setattr(driver, "look", lambda: driver.Sight((), "cuInit returns 802"))
    with pytest.raises(NodeError, match="was given GPUs 0, 1, but cuInit returns 802"):
        choose_places(settings(), SlurmJob("77", gpus=(0, 1)), said.append)
    with pytest.raises(NodeError, match="node.device is cuda, but no GPU is to be had: cuInit returns 802"):
        choose_places(settings(device="cuda"), None, said.append)


def test_on_a_machine_without_cuda_gpus_that_were_given_have_cpu_ranks(said: list[str]) -> None:
    places = choose_places(settings(), SlurmJob("77", gpus=(0, 1, 2, 3)), said.append)
    assert [(place.gpu, place.device_index, place.cores) for place in places] == [
        (None, 0, (0, 1)),
        (None, 1, (2, 3)),
        (None, 2, (4, 5)),
        (None, 3, (6, 7)),
    ]
    assert len(said) == 1 and "0, 1, 2, 3" in said[0] and "compute on the CPU" in said[0]
    with pytest.raises(NodeError, match="node.ranks is 5, but there are 4 GPUs"):
        choose_places(settings(ranks=5), SlurmJob("77", gpus=(0, 1, 2, 3)), said.append)


def test_cpu_ranks_need_no_gpu(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_places(settings(), None, said.append) == [Place()]
    assert choose_places(settings(ranks=3), None, said.append) == [Place()] * 3, "the system places them best"
    gpus(monkeypatch, *two())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    assert [place.gpu for place in choose_places(settings(device="cpu", ranks=2), None, said.append)] == [None, None]
    assert not said
