"""One writer at a time: an advisory lock on an open file.

The system holds it for the open file, so it ends with the process, `kill -9` included.
Readers ask for none. Two writers would write over each other's work.
"""

import errno
import io
from pathlib import Path

from frugax.errors import OutputError

from ._atomic import why_not_written

try:
    import fcntl
except ImportError:  # Windows has no advisory locks
    fcntl = None

# What file systems without locks say, such as some that are reached over a network.
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}


def lock(file: io.FileIO, path: Path) -> None:
    """Keep other writers out, until `unlock`; nothing where there are no locks.

    Args:
        file: open for writing.
        path: what is written, for messages.

    Raises:
        OutputError: another writer has it open, or the lock failed.
    """
    if fcntl is None:
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        raise OutputError(
            f"cannot write {path}: another writer has it open, in this process or "
            "another; close that one first."
        ) from e
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise OutputError(why_not_written(path, e)) from e


def unlock(file: io.FileIO) -> None:
    """Let others write; said here, for a forked process may hold the file as well."""
    if fcntl is not None:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        except OSError:  # there are no locks here; closing would end one too
            return
