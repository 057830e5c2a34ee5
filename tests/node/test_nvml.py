"""NVIDIA's library, by a stand-in; and the driver's own word on what this process sees."""

import ctypes
import sys
import uuid
from pathlib import Path

import pytest
from fakes.nvml import FakeGpu, fake_pynvml

from levo.node import driver
from levo.node import nvml as nvml_module
from levo.node.nvml import Nvml, Usage, nvml


def install(monkeypatch: pytest.MonkeyPatch, *gpus: FakeGpu, init_fails: str = "") -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_pynvml(*gpus, init_fails=init_fails))


def test_a_gpu_is_known_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeGpu("a", 3, {0, 1, 65}, used_bytes=5, pids=[7, 8]), FakeGpu("m", 0, instance_of=2))
    with nvml() as library:
        assert isinstance(library, Nvml)
        assert (library.name("a"), library.name("m"), library.name("x")) == ("GPU-a", "MIG-m", None)
        assert (library.index("GPU-a"), library.index("MIG-m")) == (3, 2)
        monkeypatch.setattr("os.sysconf", lambda name: 128)
        assert library.cores("GPU-a") == {0, 1, 65}
        assert library.usage("GPU-a") == Usage(5, (7, 8)), "without the driver's own part"
    assert sys.modules["pynvml"].opened == 0


def test_files_that_linux_keeps_in_a_gpu_s_memory_are_nobody_s_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo = tmp_path / "node4/meminfo"
    meminfo.parent.mkdir()
    meminfo.write_text("Node 4 MemTotal:  99 kB\nNode 4 FilePages:        3 kB\nNode 4 Mapped: 7 kB\n")
    monkeypatch.setattr(nvml_module, "NODES", tmp_path)
    install(monkeypatch, FakeGpu("a", used_bytes=5000, node=4), FakeGpu("b", used_bytes=10, node=4))
    with nvml() as library:
        assert isinstance(library, Nvml)
        assert library.usage("GPU-a") == Usage(5000 - 3 * 1024, ())
        assert library.usage("GPU-b") == Usage(0, ())


def test_what_a_driver_does_not_answer_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeGpu("a", cores=None))
    with nvml() as library:
        assert isinstance(library, Nvml)
        assert library.cores("GPU-a") == frozenset()
        assert library.index("GPU-gone") is None and library.index("MIG-gone") is None
        assert library.cores("GPU-gone") == frozenset()


def test_without_the_library_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, init_fails="Driver Not Loaded")
    with nvml() as library:
        assert library == "Driver Not Loaded"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with nvml() as library:
        assert isinstance(library, str) and "pynvml" in library


class FakeCuda:
    """libcuda.so.1 of a machine with these devices: (uuid, bytes)."""

    def __init__(self, *devices: tuple[uuid.UUID, int], init: int = 0) -> None:
        self.devices, self.init = devices, init

    def cuInit(self, flags: int) -> int:
        return self.init

    def cuDeviceGetCount(self, count: object) -> int:
        count._obj.value = len(self.devices)  # type: ignore[attr-defined]
        return 0

    def cuDeviceGet(self, device: object, number: int) -> int:
        device._obj.value = number  # type: ignore[attr-defined]
        return 0

    def cuDeviceTotalMem_v2(self, size: object, device: ctypes.c_int) -> int:
        size._obj.value = self.devices[device.value][1]  # type: ignore[attr-defined]
        return 0

    def cuDeviceGetUuid(self, name: object, device: ctypes.c_int) -> int:
        name.raw = self.devices[device.value][0].bytes  # type: ignore[attr-defined]
        return 0


def test_the_driver_tells_what_is_visible_in_cuda_s_order(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda((first, 140 << 30), (second, 80 << 30)))
    seen = driver.look().gpus
    assert seen == (driver.Visible(str(first), 140 << 30), driver.Visible(str(second), 80 << 30))


@pytest.mark.parametrize(("init", "trouble"), [(100, "CUDA sees no GPU"), (802, "cuInit returns 802")])
def test_a_driver_without_a_gpu_is_told_from_no_driver(
    monkeypatch: pytest.MonkeyPatch, init: int, trouble: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeCuda(init=init))
    assert driver.look() == driver.Sight((), trouble)

    def absent(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", absent)
    assert driver.look() == driver.Sight((), None)
