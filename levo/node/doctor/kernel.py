"""Doctor: the smallest Triton kernel. In a file of its own because Triton reads a kernel's source and needs a GPU."""

import torch
import triton
import triton.language as tl


@triton.jit
def _add_one(x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(x + at, tl.load(x + at, mask=inside) + 1, mask=inside)


def adds_one() -> bool:
    """Compile and run it on the first GPU; whether the numbers are right."""
    x = torch.arange(1000, dtype=torch.float32, device="cuda")
    _add_one[(8,)](x, 1000, BLOCK=128)
    return bool(torch.equal(x.cpu(), torch.arange(1, 1001, dtype=torch.float32)))
