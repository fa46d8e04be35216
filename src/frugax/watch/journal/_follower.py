"""Following a journal that another process writes: only what is new is read."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from frugax.errors import CorruptFileError

from ._blocks import Block
from ._columns import Column
from ._walk import WINDOW_BYTES, Lost, Walk, open_journal


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """Records that were added.

    Attributes:
        stream: to which stream.
        steps: their steps, `(n,)`, rising.
        columns: by name, which of them have it and their values.
    """

    stream: str
    steps: np.ndarray
    columns: Mapping[str, Column]


@dataclasses.dataclass(frozen=True, slots=True)
class Rewound:
    """The records of a stream after a step have become void.

    Attributes:
        stream: of which stream.
        step: the last step that still counts.
    """

    stream: str
    step: int


Change: TypeAlias = Appended | Rewound | Lost


class Follower:
    """Reads a journal as it grows; the writer need not know.

    A block that is still being written is not there yet: it comes with a later call.
    Damage is declared when a sound block follows it.

    Attributes:
        path: the journal.
        meta: what `Journal.create` was given.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the header, nothing else.

        Raises:
            CorruptFileError: this is no journal or its header is damaged.
            FileNotFoundError: there is no journal.
            IsADirectoryError: a folder stands there.
            UnsupportedFileError: a newer version wrote it.
        """
        self.path = Path(path)
        with open_journal(self.path) as file:
            self._walk = Walk(self.path, file)
            self._file = _identity(os.fstat(file.fileno()))
        self.meta: dict[str, Any] = self._walk.meta
        self._size = self._walk.end
        # Length and time of the file when all that was new had been read.
        self._seen: tuple[int, int] | None = None
        self._last: dict[str, int] = {}
        self._lost: list[Lost] = []

    @property
    def offset(self) -> int:
        """How many bytes of the file have been read and understood."""
        return self._walk.end

    @property
    def size_bytes(self) -> int:
        """How long the file was at the last call of `more`."""
        return self._size

    @property
    def closed(self) -> bool:
        """Whether the writer has closed the journal, as far as it was read."""
        return self._walk.closed

    @property
    def lost(self) -> tuple[Lost, ...]:
        """All that was lost so far; also among the changes."""
        return tuple(self._lost)

    def more(self, most_bytes: int = WINDOW_BYTES) -> list[Change]:
        """What was appended since the last call, in the order of the file.

        Args:
            most_bytes: of the file, to read in this call; more only for a single
                block that is larger. Call again while `offset` is below `size_bytes`
                and something comes.

        Raises:
            CorruptFileError: another file stands there now, or this one became shorter
                than what was read: follow it anew.
            ValueError: `most_bytes` is below 1.
        """
        if most_bytes < 1:
            raise ValueError(f"most_bytes must be >= 1, got {most_bytes}.")
        with open_journal(self.path) as file:
            about = os.fstat(file.fileno())
            self._size = about.st_size
            if _identity(about) != self._file or self._size < self._walk.end:
                raise CorruptFileError(
                    f"{self.path} is another file than before: make a new Follower."
                )
            now = self._size, about.st_mtime_ns
            if now == self._seen:
                return []
            found = self._walk.more(file, self._size, window_bytes=most_bytes)
            if not found or self._walk.end == self._size:
                self._seen = now
        return [change for item in found for change in self._changes(item)]

    def _changes(self, item: Block | Lost) -> list[Change]:
        if isinstance(item, Lost):
            self._lost.append(item)
            return [item]
        if item.kind == "rewind":
            others = item.head.get("others", {})
            step = item.head["step"]
            return [
                change
                for stream in self._last
                for change in self._rewound(stream, others.get(stream, step))
            ]
        if item.kind != "records":
            return []
        # A stream's steps rise: if these do not, damage has eaten the rewind.
        changes = self._rewound(item.stream, int(item.steps[0]) - 1)
        self._last[item.stream] = int(item.steps[-1])
        return [*changes, Appended(item.stream, item.steps, item.columns)]

    def _rewound(self, stream: str, step: int) -> list[Change]:
        if stream not in self._last or self._last[stream] <= step:
            return []
        self._last[stream] = step
        return [Rewound(stream, step)]


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino
