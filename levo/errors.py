"""Errors for the person who reads them: what is wrong, where, and what to do.

Every error that a user can cause is a LevoError; the command line prints its three lines and no traceback.
A traceback therefore always means a fault of this project.
"""

import errno

EXIT_OK = 0
EXIT_FAULT = 1
EXIT_INPUT = 2
EXIT_MODEL = 3
EXIT_FAILED = 4
EXIT_DIFFERENT = 5
EXIT_USABLE = 6  # doctor: works, with something to mend
EXIT_MORE_TO_DO = 75  # EX_TEMPFAIL of sysexits.h: the shard stopped early on purpose; run it again


class LevoError(Exception):
    """Something that a user can mend.

    what: one sentence, with the value that was found.  where: file, line, song id, setting.  fix: what to do.
    """

    exit_code = EXIT_INPUT

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.fix:
            lines.append(f"  fix:   {self.fix}")
        return "\n".join(lines)


class ConfigError(LevoError):
    """A setting is unknown, of the wrong type, out of range, or changed in a RUN that has shards."""


class ManifestError(LevoError):
    """A manifest cannot be read at all (bad rows are rejected one by one instead)."""


class ModelError(LevoError):
    """A model directory is incomplete, damaged or of another shape."""

    exit_code = EXIT_MODEL


class NodeError(LevoError):
    """A shard cannot run here, or ended for good without all its songs."""

    exit_code = EXIT_FAILED


class FailedForGood(NodeError):
    """Another attempt at the shard would end like this one, until somebody mends the cause."""


DISK_FIX = "look after the file system (space, quota, rights, mount), then run the same command again"
_REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ESTALE,
    errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
}  # fmt: skip


def refusal(error: OSError) -> NodeError | None:
    """What a file system refuses: space, quota, rights, a file where a folder should be. None: a fault of ours."""
    if error.errno not in _REFUSALS:
        return None
    return NodeError(f"the file system refuses: {error.strerror}", where=str(error.filename or ""), fix=DISK_FIX)
