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

from levo.bench.random_checkpoint import VAE_JSON, full_codec
from levo.bench.sizes import v2_large
from levo.engine import kernels
from levo.engine.flow_solver import HEAD_MULTIPLE
from levo.engine.pages import PAGE, Pool, Table, layers_per_unit, pages_for, unit_shape
from levo.engine.request import Sampling
from levo.engine.slots import Slots
from levo.engine.vae_decoder import LAST_CHANNELS
from levo.model.codec_config import VAEConfig

META = torch.device("meta")  # shapes alone: a launch is a compilation here
TYPES = {torch.float16: "fp16", torch.float32: "fp32", torch.int32: "i32", torch.int64: "i64", torch.uint8: "u8"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
SLOTS, ROWS = 50, 128


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
    config, sampling = v2_large(), Sampling()
    heads, width = (config.num_heads, config.head_dim), config.dim
    n_positions = config.prefix_len + config.max_frames + config.max_delay
    n_pages, parts = pages_for(n_positions), config.num_layers // layers_per_unit(config)
    pages = Table(Pool(4, unit_shape(config), half(1)), ROWS, n_pages, parts)
    hidden = Table(Pool(4, (PAGE, width), half(1)), ROWS, n_pages, 1)
    main, sub = (
        Slots.empty(config, ROWS // 2, SLOTS, books, config.prefix_len, sampling.window, META) for books in (1, 2)
    )
    rope = half(n_positions, config.head_dim), half(n_positions, config.head_dim)
    for delta in (half(ROWS, width), None):
        kernels.add_norm(half(ROWS, width), delta, half(width), 1e-5, 2 * SLOTS)
    kernels.gate(half(ROWS, 2 * config.intermediate_size), 2 * SLOTS)
    scratch = kernels.scratch(SLOTS, ROWS, *heads, n_positions, half(1))
    kernels.attend(half(ROWS, 3, *heads), pages, 1, main, rope, scratch)
    starts = torch.zeros(2, dtype=torch.int32, device=META)
    kernels.attend_pass(half(2, config.max_delay, 3, *heads), pages.pool.data, pages.device[:2], 1, starts, rope)
    kernels.store_hidden(half(ROWS, width), hidden, main)
    tables = half(config.code_size + 2, width), half(config.code_size + 2, width)
    kernels.gather_sub_input(sub, *tables, hidden)
    n_logits = config.code_size + 64  # the head's rows are padded
    for chosen in (sampling, Sampling(temperature=0)):
        kernels.sample_main(half(ROWS, n_logits), main, chosen)
    kernels.sample_sub(half(ROWS, 2, n_logits), sub, sampling)


def compile_codec() -> None:
    """What a window launches."""
    codec = full_codec(VAEConfig.from_upstream(VAE_JSON))
    width, n = codec.dim, 2 * codec.window
    norm = single(width), single(width)
    for gated in ((single(width), half(n, width)), None):
        kernels.modulate(single(n, width), gated, single(2, width), norm, torch.float16)
    size = -(-codec.head_dim // HEAD_MULTIPLE) * HEAD_MULTIPLE
    turns = single(codec.window, size // 2), single(codec.window, size // 2)
    kernels.rotate_heads(half(2, codec.window, 3, codec.heads, size), *turns)
    for channels in {codec.vae.channels * multiplier for multiplier in codec.vae.multipliers}:
        kernels.snake(half(n, channels), single(3, channels), half(n, channels))
        kernels.snake_pairs(half(n, channels), single(3, channels))
    kernels.last_conv(half(n, codec.vae.channels), half(7, codec.vae.channels, LAST_CHANNELS), single(2, n))


if __name__ == "__main__":
    JITFunction.run = compile_launch
    compile_tick()
    compile_codec()
