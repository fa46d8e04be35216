"""`Follower`: tail a journal that another process writes, reading only what is new."""

import os
from pathlib import Path
from typing import Any

from frugax.errors import CorruptFileError

from ._scanner import (
    WINDOW_BYTES,
    Appended,
    Change,
    LostRange,
    Scanner,
    open_journal,
)
from .blocks import decode_block


class Follower:
    """Reads a journal as it grows, without a lock or any other trace.

    A block that is just being written comes with a later call. Damage is declared once
    an intact block follows it.

    Attributes:
        path: the journal.
        meta: the `meta` of `Journal.create`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the header only.

        Raises:
            CorruptFileError: the file is not a journal, or its header is damaged.
            FileNotFoundError: `path` does not exist.
            IsADirectoryError: `path` is a folder.
            UnsupportedFileError: a newer version wrote the file.
        """
        self.path = Path(path)
        with open_journal(self.path) as file:
            self._scanner = Scanner(self.path, file)
            self._file = _identity(os.fstat(file.fileno()))
        self.meta: dict[str, Any] = self._scanner.meta
        self._size = self._scanner.end
        # Size and mtime of the file when it had been read to its end: while they stay
        # the same, `poll` costs one fstat.
        self._seen: tuple[int, int] | None = None
        self._lost: list[LostRange] = []

    @property
    def offset(self) -> int:
        """How many bytes of the file have been decoded."""
        return self._scanner.end

    @property
    def size_bytes(self) -> int:
        """The length of the file at the last call of `poll`."""
        return self._size

    @property
    def closed(self) -> bool:
        """Whether the last block that was read says that the writer closed the file."""
        return self._scanner.closed

    @property
    def lost(self) -> tuple[LostRange, ...]:
        """All lost ranges so far; `poll` also returns them among the changes."""
        return tuple(self._lost)

    def poll(self, max_bytes: int = WINDOW_BYTES) -> list[Change]:
        """Return the changes since the last call, in the order of the file.

        Args:
            max_bytes: the bytes of the file to read in this call; more only for a
                single block that is larger. Call again while `offset` rises and is
                below `size_bytes`.

        Raises:
            CorruptFileError: the file was replaced, or became shorter than the part
                that was read: make a new `Follower`.
            ValueError: `max_bytes` is below 1.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be >= 1, got {max_bytes}.")
        with open_journal(self.path) as file:
            status = os.fstat(file.fileno())
            self._size = status.st_size
            if _identity(status) != self._file or self._size < self._scanner.end:
                raise CorruptFileError(
                    f"{self.path} is another file than before: make a new Follower."
                )
            now = self._size, status.st_mtime_ns
            if now == self._seen:
                return []
            # The size was taken before the read: bytes that come in between belong to
            # the next call, whose comparison with `_seen` must notice them.
            reached = self._scanner.end
            found = self._scanner.scan(file, self._size, window_bytes=max_bytes)
            if self._scanner.end in (reached, self._size):
                self._seen = now
        self._lost += [change for change in found if isinstance(change, LostRange)]
        return found

    def read_block(self, offset: int, size: int) -> Appended:
        """Read records again, from the place that `Appended` named; for any thread.

        Raises:
            CorruptFileError: there is no such block any more.
            FileNotFoundError: there is no such file any more.
        """
        with open_journal(self.path) as file:
            file.seek(offset)
            block = decode_block(file.read(size), 0, salt=self._scanner.salt)
        return Appended(block.stream, block.steps, block.columns, offset, size)


def _identity(status: os.stat_result) -> tuple[int, int]:
    # A journal that was replaced has another inode, even at the same length.
    return status.st_dev, status.st_ino
