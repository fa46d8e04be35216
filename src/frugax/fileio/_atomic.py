"""A file is there whole or not at all: temporary name, fsync, rename.

Every failure becomes one `OutputError` that names the file, the cause and a remedy,
and leaves neither a half-written file nor a temporary one behind.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from frugax.errors import CorruptFileError, OutputError, UnsupportedFileError

_Content = TypeVar("_Content")

_REMEDIES = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some of your quota, or write to another disk",
    errno.EACCES: "choose a folder you may write to, or change its permissions",
    errno.EPERM: "choose a folder you may write to, or change its permissions",
    errno.EROFS: "choose a folder on a disk that is not read-only",
    errno.ENOTDIR: "a file stands where a folder is needed: move it or choose another",
    errno.EISDIR: "a folder stands where the file should go: choose another name",
    errno.EEXIST: "a file stands where a folder is needed: move it or choose another",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_error_reason(path: str | os.PathLike[str], cause: OSError) -> str:
    """Say why a write failed: the file, the cause and a remedy, for `OutputError`."""
    remedy = _REMEDIES.get(cause.errno or 0, "choose another place")
    reason = cause.strerror or str(cause)
    return f"cannot write {os.fspath(path)}: {reason}; {remedy}."


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and its parents, if they are not there.

    Raises:
        OutputError: it cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(write_error_reason(folder, e)) from e
    return folder


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that takes the place of `path` when the block ends well.

    If the block raises, `path` keeps its old content (or stays absent).

    Args:
        path: where the file will stand; its folder is made if need be.

    Yields:
        The temporary file, open for writing bytes.

    Raises:
        OutputError: no space, no permission, or something in the way.
    """
    target = Path(path)
    if not target.name:
        raise OutputError(
            f"cannot write {os.fspath(path)!r}: this names no file; name one."
        )
    folder = make_folder(target.parent)
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=folder)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files private; give it the mode a plain open() would have.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(target)
        temporary = None
        _sync_folder(folder)
    except OSError as e:
        raise OutputError(write_error_reason(target, e)) from e
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file whole or not at all.

    Args:
        path: where the file will stand; its folder is made if need be.
        data: its content; text is written as UTF-8.

    Raises:
        OutputError: no space, no permission, or something in the way.
    """
    with atomic_write(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def check_ownership(
    path: str | os.PathLike[str],
    read: Callable[[str | os.PathLike[str]], _Content],
    kind: str,
) -> _Content | None:
    """What is to be written over; nothing but a file of the same kind may be.

    Args:
        path: where a file is to be written.
        read: reads such a file, and raises `CorruptFileError` of any other.
        kind: what such a file holds, for the message.

    Raises:
        OutputError: something else is there, or a file that is damaged.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        return (
            None  # nothing is there; what stands in a folder's place, writing will say
        )
    except (CorruptFileError, UnsupportedFileError, OSError) as e:
        raise OutputError(
            f"{os.fspath(path)} is in the way: it is no {kind} that can be read. Move "
            "it away or name another path."
        ) from e


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
