"""Walking over the blocks of a journal from its start, or from where one stopped."""

import dataclasses
import os
from pathlib import Path
from typing import BinaryIO

from frugax.errors import CorruptFileError, UnsupportedFileError

from ._blocks import MARK, Block, decode_block
from ._header import LONGEST_META, MAGIC, decode_header

# So much of a file is looked at at once; more only where a block or damage is larger.
WINDOW_BYTES = 64 * 2**20
# A header is seldom longer than this; if it is, the rest is read too.
_FIRST_BYTES = 2**16


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A stretch of a journal that could not be read.

    Attributes:
        at: offset of its first byte in the file.
        bytes: how long it is, or was before `Journal.append_to` cut it off.
        records: how many records it held, known by the count that the next sound
            block carries; None at the end of a file, where nothing follows. A
            block holds at most 64.
        why: what is wrong with it.
    """

    at: int
    bytes: int
    records: int | None
    why: str


class Walk:
    """Where a walk over all blocks has come to.

    Attributes:
        meta: what `Journal.create` was given.
        salt: what the checksums of this file start from.
        end: offset behind the last sound block.
        written: how many records were ever written up to there.
        counts: the same for each stream.
        missing: how many of a stream's records are known to be lost.
        closed: whether the last block says that the writer closed it.
    """

    def __init__(self, path: str | os.PathLike[str], file: BinaryIO) -> None:
        """Read the header.

        Raises:
            CorruptFileError: this is no journal or its header is damaged.
            UnsupportedFileError: a newer version wrote it.
        """
        data = file.read(_FIRST_BYTES)
        if data.startswith(MAGIC) and len(data) == _FIRST_BYTES:
            data += file.read(LONGEST_META)
        try:
            header, self.end = decode_header(data)
        except (CorruptFileError, UnsupportedFileError) as e:
            raise type(e)(f"{os.fspath(path)}: {e.args[0]}") from e
        self.meta = header["meta"]
        self.salt = header["salt"]
        self.written = 0
        self.counts: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.closed = False

    def more(
        self, file: BinaryIO, size: int, *, window_bytes: int = WINDOW_BYTES
    ) -> list[Block | Lost]:
        """Go on to the last sound block of a window; none are left if it is empty.

        What lies behind it is not judged: it may be a block that is being written.

        Args:
            file: the journal, open.
            size: how long it is.
            window_bytes: how much to look at.
        """
        while True:
            file.seek(self.end)
            data = file.read(max(0, min(window_bytes, size - self.end)))
            if (found := self._walk(data)) or self.end + len(data) >= size:
                return found
            if len(data) < window_bytes:  # it was cut while we read
                return found
            window_bytes *= 2

    def rest(self, file: BinaryIO, size: int) -> Lost | None:
        """What lies behind the last sound block, if there is something."""
        if size <= self.end:
            return None
        file.seek(self.end)
        try:
            decode_block(file.read(size - self.end), 0, salt=self.salt)
        except CorruptFileError as e:
            return Lost(self.end, size - self.end, None, str(e.args[0]))
        return None

    def _walk(self, data: bytes) -> list[Block | Lost]:
        found: list[Block | Lost] = []
        base, end, at, damage = self.end, 0, 0, ""
        while at < len(data):
            try:
                block = decode_block(data, at, salt=self.salt)
            except CorruptFileError as e:
                damage = damage or str(e.args[0])
                at = data.find(MARK, at + 1)
                if at < 0:
                    break
                continue
            missing = block.head["first"] - self.written
            if at > end or missing:
                why = damage or "records are missing"
                records = missing if missing >= 0 else None
                found.append(Lost(base + end, at - end, records, why))
            if block.kind == "dropped":
                cut = block.head["bytes"]
                found.append(Lost(base + at, cut, None, "cut off after a crash"))
            found.append(block)
            self._count(block)
            end = at = block.end
            damage = ""
        self.end = base + end
        return found

    def _count(self, block: Block) -> None:
        n = len(block.steps)
        self.closed = block.kind == "closed"
        self.written = block.head["first"] + n
        said = {block.stream: block.head["before"]} if n else {}
        if self.closed:
            said = block.head.get("streams", {})
        for stream, before in said.items():
            missing = before - self.counts.get(stream, 0)
            if missing > 0:
                self.missing[stream] = self.missing.get(stream, 0) + missing
            self.counts[stream] = before + n


def open_journal(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a journal to read; unbuffered, since blocks are read as a whole.

    Raises:
        FileNotFoundError: there is no journal.
        IsADirectoryError: a folder stands there.
    """
    try:
        return open(Path(path), "rb", buffering=0)
    except FileNotFoundError as e:
        raise FileNotFoundError(
            e.errno, "there is no journal", os.fspath(path)
        ) from None
    except IsADirectoryError as e:
        why = "this is a folder; of a run's folder say RUN/journal"
        raise IsADirectoryError(e.errno, why, os.fspath(path)) from None
