"""Find the records of a journal file, what makes them void, and the ranges lost."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from jaxtyping import Int64

from frugax.errors import CorruptFileError, UnsupportedFileError

from .blocks import MARK, Block, decode_block
from .framing import MAGIC, MAX_META_BYTES, decode_header
from .packing import Column

NOT_CLOSED = "it was not closed: records of the last second may be missing"

# The bytes to look at in one go; more only where a block or a damage is larger.
WINDOW_BYTES = 64 * 2**20
# Nearly all headers are shorter than this; of the others the rest is read too.
_FIRST_BYTES = 2**16


@dataclasses.dataclass(frozen=True, slots=True)
class LostRange:
    """A range of a journal that could not be read.

    Attributes:
        offset: the offset of its first byte in the file.
        size_bytes: its length, or its length before `Journal.append_to` cut it off.
        records: how many records it held, by the count in the next intact block; None
            at the end of a file, where no block follows. A block holds at most 64.
        reason: the first error in it.
    """

    offset: int
    size_bytes: int
    records: int | None
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """Records that were added.

    Attributes:
        stream: the stream that they belong to.
        steps: their steps, strictly increasing.
        columns: their values by name.
        offset: where their block begins in the file.
        size: its length in bytes.
    """

    stream: str
    steps: Int64[np.ndarray, " n"]
    columns: Mapping[str, Column]
    offset: int
    size: int

    def until(self, step: int) -> "Appended":
        """Return the records up to a step."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        if n == len(self.steps):
            return self
        columns = {
            name: column.head(n)
            for name, column in self.columns.items()
            if column.present[:n].any()
        }
        return dataclasses.replace(self, steps=self.steps[:n], columns=columns)


@dataclasses.dataclass(frozen=True, slots=True)
class Rewound:
    """A stream was rewound: its records after a step have become void.

    Attributes:
        stream: the stream.
        step: the last step that still counts.
    """

    stream: str
    step: int


Change: TypeAlias = Appended | Rewound | LostRange


class Scanner:
    """Reads the changes of a journal, and counts the records that are missing.

    Attributes:
        meta: the `meta` of `Journal.create`.
        salt: the number from which the checksums of this file start.
        end: the offset after the last intact block.
        written: how many records were ever written before `end`.
        counts: the same for each stream.
        missing: how many records of each stream are known to be lost.
        closed: whether the last block says that the writer closed the file.
    """

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO) -> None:
        """Read the header."""
        data = file.read(_FIRST_BYTES)
        if data.startswith(MAGIC) and len(data) == _FIRST_BYTES:
            data += file.read(MAX_META_BYTES)
        try:
            header, self.end = decode_header(data)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{os.fspath(path)}: {e.args[0]}") from e
        self.meta = header["meta"]
        # Every checksum starts from it, so that a block of another journal, copied into
        # a record, is not found as a block of this one.
        self.salt = header["salt"]
        self.written = 0
        self.counts: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.closed = False
        self._last_steps: dict[str, int] = {}

    def scan(
        self, file: BinaryIO, size: int, *, window_bytes: int = WINDOW_BYTES
    ) -> list[Change]:
        """Scan one window up to its last intact block; `end` stays at the file's end.

        Bytes after that block are not judged: they may be a block that is just being
        written.
        """
        while True:
            reached = self.end
            file.seek(reached)
            data = file.read(max(0, min(window_bytes, size - reached)))
            found = self._scan_window(data)
            # A growing file is read up to `size` only, as the caller found it; it may
            # be cut while it is read.
            is_last = reached + len(data) >= size or len(data) < window_bytes
            if is_last or self.end > reached:
                return found
            # The window ended inside a large block or a large damage.
            window_bytes *= 2

    def scan_all(self, file: BinaryIO, size: int) -> Iterator[Change]:
        """Yield all changes up to the last intact block."""
        reached = -1
        while self.end > reached:
            reached = self.end
            yield from self.scan(file, size)

    def check_tail(self, file: BinaryIO, size: int) -> LostRange | None:
        """Return the bytes after the last intact block, if there are any."""
        if size <= self.end:
            return None
        file.seek(self.end)
        try:
            decode_block(file.read(size - self.end), 0, salt=self.salt)
        except CorruptFileError as e:
            return LostRange(self.end, size - self.end, None, str(e.args[0]))
        return None

    def _scan_window(self, data: bytes) -> list[Change]:
        found: list[Change] = []
        base, end, at, damage = self.end, 0, 0, ""
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
        self.end = base + end
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


def open_journal(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a journal for reading, unbuffered since whole blocks are read."""
    try:
        return open(Path(path), "rb", buffering=0)
    except FileNotFoundError as e:
        raise FileNotFoundError(
            e.errno, "there is no journal", os.fspath(path)
        ) from None
    except IsADirectoryError as e:
        reason = "this is a folder; the journal of a run is RUN/journal"
        raise IsADirectoryError(e.errno, reason, os.fspath(path)) from None
