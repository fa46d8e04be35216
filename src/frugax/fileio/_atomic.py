"""Write a file atomically: temporary name, fsync, rename.

Every failure becomes one `OutputError` that names the file, the cause and a remedy.
It leaves neither a half-written file nor a temporary one behind.
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
    """Describe a failed write for `OutputError`: the file, the cause and a remedy."""
    remedy = _REMEDIES.get(cause.errno or 0, "choose another place")
    reason = cause.strerror or str(cause)
    return f"cannot write {os.fspath(path)}: {reason}; {remedy}."


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Create a folder and its parents where they do not exist.

    Raises:
        OutputError: the folder cannot be created.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise OutputError(write_error_reason(folder, e)) from e
    return folder


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends without an error.

    If the block raises, `path` keeps its old content (or stays absent).

    Args:
        path: the file to write; missing folders are created.

    Yields:
        The temporary file, open for writing bytes.

    Raises:
        OutputError: the disk is full, permission is missing, or `path` is blocked.
    """
    target = Path(path)
    if not target.name:
        raise OutputError(
            f"cannot write {os.fspath(path)!r}: the path has no file name; add one."
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
        # The umask can only be read by setting it.
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        # POSIX renames atomically within a file system, hence the same folder above.
        temporary.replace(target)
        temporary = None
        _sync_folder(folder)
    except OSError as e:
        raise OutputError(write_error_reason(target, e)) from e
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` when the block ends without error.

    If the block raises, nothing is left of it. Where `path` is a folder already, the
    files replace those of their names, and other files stay.

    Args:
        path: the folder to write; missing ones above it are created.

    Yields:
        The temporary folder, beside `path`.

    Raises:
        OutputError: the disk is full, permission is missing, or `path` is blocked.
    """
    target = Path(path)
    beside = make_folder(target.parent)
    try:
        with tempfile.TemporaryDirectory(prefix=".frugax-", dir=beside) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            yield made
            move_into_place(made, target)
    except OSError as e:
        raise OutputError(write_error_reason(target, e)) from e


def move_into_place(made: Path, target: Path) -> None:
    """Move a file, or a folder's files, to where they are wanted, on the same disk.

    Raises:
        OutputError: something is in the way.
    """
    try:
        if not (made.is_dir() and target.is_dir()):
            made.replace(target)
            return
        for file in sorted(made.iterdir()):
            file.replace(target / file.name)
    except OSError as e:
        raise OutputError(write_error_reason(target, e)) from e


def write_whole(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file atomically.

    Args:
        path: the file to write; missing folders are created.
        data: the content; text is written as UTF-8.

    Raises:
        OutputError: the disk is full, permission is missing, or `path` is blocked.
    """
    if isinstance(data, str):
        data = data.encode()
    with atomic_write(path) as file:
        file.write(data)


def check_ownership(
    path: str | os.PathLike[str],
    read: Callable[[str | os.PathLike[str]], _Content],
    kind: str,
) -> _Content | None:
    """Read the file that a write would replace; refuse to replace any other kind.

    Args:
        path: the file that will be written.
        read: a reader of this kind of file; it raises `CorruptFileError` for others.
        kind: the name of the kind, for the message.

    Returns:
        The content of the existing file; None if there is no file.

    Raises:
        OutputError: `path` is a file of another kind, or is damaged.
    """
    try:
        return read(path)
    except (FileNotFoundError, NotADirectoryError):
        # A file where a folder is needed is reported by the write that follows.
        return None
    except (CorruptFileError, UnsupportedFileError, OSError) as e:
        raise OutputError(
            f"{os.fspath(path)} is in the way: it is not a readable {kind}. Move it "
            "away or name another path."
        ) from e


def _sync_folder(folder: Path) -> None:
    # The new name is an entry of the folder: without this a power cut may undo it.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
