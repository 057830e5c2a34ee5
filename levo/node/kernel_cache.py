"""Where a node keeps the kernels that Triton has compiled, so that the next shard there starts in seconds.

In the node's own temporary folder: a home folder is often a network file system that a thousand ranks would meet on.
Four ranks at once may fill it: Triton names an entry by a hash of the kernel's source, its own version, the compiler's,
the GPU architecture and the options, writes each file under a name of its own and renames it, and lists an entry's
files last. So a rank finds an entry whole or not at all, and two that compile the same kernel write the same.
"""

import os
import stat
import tempfile
from pathlib import Path

from levo.errors import NodeError

VARIABLE = "TRITON_CACHE_DIR"


def use_kernel_cache() -> Path:
    """Tell Triton the folder; one that the environment names already stays. Before the first kernel is compiled.

    What lies there is run as code. Raises NodeError when the folder is somebody else's, or others may write into it.
    """
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    path = Path(tempfile.gettempdir()) / f"levo-triton-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NodeError(
            "the folder for compiled kernels is not this user's alone",
            where=str(path),
            fix=f"remove it, or name a folder of your own with {VARIABLE}",
        )
    os.environ[VARIABLE] = str(path)
    return path
