"""Triton kernels of a tick and of the codec. Their torch twins have the same names, arguments and results:
levo.engine.twins and levo.engine.codec_twins.

Imported on a GPU only (or under Triton's interpreter, for tests). Nothing here is tuned at run time: block sizes
are constants, because a choice made by timing could change bits between two runs. For the same reason every launch says
enable_fp_fusion (a product and a sum in one rounding): Triton 3.9 announces another default for 3.10.
"""

from levo.engine.kernels.attention import attend, scratch
from levo.engine.kernels.flow import modulate, rotate_heads
from levo.engine.kernels.fused import add_norm, gate, gather_sub_input, store_hidden
from levo.engine.kernels.passes import attend_pass
from levo.engine.kernels.sample import sample_main, sample_sub
from levo.engine.kernels.vae import last_conv, snake, snake_pairs

__all__ = [
    "add_norm",
    "attend",
    "attend_pass",
    "gate",
    "gather_sub_input",
    "last_conv",
    "modulate",
    "rotate_heads",
    "sample_main",
    "sample_sub",
    "scratch",
    "snake",
    "snake_pairs",
    "store_hidden",
]
