"""How many pages there are: planned once from the device's free memory, measured (design: The engine, 2)."""

from dataclasses import dataclass

import torch

from levo.engine.pages import PAGE, layers_per_unit, pages_for
from levo.errors import ConfigError
from levo.model.config import LMConfig

GIB = 2**30
CODEC_WORKSPACE = 4 * GIB
"""What comes after the plan: capture of ticks and passes, and a window decoded again in float32 (1 GiB). The codec's
own buffers and captures exist already when the plan is made."""
RESERVE = 0.08  # share of the device that stays free: fragments, other libraries, the unforeseen
CONTEXT = GIB // 2  # about what CUDA takes for a process beside the allocator
HIDDEN_PER_UNIT = 0.8  # hidden pages beside each unit; a song of 30 s uses 0.59 and one of 3 minutes 0.68


@dataclass(frozen=True)
class MemoryPlan:
    """Units of the key/value pool and pages of the hidden pool."""

    n_units: int
    n_hidden: int


def plan_memory(config: LMConfig, slots: int, budget_bytes: int, itemsize: int) -> MemoryPlan:
    """As many pages as the budget holds, and no more than `slots` songs of the greatest length could use.

    Raises ConfigError when not even one such song fits.
    """
    n_pages = pages_for(config.prefix_len + config.max_frames + config.max_delay + 1)
    per_unit = layers_per_unit(config)
    parts = (config.num_layers + config.num_layers_sub) // per_unit
    one_song = 2 * n_pages * parts + 2 * pages_for(config.prefix_len) * parts
    unit_bytes = itemsize * per_unit * 2 * config.num_heads * PAGE * config.head_dim
    hidden_bytes = itemsize * PAGE * config.dim
    fitting = int(budget_bytes // (unit_bytes + HIDDEN_PER_UNIT * hidden_bytes))
    n_units = min(fitting, slots * one_song)
    if n_units < one_song:
        need = one_song * (unit_bytes + hidden_bytes) / GIB
        raise ConfigError(
            f"{budget_bytes / GIB:.1f} GiB are left for songs, but one of {config.max_seconds:g} s takes {need:.1f}",
            where="settings engine.memory_gib, or what else runs on this device",
            fix="give the rank more memory, or free the device",
        )
    n_hidden = max(int(n_units * HIDDEN_PER_UNIT), 4 * n_pages)
    if n_units == slots * one_song:
        n_hidden = 2 * slots * 2 * n_pages
    return MemoryPlan(n_units, n_hidden)


def budget(device: torch.device, memory_gib: float | None, workspace_bytes: int) -> int:
    """Bytes for pages: what is free on the device now, less the reserve and the codec's workspace.

    memory_gib caps what this process takes, as if the device had no more and nobody else: so a smaller card is
    rehearsed on a larger one, and ranks share one.
    """
    if device.type == "cpu":
        return 2**62
    free, total = torch.cuda.mem_get_info(device)
    if memory_gib is None:
        return int(free - RESERVE * total - workspace_bytes)
    size = min(total, memory_gib * GIB)
    left = size * (1 - RESERVE) - torch.cuda.memory_reserved(device) - CONTEXT
    return int(min(left, free) - workspace_bytes)
