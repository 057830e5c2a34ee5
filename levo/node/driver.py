"""The GPUs that CUDA lets this process see, from the driver itself: what CUDA_VISIBLE_DEVICES means is CUDA's to say.

Nothing is computed: no context is made, no memory of a GPU taken, and torch, which takes seconds, is not imported.
"""

import ctypes
import uuid
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
NO_DEVICE = 100


@dataclass(frozen=True)
class Visible:
    """uuid: without its prefix GPU- or MIG-."""

    uuid: str
    memory_bytes: int


@dataclass(frozen=True)
class Sight:
    """What the driver sees, in CUDA's order. trouble: why it sees nothing; null when no driver is installed at all."""

    gpus: tuple[Visible, ...] = ()
    trouble: str | None = None


def look() -> Sight:
    """Ask the driver."""
    try:
        cuda = ctypes.CDLL(LIBRARY)
    except OSError:
        return Sight()
    code = cuda.cuInit(0)
    if code:
        return Sight(trouble="CUDA sees no GPU" if code == NO_DEVICE else f"cuInit returns {code}")
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    return Sight(tuple(_visible(cuda, number) for number in range(count.value)), "CUDA sees no GPU")


def _visible(cuda: ctypes.CDLL, number: int) -> Visible:
    device, size, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(16)
    cuda.cuDeviceGet(ctypes.byref(device), number)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    # The second version gives a MIG instance its own UUID.
    ask = getattr(cuda, "cuDeviceGetUuid_v2", cuda.cuDeviceGetUuid)
    code = ask(name, device)
    assert code == 0, f"cuDeviceGetUuid returns {code}"
    return Visible(str(uuid.UUID(bytes=name.raw)), size.value)
