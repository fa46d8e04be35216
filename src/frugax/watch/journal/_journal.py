"""`Journal`: write the records of a run to a file, in blocks that survive a crash."""

import contextlib
import functools
import io
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from frugax import fileio
from frugax.errors import OutputError

from ._changes import NOT_CLOSED, LostRange, Rewound
from ._follower import Follower
from ._open_block import Columns, OpenBlock, record_bytes
from ._validation import as_step, as_steps, check_name, check_names
from .blocks import encode_mark
from .framing import encode_header

# Each stream costs an open block in memory and a name in the closing mark.
MAX_STREAMS = 1000
# A block that is not full is written with the first record after this time.
_MAX_BLOCK_AGE_S = 1.0


def _locked(method: Callable[..., Any]) -> Any:
    """Let one thread at a time run a method of a journal."""

    @functools.wraps(method)
    def run(self: "Journal", *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return run


class Journal:
    """An append-only file of records, in streams.

    Open one with `Journal.create` or `Journal.append_to`; close it with `close` or a
    `with` block. The stream "" holds the training steps: numbers, one record per step.
    Other streams may hold arrays too. Records are buffered in memory and written in
    blocks of 64 of a stream, fewer if they are large or a second old. A written block
    survives the death of the process, `kill -9` included; a flushed block survives the
    death of the machine. One writer may have the file open at a time, and any number
    of readers. Every method is safe to call from any thread.

    Attributes:
        meta: the `meta` of `create`.
        lost: the damage that `append_to` found; empty otherwise.
        rewinds: how often `rewind` has made records void.
    """

    def __init__(
        self,
        path: Path,
        file: io.FileIO,
        meta: dict[str, Any],
        lost: tuple[LostRange, ...],
        *,
        salt: int,
        written: int,
        streams: Mapping[str, OpenBlock],
    ) -> None:
        """Use `create` or `append_to`."""
        self.meta = meta
        self.lost = lost
        self.rewinds = 0
        self._path = path
        self._file = file
        self._end = file.seek(0, os.SEEK_END)
        self._salt = salt
        self._written = written
        self._streams = dict(streams)
        # A watcher's thread and the caller may both write.
        self._lock = threading.RLock()
        self._open_block("")
        fileio.abandon_in_children(self)

    def abandon(self) -> None:
        """Close the file in a forked child: the journal is its parent's."""
        self._lock = threading.RLock()
        # Neither a mark nor `unlock`: the parent goes on writing, under the lock that
        # both hold until one of them releases it.
        self._file.close()

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: dict[str, Any]) -> "Journal":
        """Start a new journal.

        Args:
            path: the file; missing folders are created.
            meta: a description of the run; anything that JSON can represent.

        Raises:
            OutputError: `path` exists already, or cannot be written.
            TypeError: `meta` is not a dict, or JSON cannot represent it.
            ValueError: `meta` is longer than 16 MiB.
        """
        target = Path(path)
        # See `framing`: blocks of another journal must not pass for blocks of this one.
        salt = secrets.randbits(32)
        header = _encode_meta(meta, salt)
        if target.exists():
            raise OutputError(
                f"cannot write {target}: it exists; go on with it by "
                "Journal.append_to, or choose another name."
            )
        # The header first, atomically: a journal either exists with it or not at all.
        fileio.write_whole(target, header)
        file = _open_locked(target)
        return cls(target, file, meta, (), salt=salt, written=0, streams={})

    @classmethod
    def append_to(cls, path: str | os.PathLike[str]) -> "Journal":
        """Continue a journal, even after a crash.

        An unfinished or damaged end is cut off. The loss is declared in `.lost` and in
        the file itself, so that `read` declares it from now on.

        Raises:
            CorruptFileError: the file is not a journal, or its header is damaged.
            FileNotFoundError: `path` does not exist.
            IsADirectoryError: `path` is a folder.
            OutputError: the file cannot be written, or another writer has it open.
            UnsupportedFileError: a newer version wrote the file.
        """
        target = Path(path)
        streams: dict[str, OpenBlock] = {}
        follower = Follower(target)
        with contextlib.ExitStack() as opened:
            # Locked before it is read: blocks that another writer appends meanwhile
            # would look like an unfinished end, and be cut off.
            file = opened.enter_context(_open_locked(target))
            for change in follower.poll_all():
                if isinstance(change, LostRange):
                    continue
                name = change.stream
                stream = streams.setdefault(name, OpenBlock(name))
                if isinstance(change, Rewound):
                    stream.cut(change.step)
                else:
                    stream.last_step = int(change.steps[-1])
                    stream.learn_kinds(change.columns)
            end = follower.offset
            lost = [*follower.lost]
            if damage := follower.check_tail():
                lost.append(damage)
            elif not follower.closed:
                lost.append(LostRange(end, 0, None, NOT_CLOSED))
            tail = file.seek(0, os.SEEK_END) - end
            if tail:
                try:
                    file.truncate(end)
                except OSError as e:
                    raise OutputError(fileio.write_error_reason(target, e)) from e
            opened.pop_all()  # nothing failed: the file stays open
        for name, count in follower.counts.items():
            streams.setdefault(name, OpenBlock(name)).before = count
        first = follower.written
        about: dict[str, Any] = {"salt": follower.salt, "written": first}
        meta = follower.meta
        journal = cls(target, file, meta, tuple(lost), streams=streams, **about)
        if tail or not follower.closed:
            journal._write_mark({"kind": "dropped", "first": first, "bytes": tail})
            journal._sync()
        return journal

    @property
    def closed(self) -> bool:
        """Whether the journal is closed."""
        return self._file.closed

    @property
    def last_step(self) -> int | None:
        """The last training step, which the next must exceed; None before the first."""
        return self._streams[""].last_step

    def last_step_of(self, stream: str) -> int | None:
        """The last step of any stream; None if it has no record."""
        if stream not in self._streams:
            return None
        return self._streams[stream].last_step

    @property
    def unwritten(self) -> dict[str, int]:
        """How many records of each stream are in memory and not yet in the file."""
        return {name: len(block) for name, block in tuple(self._streams.items())}

    @_locked
    def write(self, step: int, values: Mapping[str, Any], stream: str = "") -> None:
        """Append a record to the open block, after writing that block if it is full.

        Args:
            step: the training step, or whatever else the stream counts; above the step
                of the previous record.
            values: numbers or arrays of shape `()` by name. Integers and booleans are
                kept as int64, float16 and bfloat16 as float32, float32 and float64 as
                they are. Names may differ from record to record. A named stream also
                takes arrays, which keep their dtype and shape; both must be the same
                in all records of the stream. Arrays are copied.
            stream: the stream; a new name begins a new stream.

        Raises:
            OutputError: the open block cannot be written. Its records stay in memory,
                this one is not taken, and the next call tries again.
            TypeError: a value is not a real number or an array of numbers, or the step
                is not an integer.
            ValueError: the step is not above the last one; an integer is beyond int64;
                an array has another shape or over 1 GiB; a name is empty or too long;
                there are over 1000 names or streams; or the journal is closed.
        """
        self._refuse_closed()
        block = self._open_block(stream)
        step = as_step(step, after=block.last_step)
        check_names(values)
        columns = block.convert(values)
        # Written before the record is taken: if this raises, the caller still has it.
        if block.age_s > _MAX_BLOCK_AGE_S:
            self._write_block(block)
        self._extend(block, np.array([step], np.int64), columns)

    @_locked
    def extend_last(self, values: Mapping[str, Any]) -> None:
        """Write the last training step anew, with more values.

        Numbers of a step may come late, such as those of a validation. A record that is
        in the file is made void by a mark, as by `rewind`.

        Args:
            values: all values of the step, as for `write`.

        Raises:
            OutputError: the mark or a block cannot be written.
            TypeError: as for `write`.
            ValueError: as for `write`, or there is no record yet.
        """
        self._refuse_closed()
        block = self._streams[""]
        step = block.last_step
        if step is None:
            raise ValueError(f"{self._path} has no record to extend.")
        check_names(values)
        block.convert(values)  # refused before anything is void
        is_written = not len(block)
        block.cut(step - 1)
        if is_written:
            # Other streams keep all their records.
            others = {
                name: other.last_step
                for name, other in self._streams.items()
                if name and other.last_step is not None
            }
            mark = {"kind": "rewind", "first": self._written, "step": step - 1}
            self._write_mark(mark | ({"others": others} if others else {}))
        self.write(step, values)

    @_locked
    def write_many(
        self, steps: Any, columns: Mapping[str, Any], stream: str = ""
    ) -> None:
        """Append many records at once, in few blocks.

        Args:
            steps: `(n,)` integers, strictly increasing.
            columns: by name, `(n,)` numbers or `(n, ...)` arrays; every record has all.
            stream: as for `write`.

        Raises:
            OutputError: a block cannot be written. The records up to
                `last_step_of(stream)` are taken, the others are not.
            TypeError: as for `write`; no record is taken.
            ValueError: as for `write`, or a column is not as long as `steps`; no record
                is taken.
        """
        self._refuse_closed()
        block = self._open_block(stream)
        steps = as_steps(steps, after=block.last_step)
        check_names(columns)
        self._extend(block, steps, block.convert_columns(columns, len(steps)))

    @_locked
    def write_open_blocks(self) -> None:
        """Write the blocks that are open, without the sync of `flush`.

        Written records survive the death of the process, `kill -9` included.

        Raises:
            OutputError: a block cannot be written; its records stay in memory.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        self._write_blocks()

    @staticmethod
    def takes_column(name: str, column: np.ndarray, *, is_named: bool) -> bool:
        """Return whether a column of records can be stored.

        Args:
            name: the name of the column.
            column: an array whose first axis counts records.
            is_named: whether it is for a named stream, which takes arrays too.
        """
        try:
            check_names([name])
            block = OpenBlock("named" if is_named else "")
            block.convert_columns({name: column}, len(column))
        except (TypeError, ValueError):
            return False
        return True

    @_locked
    def flush(self) -> None:
        """Write all records in memory and wait until the disk has them.

        Raises:
            OutputError: a block cannot be written; its records stay in memory.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        self._write_blocks()
        self._sync()

    @_locked
    def rewind(self, step: int, *, others: Mapping[str, int] | None = None) -> None:
        """Make the records after `step` void in all streams, as if never written.

        For a run that continues from a checkpoint made at `step`. Nothing is erased: a
        mark is appended, which readers obey.

        Args:
            step: the training step of the checkpoint, >= 0. At or above the last record
                the call has no effect.
            others: for streams that count something else, such as episodes, their
                own last step at the checkpoint.

        Raises:
            OutputError: the mark cannot be written.
            TypeError: a step is not an integer.
            ValueError: the journal is closed, a stream has an invalid name, or the
                step is negative.
        """
        self._refuse_closed()
        step = as_step(step)
        if step < 0:
            raise ValueError(f"rewind needs a step >= 0, got {step}.")
        own_steps = {name: as_step(own) for name, own in (others or {}).items()}
        for name in own_steps:
            check_name(name, "a stream", min_length=0)
        after = {name: own_steps.get(name, step) for name in self._streams}
        if not any(
            block.last_step is not None and block.last_step > after[name]
            for name, block in self._streams.items()
        ):
            return
        self.rewinds += 1
        # Records in memory are dropped; those in the file are voided by the mark.
        for name, block in self._streams.items():
            block.cut(after[name])
        self._write_blocks()
        mark: dict[str, Any] = {"kind": "rewind", "first": self._written, "step": step}
        if own_steps:
            mark["others"] = own_steps
        self._write_mark(mark)
        self._sync()

    @_locked
    def close(self) -> None:
        """Flush, mark the journal as complete, and close it; idempotent.

        Raises:
            OutputError: a block cannot be written.
        """
        if self._file.closed:
            return
        try:
            self._write_blocks()
            counts = {name: b.before for name, b in self._streams.items() if b.before}
            mark = {"kind": "closed", "first": self._written, "streams": counts}
            self._write_mark(mark)
            self._sync()
        finally:
            # Also after a failed write: another process must be able to go on with the
            # journal.
            fileio.unlock(self._file)
            self._file.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if self.closed:
            raise ValueError(
                f"{self._path} is closed: write before `close`, or go on with it by "
                "Journal.append_to."
            )

    def _open_block(self, stream: str) -> OpenBlock:
        block = self._streams.get(stream)
        if block is None:
            check_name(stream, "a stream", min_length=0)
            if len(self._streams) >= MAX_STREAMS:
                raise ValueError(
                    f"a journal holds at most {MAX_STREAMS} streams: {stream!r} is one "
                    "more. Use one stream, and its steps or a column to tell apart."
                )
            block = self._streams[stream] = OpenBlock(stream)
        return block

    def _extend(self, block: OpenBlock, steps: np.ndarray, columns: Columns) -> None:
        """Add records to a block, after writing it whenever it is full."""
        size = record_bytes(columns)
        at = 0
        while at < len(steps):
            if not (room := block.room_for(size)):
                self._write_block(block)
                continue
            part = slice(at, at + room)
            values = {name: column[part] for name, column in columns.items()}
            block.extend(steps[part], values, size)
            at += room

    def _write_blocks(self) -> None:
        for block in self._streams.values():
            self._write_block(block)

    def _write_block(self, block: OpenBlock) -> None:
        if len(block):
            self._append(block.encode(self._written, salt=self._salt))
            # After the write and before `reset`: a write that fails leaves the records
            # in the block, and the next call encodes them again with the same `first`.
            self._written += len(block)
            block.reset()

    def _write_mark(self, head: dict[str, Any]) -> None:
        self._append(encode_mark(head, salt=self._salt))

    def _append(self, data: bytes) -> None:
        # A memoryview, since slicing bytes would copy the rest of the block each time.
        rest = memoryview(data)
        try:
            while rest:
                # A raw write may take fewer bytes, as on a disk that is nearly full.
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            # Best effort: if this fails too, the file has a damaged end, which readers
            # declare.
            try:
                self._file.truncate(self._end)
                self._file.seek(self._end)
            except OSError as again:
                e.add_note(f"and the unfinished block could not be cut off: {again}")
            raise OutputError(fileio.write_error_reason(self._path, e)) from e
        # Only after the whole block: `_end` is the place to cut back to when a write
        # fails.
        self._end += len(data)

    def _sync(self) -> None:
        try:
            # The kernel's copy survives the death of the process, and only the disk's
            # survives a power cut.
            os.fsync(self._file.fileno())
        except OSError as e:
            raise OutputError(fileio.write_error_reason(self._path, e)) from e


def _encode_meta(meta: object, salt: int) -> bytes:
    if not isinstance(meta, dict):
        raise TypeError(
            f"meta must be a dict, such as {{'seed': 0}}, got {meta!r:.99}."
        )
    try:
        return encode_header(meta, salt=salt)
    except TypeError as e:
        raise TypeError(
            f"meta must hold only values that JSON can represent: {e}."
        ) from e


def _open_locked(path: Path) -> io.FileIO:
    try:
        # Unbuffered: when write() returns, the kernel has the bytes, so that they
        # survive the death of this process.
        file = io.FileIO(path, "r+")
    except OSError as e:
        raise OutputError(fileio.write_error_reason(path, e)) from e
    try:
        fileio.lock(file, path)
    except OutputError:
        file.close()
        raise
    return file
