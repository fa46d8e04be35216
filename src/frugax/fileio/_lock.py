"""File locks: one writer at a time, by an advisory lock on the open file itself."""

import contextlib
import errno
import io
from pathlib import Path

import filelock

from frugax.errors import OutputError

from ._atomic import write_error_reason

# Errors of file systems without locks, such as some network mounts. A single writer
# must still be able to write there, so these are ignored.
_UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


# `filelock.FileLock` would lock a sibling file `NAME.lock`, which stays behind in the
# folder after every run. Its `lock_descriptor` takes the same lock on a file that is
# open anyway: the system frees it when the process ends, `kill -9` included, and
# readers, who ask for no lock, are not kept out.
def lock(file: io.FileIO, path: Path) -> None:
    """Keep other writers out until `unlock`, where the file system has locks.

    Args:
        file: a file that is open for writing.
        path: the path to name in messages.

    Raises:
        OutputError: another writer has the file open, or the lock failed.
    """
    try:
        if filelock.lock_descriptor(file.fileno(), blocking=False):
            return
    except OSError as e:
        if e.errno in _UNSUPPORTED:
            return
        raise OutputError(write_error_reason(path, e)) from e
    raise OutputError(
        f"cannot write {path}: another writer has it open, in this process or "
        "another; close that one first."
    )


def unlock(file: io.FileIO) -> None:
    """Release the lock.

    Closing the file is not enough: a forked child may still hold the same descriptor.
    """
    with contextlib.suppress(OSError):  # the file system has no locks
        filelock.unlock_descriptor(file.fileno())
