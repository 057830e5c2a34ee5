"""Puts a decoder together for a device: memory first, then the kernels or their twins, then the captured ticks."""

import gc
from types import ModuleType

import torch

from levo.engine import twins
from levo.engine.decoder import Decoder
from levo.engine.memory import CODEC_WORKSPACE, MemoryPlan, budget, plan_memory
from levo.engine.pages import PAGE, Pool, unit_shape
from levo.engine.phases import Setup
from levo.engine.request import Book, Sampling
from levo.model.lm import LM

SYNC_TICKS = 8  # on a GPU: a song that ended idles its slot for 4 ticks on average, under 1 % of a 30 s clip


def build_decoder(
    lm: LM, pad_id: int, slots: int, gemm_rows: int, sampling: Sampling, memory_gib: float | None, book: Book
) -> Decoder:
    """Plan the pages from what is free now, allocate them, and capture ticks and passes.

    Raises ConfigError when not even one song of the greatest length fits.
    """
    like = lm.transformer.lm_head.weight
    on_gpu = like.is_cuda
    if on_gpu:
        gc.collect()  # a former engine is a cycle through its graphs, and holds the memory that is measured here
        torch.cuda.empty_cache()
    left = budget(like.device, memory_gib, CODEC_WORKSPACE)
    plan = plan_memory(lm.config, slots, left, like.element_size())
    setup = make_setup(lm, pad_id, gemm_rows, sampling, plan)
    return Decoder(setup, slots, SYNC_TICKS if on_gpu else 1, book)


def make_setup(lm: LM, pad_id: int, gemm_rows: int, sampling: Sampling, plan: MemoryPlan) -> Setup:
    """Pools as planned; kernels on a GPU, their torch twins elsewhere."""
    like = lm.transformer.lm_head.weight
    ops: ModuleType = twins
    if like.is_cuda:
        from levo.engine import kernels  # Triton lives where a GPU does

        ops = kernels
    kv = Pool(plan.n_units, unit_shape(lm.config), like)
    hidden = Pool(plan.n_hidden, (PAGE, lm.config.dim), like)
    return Setup(lm, pad_id, gemm_rows, sampling, kv, hidden, ops, captured=like.is_cuda)
