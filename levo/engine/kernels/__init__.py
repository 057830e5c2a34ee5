"""Triton kernels of a tick. The torch twins in levo.engine.twins have the same names, arguments and results.

Imported on a GPU only (or under Triton's interpreter, for tests). Nothing here is tuned at run time: block sizes
are constants, because a choice made by timing could change bits between two runs.
"""

from levo.engine.kernels.attention import attend, scratch
from levo.engine.kernels.fused import add_norm, gate, gather_sub_input, store_hidden
from levo.engine.kernels.passes import attend_pass
from levo.engine.kernels.sample import sample_main, sample_sub

__all__ = [
    "add_norm",
    "attend",
    "attend_pass",
    "gate",
    "gather_sub_input",
    "sample_main",
    "sample_sub",
    "scratch",
    "store_hidden",
]
