"""Writing a journal: records of a run, appended in blocks that survive a crash."""

import contextlib
import io
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from frugax import fileio
from frugax.errors import OutputError

from ._blocks import Block, encode_mark
from ._header import encode_header
from ._stream import Stream, record_bytes
from ._values import as_step, as_steps, check_name, check_names
from ._walk import Lost, Walk, open_journal

MOST_STREAMS = 1000


class Journal:
    """An append-only file of records, in streams.

    Made by `Journal.create` or `Journal.append_to`; closed by `close` or a `with`
    block. The stream "" is that of the training steps: numbers, one record per step.
    Others may hold arrays too. Records are gathered in memory and written 64 of a
    stream at a time, fewer if they are large. A block that was written survives the
    death of the process, `kill -9` included; one that was flushed survives the death
    of the machine. Only one writer has it open at a time; readers do not matter.

    Attributes:
        meta: what `create` was given.
        lost: what `append_to` found damaged; empty otherwise.
    """

    def __init__(
        self,
        path: Path,
        file: io.FileIO,
        meta: dict[str, Any],
        lost: tuple[Lost, ...],
        *,
        salt: int,
        written: int,
        streams: Mapping[str, Stream],
    ) -> None:
        """Use `create` or `append_to`."""
        self.meta = meta
        self.lost = lost
        self._path = path
        self._file = file
        self._end = file.seek(0, os.SEEK_END)
        self._salt = salt
        self._written = written
        self._streams = dict(streams)
        self._stream("")

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: dict[str, Any]) -> "Journal":
        """Start a new journal.

        Args:
            path: where; its folder is made if need be.
            meta: what the records belong to; anything that JSON can hold.

        Raises:
            OutputError: something stands there already, or cannot be written.
            TypeError: `meta` is no dict, or holds what JSON cannot.
            ValueError: `meta` is longer than 16 MiB.
        """
        target = Path(path)
        salt = secrets.randbits(32)
        header = _header_of(meta, salt)
        if target.exists():
            raise OutputError(
                f"cannot write {target}: it exists; go on with it by "
                "Journal.append_to, or choose another name."
            )
        fileio.write_whole(target, header)
        file = _open_locked(target)
        return cls(target, file, meta, (), salt=salt, written=0, streams={})

    @classmethod
    def append_to(cls, path: str | os.PathLike[str]) -> "Journal":
        """Go on with a journal, also after a crash.

        An unfinished or damaged end is cut off. What is lost is declared in `.lost`,
        and in the file itself, so that `read` declares it from now on.

        Raises:
            CorruptFileError: this is no journal or its header is damaged.
            FileNotFoundError: there is no journal.
            IsADirectoryError: a folder stands there.
            OutputError: it cannot be written, or another writer has it open.
            UnsupportedFileError: a newer version wrote it.
        """
        target = Path(path)
        streams: dict[str, Stream] = {}
        lost: list[Lost] = []
        with open_journal(target) as reader, contextlib.ExitStack() as opened:
            # Locked before it is read: what another adds meanwhile would be cut off.
            file = opened.enter_context(_open_locked(target))
            size = os.fstat(reader.fileno()).st_size
            walk = Walk(target, reader)
            while found := walk.more(reader, size):
                for item in found:
                    if isinstance(item, Lost):
                        lost.append(item)
                    else:
                        _follow(streams, item)
            if rest := walk.rest(reader, size):
                lost.append(rest)
            tail = file.seek(0, os.SEEK_END) - walk.end
            if tail:
                try:
                    file.truncate(walk.end)
                except OSError as e:
                    raise OutputError(fileio.write_error_reason(target, e)) from e
            opened.pop_all()  # nothing failed: it stays open
        for name, count in walk.counts.items():
            streams.setdefault(name, Stream(name)).before = count
        made = cls(
            target,
            file,
            walk.meta,
            tuple(lost),
            salt=walk.salt,
            written=walk.written,
            streams=streams,
        )
        if tail:
            made._mark({"kind": "dropped", "first": walk.written, "bytes": tail})
            made._sync()
        return made

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._file.closed

    @property
    def last_step(self) -> int | None:
        """The step that the next record must be behind; None before the first."""
        return self._streams[""].last_step

    def last_step_of(self, stream: str) -> int | None:
        """The same for any stream; None also for one that is not there."""
        found = self._streams.get(stream)
        return None if found is None else found.last_step

    def write(self, step: int, values: Mapping[str, Any], stream: str = "") -> None:
        """Add a record. When 64 have gathered, the next call writes them first.

        Args:
            step: the training step, or what else this stream counts; higher than that
                of the record before.
            values: numbers or arrays of shape `()` by name. Whole numbers and truth
                values are kept as int64, float16 and bfloat16 as float32, float32
                and float64 as they are. Names may differ from record to record. With a
                named stream also arrays, which keep dtype and shape; both must be
                the same in all records of the stream. They are copied.
            stream: what the record belongs to; a new name begins a new stream.

        Raises:
            OutputError: the gathered records cannot be written. They stay in memory,
                this one is not taken, and the next call tries again.
            TypeError: a value is no real number and no array of numbers, or the step no
                whole one.
            ValueError: a step that is not higher, a whole number beyond int64, an array
                of another shape or over 1 GiB, a name that is empty or too long, over
                1000 of them or of streams, or the journal is closed.
        """
        self._refuse_closed()
        to = self._stream(stream)
        step = as_step(step, after=to.last_step)
        check_names(values)
        row = to.checked(values)
        size = record_bytes(row)
        # Before the record is taken: if this raises, the caller still has it.
        if not to.room(size):
            self._write_block(to)
        to.add(step, row, size)

    def write_many(
        self, steps: Any, columns: Mapping[str, Any], stream: str = ""
    ) -> None:
        """Add many records at once; full blocks are written at once, without a copy.

        Args:
            steps: `(n,)` whole numbers, rising.
            columns: by name, `(n,)` numbers or `(n, ...)` arrays; every record has all.
            stream: as for `write`.

        Raises:
            OutputError: a block cannot be written. The records up to
                `last_step_of(stream)` are taken, the others are not.
            TypeError: as for `write`; nothing is taken.
            ValueError: as for `write`, or a column is not as long as `steps`; nothing
                is taken.
        """
        self._refuse_closed()
        to = self._stream(stream)
        steps = as_steps(steps, after=to.last_step)
        check_names(columns)
        checked = to.checked_many(columns, len(steps))
        size = record_bytes(checked, axes=1)
        at = 0
        try:
            while at < len(steps):
                if not (room := to.room(size)):
                    self._write_block(to)
                    continue
                piece = slice(at, at + room)
                held = {name: column[piece] for name, column in checked.items()}
                to.extend(steps[piece], held, size)
                at += room
        finally:
            to.own()

    def flush(self) -> None:
        """Write what is in memory and wait until the disk has it.

        Raises:
            OutputError: it cannot be written; what is in memory stays there.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        self._write_blocks()
        self._sync()

    def rewind(self, step: int, *, others: Mapping[str, int] | None = None) -> None:
        """Make the records after `step` void, in all streams, as if not written.

        For a run that goes on from a checkpoint made at `step`. Nothing is erased: a
        mark is appended, which `read` obeys.

        Args:
            step: the training step of the checkpoint; >= 0. Above the last record
                there is nothing to do.
            others: for streams that count something else, such as episodes, their
                own last step at the checkpoint.

        Raises:
            OutputError: the mark cannot be written.
            TypeError: a step is no whole number.
            ValueError: the journal is closed, a stream's name is none, or the step is
                negative.
        """
        self._refuse_closed()
        step = as_step(step)
        if step < 0:
            raise ValueError(f"rewind needs a step >= 0, got {step}.")
        given = {name: as_step(own) for name, own in (others or {}).items()}
        for name in given:
            check_name(name, "a stream", shortest=0)
        after = {name: given.get(name, step) for name in self._streams}
        if not any(
            stream.last_step is not None and stream.last_step > after[name]
            for name, stream in self._streams.items()
        ):
            return
        for name, stream in self._streams.items():
            stream.cut(after[name])
        self._write_blocks()
        mark = {"kind": "rewind", "first": self._written, "step": step}
        self._mark(mark | ({"others": given} if given else {}))
        self._sync()

    def close(self) -> None:
        """Flush, mark the journal as complete, and close. Twice is harmless.

        Raises:
            OutputError: it cannot be written.
        """
        if not self._file.closed:
            try:
                self._write_blocks()
                counts = {
                    name: s.before for name, s in self._streams.items() if s.before
                }
                mark = {"kind": "closed", "first": self._written, "streams": counts}
                self._mark(mark)
                self._sync()
            finally:
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

    def _stream(self, name: str) -> Stream:
        found = self._streams.get(name)
        if found is None:
            check_name(name, "a stream", shortest=0)
            if len(self._streams) >= MOST_STREAMS:
                raise ValueError(
                    f"a journal holds at most {MOST_STREAMS} streams: {name!r} is one "
                    "more. Use one stream, and its steps or a column to tell apart."
                )
            found = self._streams[name] = Stream(name)
        return found

    def _write_blocks(self) -> None:
        for stream in self._streams.values():
            self._write_block(stream)

    def _write_block(self, stream: Stream) -> None:
        if stream.open:
            self._append(stream.block(self._written, salt=self._salt))
            self._written += stream.open
            stream.written()

    def _mark(self, head: dict[str, Any]) -> None:
        self._append(encode_mark(head, salt=self._salt))

    def _append(self, data: bytes) -> None:
        """Write at the end, whole or not at all.

        Raises:
            OutputError: it cannot be written.
        """
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            # Best effort: what stays is a damaged end, which `read` declares.
            try:
                self._file.truncate(self._end)
                self._file.seek(self._end)
            except OSError as again:
                e.add_note(f"and the unfinished block could not be cut off: {again}")
            raise OutputError(fileio.write_error_reason(self._path, e)) from e
        self._end += len(data)

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise OutputError(fileio.write_error_reason(self._path, e)) from e


def _header_of(meta: object, salt: int) -> bytes:
    """The header.

    Raises:
        TypeError: `meta` is no dict, or holds what JSON cannot.
    """
    if not isinstance(meta, dict):
        raise TypeError(
            f"meta must be a dict, such as {{'seed': 0}}, got {meta!r:.99}."
        )
    try:
        return encode_header(meta, salt=salt)
    except TypeError as e:
        raise TypeError(f"meta must be what JSON can hold: {e}.") from e


def _open(path: Path) -> io.FileIO:
    try:
        # Unbuffered: when write() returns, the system has the bytes, not we.
        return open(path, "r+b", buffering=0)
    except OSError as e:
        raise OutputError(fileio.write_error_reason(path, e)) from e


def _open_locked(path: Path) -> io.FileIO:
    file = _open(path)
    try:
        fileio.lock(file, path)
    except OutputError:
        file.close()
        raise
    return file


def _follow(streams: dict[str, Stream], block: Block) -> None:
    """What a written block says about where each stream has come to."""
    if block.kind == "records":
        stream = streams.setdefault(block.stream, Stream(block.stream))
        stream.last_step = int(block.steps[-1])
        stream.learn(block.columns)
    elif block.kind == "rewind":
        others = block.head.get("others", {})
        for stream in streams.values():
            stream.cut(others.get(stream.name, block.head["step"]))
