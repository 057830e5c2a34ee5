"""Compiles every Triton kernel for a GPU that is not here, at the released sizes: a process of its own, since Triton
decides at import whether it interprets.

    python -m fakes.compile_kernels CAPABILITY, as 90 for H200 and GH200: prints a line a launch: kernel, shared bytes
"""

import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from levo.bench.sizes import v2_large
from levo.engine import kernels
from levo.engine.pages import PAGE, Pool, Table, unit_shape
from levo.engine.request import Sampling
from levo.engine.slots import Slots

META = torch.device("meta")  # shapes alone: a launch is a compilation here
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
SLOTS, ROWS, POSITIONS = 50, 128, 8192


def type_of(value: object) -> str:
    """Triton's word for an argument."""
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def compile_launch(kernel: "JITFunction[Any]", *args: Any, grid: object, warmup: bool, **kwargs: Any) -> None:
    """In place of JITFunction.run."""
    options = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    fixed = {p.name: values[p.name] for p in kernel.params if p.is_constexpr or values[p.name] is None}
    signature = {name: "constexpr" if name in fixed else type_of(values[name]) for name in kernel.arg_names}
    target = GPUTarget("cuda", int(sys.argv[1]), 32)
    made = triton.compile(ASTSource(kernel, signature, fixed), target=target, options=options)
    assert options["enable_fp_fusion"] is True, "without it a newer Triton gives other bits"
    print(kernel.fn.__name__, made.metadata.shared)


def half(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float16, device=META)


def single(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device=META)


def compile_tick() -> None:
    """What a tick and a pass launch."""
    config = v2_large()
    heads, head_dim, width = config.num_heads, config.head_dim, config.dim
    pages = Table(Pool(4, unit_shape(config), half(1)), ROWS, POSITIONS // PAGE, 2)
    hidden = Table(Pool(4, (PAGE, width), half(1)), ROWS, POSITIONS // PAGE, 1)
    main, sub = (Slots.empty(config, ROWS // 2, SLOTS, books, 952, 1202, META) for books in (1, 2))
    rope = half(POSITIONS, head_dim), half(POSITIONS, head_dim)
    kernels.add_norm(half(ROWS, width), half(ROWS, width), half(width), 1e-5, 2 * SLOTS)
    kernels.add_norm(half(ROWS, width), None, half(width), 1e-5, 2 * SLOTS)
    kernels.gate(half(ROWS, 2 * config.intermediate_size), 2 * SLOTS)
    scratch = kernels.scratch(SLOTS, ROWS, heads, head_dim, POSITIONS, half(1))
    kernels.attend(half(ROWS, 3, heads, head_dim), pages, 1, main, rope, scratch)
    starts = torch.zeros(2, dtype=torch.int32, device=META)
    kernels.attend_pass(half(2, 256, 3, heads, head_dim), pages.pool.data, pages.device[:2], 1, starts, rope)
    kernels.store_hidden(half(ROWS, width), hidden, main)
    kernels.gather_sub_input(sub, half(config.code_size + 2, width), half(config.code_size + 2, width), hidden)
    n_logits = config.code_size + 64
    for sampling in (Sampling(), Sampling(temperature=0)):
        kernels.sample_main(half(ROWS, n_logits), main, sampling)
    kernels.sample_sub(half(ROWS, 2, n_logits), sub, Sampling())


def compile_codec() -> None:
    """What a window launches."""
    width, norm = 2200, (single(2200), single(2200))
    for gated in ((single(width), half(2000, width)), None):
        kernels.modulate(single(2000, width), gated, single(2, width), norm, torch.float16)
    kernels.rotate_heads(half(2, 1000, 3, 20, 112), single(1000, 56), single(1000, 56))
    for channels in (128, 2048):
        kernels.snake(half(1000, channels), single(3, channels), half(1000, channels))
        kernels.snake_pairs(half(1000, channels), single(3, channels))
    kernels.last_conv(half(48000, 128), half(7, 128, 16), single(2, 48000))


if __name__ == "__main__":
    JITFunction.run = compile_launch
    compile_tick()
    compile_codec()
