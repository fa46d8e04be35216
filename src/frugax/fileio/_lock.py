"""One writer at a time: an advisory lock on an open file.

The system holds it for the open file, so it ends with the process, `kill -9` included.
Readers ask for none. Two writers would write over each other's work.
"""

import contextlib
import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frugax.errors import OutputError

from ._atomic import write_error_reason

_windows: Any = None
try:
    import fcntl
except ImportError:
    fcntl = None
    with contextlib.suppress(ImportError):
        import msvcrt

        _windows = msvcrt

# Windows locks bytes, and keeps readers from them too: one that no file here reaches.
_BYTE = 2**31 - 2
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
    try:
        if fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        elif _windows is not None:
            with _at_byte(file):
                _windows.locking(file.fileno(), _windows.LK_NBLCK, 1)
    except (BlockingIOError, PermissionError) as e:  # the second is what Windows says
        raise OutputError(
            f"cannot write {path}: another writer has it open, in this process or "
            "another; close that one first."
        ) from e
    except OSError as e:
        if e.errno not in _NO_LOCKS:
            raise OutputError(write_error_reason(path, e)) from e


def unlock(file: io.FileIO) -> None:
    """Let others write; said here, for a forked process may hold the file as well."""
    try:
        if fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        elif _windows is not None:
            with _at_byte(file):
                _windows.locking(file.fileno(), _windows.LK_UNLCK, 1)
    except OSError:  # there are no locks here; closing would end one too
        return


@contextlib.contextmanager
def _at_byte(file: io.FileIO) -> Iterator[None]:
    """Windows locks where the file stands."""
    before = file.tell()
    file.seek(_BYTE)
    try:
        yield
    finally:
        file.seek(before)
