"""`Follower`: read a journal, also one that another process still writes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._changes import NOT_CLOSED, Appended, Change, LostRange, Rewound
from .blocks import MARK, Block, decode_block
from .framing import MAGIC, MAX_META_BYTES, decode_header

# The bytes to look at in one go; more only where a block or a damage is larger.
_WINDOW_BYTES = 64 * 2**20
# Nearly all headers are shorter than this; of the others the rest is read too.
_FIRST_BYTES = 2**16


class Follower:
    """Reads a journal as it grows, without a lock or any other trace.

    A block that is just being written comes with a later call. Damage is declared once
    an intact block follows it.

    Attributes:
        path: the journal.
        meta: the `meta` of `Journal.create`.
        salt: the number from which the checksums of this file start.
        offset: how many bytes of the file have been decoded.
        size_bytes: the length of the file at the last call of `poll`.
        closed: whether the last block that was read says that the writer closed the
            file.
        lost: all lost ranges so far; `poll` also returns them among the changes.
        written: how many records were ever written before `offset`.
        counts: the same for each stream.
        missing: how many records of each stream are known to be lost.
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
        with _open(self.path) as file:
            self._file = _identity(os.fstat(file.fileno()))
            data = file.read(_FIRST_BYTES)
            if data.startswith(MAGIC) and len(data) == _FIRST_BYTES:
                data += file.read(MAX_META_BYTES)
        try:
            header, self.offset = decode_header(data)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{self.path}: {e.args[0]}") from e
        self.meta: dict[str, Any] = header["meta"]
        # Every checksum starts from it, so that a block of another journal, copied into
        # a record, is not found as a block of this one.
        self.salt: int = header["salt"]
        self.size_bytes = self.offset
        self.closed = False
        self.lost: tuple[LostRange, ...] = ()
        self.written = 0
        self.counts: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self._last_steps: dict[str, int] = {}
        # Size and mtime of the file when it had been read to its end: while they stay
        # the same, `poll` costs one fstat.
        self._seen: tuple[int, int] | None = None

    def poll(self, max_bytes: int = _WINDOW_BYTES) -> list[Change]:
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
        with _open(self.path) as file:
            status = os.fstat(file.fileno())
            self.size_bytes = status.st_size
            if _identity(status) != self._file or self.size_bytes < self.offset:
                raise CorruptFileError(
                    f"{self.path} is another file than before: make a new Follower."
                )
            now = self.size_bytes, status.st_mtime_ns
            if now == self._seen:
                return []
            # The size was taken before the read: bytes that come in between belong to
            # the next call, whose comparison with `_seen` must notice them.
            reached = self.offset
            found = self._read_on(file, max_bytes)
            if self.offset in (reached, self.size_bytes):
                self._seen = now
        self.lost += tuple(change for change in found if isinstance(change, LostRange))
        return found

    def poll_all(self, max_bytes: int = _WINDOW_BYTES) -> Iterator[Change]:
        """Yield the changes up to the end of the file, reading as `poll` does."""
        reached = -1
        # Not as long as changes come: a mark that the journal was closed gives none.
        while self.offset > reached:
            reached = self.offset
            yield from self.poll(max_bytes)

    def check_tail(self) -> LostRange | None:
        """Return the bytes after the last intact block, if there are any."""
        size = self.size_bytes - self.offset
        if size <= 0:
            return None
        try:
            self._decode(self.offset, size)
        except CorruptFileError as e:
            return LostRange(self.offset, size, None, str(e.args[0]))
        return None

    def read_block(self, offset: int, size: int) -> Appended:
        """Read records again, from the place that `Appended` named; for any thread.

        Raises:
            CorruptFileError: there is no such block any more.
            FileNotFoundError: there is no such file any more.
        """
        block = self._decode(offset, size)
        return Appended(block.stream, block.steps, block.columns, offset, size)

    def _decode(self, offset: int, size: int) -> Block:
        with _open(self.path) as file:
            file.seek(offset)
            return decode_block(file.read(size), 0, salt=self.salt)

    def _read_on(self, file: BinaryIO, window_bytes: int) -> list[Change]:
        """Scan one window up to its last intact block; `offset` becomes its end.

        Bytes after that block are not judged: they may be a block that is just being
        written.
        """
        while True:
            reached = self.offset
            file.seek(reached)
            data = file.read(max(0, min(window_bytes, self.size_bytes - reached)))
            found = self._scan_window(data)
            # A growing file is read up to its size at first only; it may be cut while
            # it is read.
            is_last = reached + len(data) >= self.size_bytes or len(data) < window_bytes
            if is_last or self.offset > reached:
                return found
            # The window ended inside a large block or a large damage.
            window_bytes *= 2

    def _scan_window(self, data: bytes) -> list[Change]:
        found: list[Change] = []
        base, end, at, damage = self.offset, 0, 0, ""
        while at < len(data):
            try:
                block = decode_block(data, at, salt=self.salt)
            except CorruptFileError as e:
                # Resynchronise at the next mark. It may be chance, or lie inside an
                # array; then decoding fails there too and the search goes on.
                damage = damage or str(e.args[0])
                at = data.find(MARK, at + 1)
                if at < 0:
                    break
                continue
            missing = block.head["first"] - self.written
            if at > end or missing:
                reason = damage or "records are missing"
                records = missing if missing >= 0 else None
                found.append(LostRange(base + end, at - end, records, reason))
            found += self._changes_of(block, base + at, block.end - at)
            end = at = block.end
            self._count_records(block)
            damage = ""
        # The next scan begins here again, so that a damage at the end of this window is
        # judged together with the block that follows it.
        self.offset = base + end
        return found

    def _changes_of(self, block: Block, offset: int, size: int) -> list[Change]:
        head = block.head
        match block.kind:
            case "dropped":
                cut_bytes = head["bytes"]
                reason = "cut off after a crash" if cut_bytes else NOT_CLOSED
                return [LostRange(offset, cut_bytes, None, reason)]
            case "rewind":
                others, step = head.get("others", {}), head["step"]
                return [
                    change
                    for stream in self._last_steps
                    for change in self._rewind(stream, others.get(stream, step))
                ]
            case "records":
                # The steps of a stream increase. If these do not, the rewind before
                # them was lost to damage.
                steps, stream = block.steps, block.stream
                changes = self._rewind(stream, int(steps[0]) - 1)
                self._last_steps[stream] = int(steps[-1])
                return [*changes, Appended(stream, steps, block.columns, offset, size)]
        return []

    def _rewind(self, stream: str, step: int) -> list[Change]:
        if self._last_steps.get(stream, step) <= step:
            return []
        self._last_steps[stream] = step
        return [Rewound(stream, step)]

    # Each block carries how many records came before it, in the file and in its
    # stream. Lost records are therefore counted although nothing of them is left.
    def _count_records(self, block: Block) -> None:
        n = len(block.steps)
        self.closed = block.kind == "closed"
        self.written = block.head["first"] + n
        declared: dict[str, int] = {}
        if self.closed:
            declared = block.head.get("streams", {})
        elif n:
            declared = {block.stream: block.head["before"]}
        for stream, before in declared.items():
            missing = before - self.counts.get(stream, 0)
            if missing > 0:
                self.missing[stream] = self.missing.get(stream, 0) + missing
            self.counts[stream] = before + n


def _open(path: Path) -> BinaryIO:
    """Open a journal for reading, unbuffered since whole blocks are read."""
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError as e:
        raise FileNotFoundError(
            e.errno, "there is no journal", os.fspath(path)
        ) from None
    except IsADirectoryError as e:
        reason = "this is a folder; the journal of a run is RUN/journal"
        raise IsADirectoryError(e.errno, reason, os.fspath(path)) from None


def _identity(status: os.stat_result) -> tuple[int, int]:
    # A journal that was replaced has another inode, even at the same length.
    return status.st_dev, status.st_ino
