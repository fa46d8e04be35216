"""A cache on disk: one file for each key, with a checksum; the oldest are deleted."""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from frugax.errors import OutputError

from ._atomic import write_whole

_Value = TypeVar("_Value")
# Warnings point at the caller of the function that keeps a cache.
_STACK_LEVEL = 5


def cache_folder(name: str) -> Path:
    """Return the folder of one of frugax's caches; it need not exist yet.

    The folder is `$XDG_CACHE_HOME/frugax/NAME`, or `~/.cache/frugax/NAME` where that
    variable is not set.

    Args:
        name: the name of the cache.
    """
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "frugax" / name


class DiskCache:
    """Values in a folder; nothing about it fails, but damage and full disks warn."""

    def __init__(
        self, folder: Path, *, suffix: str, kind: str, remedy: str, max_bytes: int
    ) -> None:
        """Use a folder, which need not exist.

        Args:
            folder: the folder; only its files with this suffix belong to the cache.
            suffix: the ending of the files, such as `".json"`.
            kind: the name of a value in warnings, such as `"plan"`.
            remedy: what happens instead where a file is damaged, for the warning.
            max_bytes: the files' size, above which the least recently used go.
        """
        self.folder = folder
        self.suffix = suffix
        self.kind = kind
        self.remedy = remedy
        self.max_bytes = max_bytes

    def load(self, key: str, decode: Callable[[bytes], _Value]) -> _Value | None:
        """Return the value under a key; None if it is absent, or damaged (a warning).

        `decode` may raise KeyError, TypeError or ValueError.
        """
        file = self._file(key)
        try:
            digest, _, content = file.read_bytes().partition(b"\n")
            # The checksum finds damage that still decodes, such as one changed digit.
            if hashlib.sha256(content).hexdigest().encode() != digest:
                return self._warn_damaged(file, "its checksum does not match")
            value = decode(content)
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as e:
            return self._warn_damaged(file, e)
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(file)  # marks it as recently used
        return value

    def store(self, key: str, content: bytes) -> None:
        """Store a value's content, and delete old files if there are too many."""
        digest = hashlib.sha256(content).hexdigest().encode()
        try:
            write_whole(self._file(key), digest + b"\n" + content)
        except OutputError as e:
            message = f"this {self.kind} is not stored: {e}"
            warnings.warn(message, UserWarning, stacklevel=_STACK_LEVEL)
            return
        self._delete_oldest()

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}{self.suffix}"

    def _delete_oldest(self) -> None:
        found: list[tuple[float, int, Path]] = []
        for file in self.folder.glob(f"*{self.suffix}"):
            with contextlib.suppress(FileNotFoundError):  # another process deleted it
                stat = file.stat()
                # The time of writing stands for the last use, because `load` touches
                # the file: many systems do not record reads.
                found.append((stat.st_mtime, stat.st_size, file))
        total = 0
        for _, size, file in sorted(found, reverse=True):
            total += size
            if total > self.max_bytes:
                file.unlink(missing_ok=True)

    def _warn_damaged(self, file: Path, why: object) -> None:
        warnings.warn(
            f"{file}: this stored {self.kind} cannot be read ({why}); {self.remedy}.",
            UserWarning,
            stacklevel=_STACK_LEVEL + 1,
        )
