"""Writing a journal: metrics of a run, appended in blocks that survive a crash."""

import io
import operator
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from frugax import files
from frugax.errors import OutputError

from ._blocks import (
    LONGEST_NAME,
    MOST_COLUMNS,
    RECORDS_PER_BLOCK,
    encode_header,
    encode_mark,
    encode_records,
)
from ._records import Lost, scan


class Journal:
    """An append-only file of metrics, one record per training step.

    Made by `Journal.create` or `Journal.append_to`; closed by `close` or a `with`
    block. Records are gathered in memory and written 64 at a time. A block that was
    written survives the death of the process, `kill -9` included; one that was
    flushed survives the death of the machine.

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
        written: int,
        last_step: int | None,
    ) -> None:
        """Use `create` or `append_to`."""
        self.meta = meta
        self.lost = lost
        self._path = path
        self._file = file
        self._end = file.seek(0, os.SEEK_END)
        self._written = written
        self._last_step = last_step
        self._steps: list[int] = []
        self._records: list[dict[str, np.number]] = []

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: dict[str, Any]) -> "Journal":
        """Start a new journal.

        Args:
            path: where; its folder is made if need be.
            meta: what the records belong to; anything that JSON can hold.

        Raises:
            OutputError: something stands there already, or cannot be written.
            TypeError: `meta` holds what JSON cannot.
            ValueError: `meta` is longer than 16 MiB.
        """
        target = Path(path)
        header = encode_header(meta)
        if target.exists():
            raise OutputError(
                f"cannot write {target}: it exists; go on with it by "
                "Journal.append_to, or choose another name."
            )
        files.write_whole(target, header)
        return cls(target, _open(target), meta, (), written=0, last_step=None)

    @classmethod
    def append_to(cls, path: str | os.PathLike[str]) -> "Journal":
        """Go on with a journal, also after a crash.

        An unfinished or damaged end is cut off. What is lost is declared in `.lost`,
        and in the file itself, so that `read` declares it from now on.

        Raises:
            CorruptFileError: this is no journal or its header is damaged.
            OutputError: it cannot be written.
            UnsupportedFileError: a newer version wrote it.
        """
        target = Path(path)
        found = scan(target)
        last: int | None = None
        for block in found.blocks:
            if block.head["kind"] == "rewind" and last is not None:
                last = min(last, block.head["step"])
            elif block.head["kind"] == "records":
                last = int(block.steps[-1])
        file = _open(target)
        tail = file.seek(0, os.SEEK_END) - found.end
        if tail:
            try:
                file.truncate(found.end)
            except OSError as e:
                file.close()
                raise OutputError(files.why_not_written(target, e)) from e
        made = cls(
            target, file, found.meta, found.lost, written=found.written, last_step=last
        )
        if tail:
            made._append(
                encode_mark({"kind": "dropped", "first": found.written, "bytes": tail})
            )
            made._sync()
        return made

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        return self._file.closed

    @property
    def last_step(self) -> int | None:
        """The step that the next record must be behind; None before the first."""
        return self._last_step

    def write(
        self, step: int, values: Mapping[str, float | np.generic | np.ndarray]
    ) -> None:
        """Add a record. When 64 have gathered, the next call writes them first.

        Args:
            step: the training step; higher than that of the record before.
            values: numbers or arrays of shape `()` by name. Whole numbers and truth
                values are kept as int64, float16 and bfloat16 as float32, float32
                and float64 as they are. Names may differ from record to record.

        Raises:
            OutputError: the gathered records cannot be written. They stay in memory,
                this one is not taken, and the next call tries again.
            TypeError: a value is no real number, or the step no whole one.
            ValueError: a step that is not higher, a whole number beyond int64, a
                name that is empty or too long, over 1000 of them, or the journal is
                closed.
        """
        self._refuse_closed()
        step = as_step(step, after=self._last_step)
        check_names(values)
        record = {name: as_number(name, value) for name, value in values.items()}
        # Before the record is taken: if this raises, the caller still has it.
        if len(self._steps) == RECORDS_PER_BLOCK:
            self._write_block()
        self._steps.append(step)
        self._records.append(record)
        self._last_step = step

    def flush(self) -> None:
        """Write what is in memory and wait until the disk has it.

        Raises:
            OutputError: it cannot be written; what is in memory stays there.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        self._write_block()
        self._sync()

    def rewind(self, step: int) -> None:
        """Make the records after `step` void, as if they had not been written.

        For a run that goes on from a checkpoint made at `step`. Nothing is erased: a
        mark is appended, which `read` obeys.

        Raises:
            OutputError: the mark cannot be written.
            TypeError: the step is no whole number.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        step = as_step(step)
        if self._last_step is None or self._last_step <= step:
            return
        keep = sum(s <= step for s in self._steps)
        del self._steps[keep:], self._records[keep:]
        self._write_block()
        mark = {"kind": "rewind", "first": self._written, "step": step}
        self._append(encode_mark(mark))
        self._sync()
        self._last_step = step

    def close(self) -> None:
        """Flush, mark the journal as complete, and close. Twice is harmless.

        Raises:
            OutputError: it cannot be written.
        """
        if not self._file.closed:
            try:
                self._write_block()
                self._append(encode_mark({"kind": "closed", "first": self._written}))
                self._sync()
            finally:
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

    def _write_block(self) -> None:
        if self._steps:
            self._append(encode_records(self._written, self._steps, self._records))
            self._written += len(self._steps)
            self._steps.clear()
            self._records.clear()

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
            raise OutputError(files.why_not_written(self._path, e)) from e
        self._end += len(data)

    def _sync(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise OutputError(files.why_not_written(self._path, e)) from e


def _open(path: Path) -> io.FileIO:
    try:
        # Unbuffered: when write() returns, the system has the bytes, not we.
        return open(path, "r+b", buffering=0)
    except OSError as e:
        raise OutputError(files.why_not_written(path, e)) from e


def as_step(step: object, *, after: int | None = None) -> int:
    """The number of a step, as a record carries it.

    Raises:
        TypeError: it is no whole number.
        ValueError: it is beyond int64, or not above `after`.
    """
    try:
        number = operator.index(step)  # pyright: ignore[reportArgumentType]
    except TypeError as e:
        raise TypeError(f"step must be a whole number, got {step!r:.99}.") from e
    if after is not None and number <= after:
        raise ValueError(
            f"step must be above {after}, got {number}. Use rewind to write steps anew."
        )
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"step must fit in int64, got {number}.")
    return number


def as_number(name: str, value: object) -> np.number:
    """The value as int64, float32 or float64.

    Raises:
        TypeError: it is no real number.
        ValueError: it is beyond int64.
    """
    array = np.asarray(value)
    if array.shape != ():
        raise TypeError(f"{name!r} must be one number, got shape {array.shape}.")
    if not is_real(array.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value!r:.99}.")
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind == "u" and array > np.iinfo(np.int64).max:
        raise ValueError(f"{name!r} must fit in int64, got {array}.")
    if kind in "biu":
        return np.int64(array)
    return np.float64(array) if width == 8 else np.float32(array)


def is_real(dtype: np.dtype) -> bool:
    """Whether `as_number` takes what has this dtype.

    ml_dtypes' bfloat16 and float8 kinds are widened exactly, as float16 is.
    """
    return (
        dtype.kind in "biu"
        or (dtype.kind == "f" and dtype.itemsize <= 8)
        or dtype.name.startswith(("bfloat", "float8"))
    )


def check_names(names: Collection[object]) -> None:
    """Refuse what a block's head cannot hold.

    Raises:
        ValueError: there are too many, or one is no text, empty or too long.
    """
    if len(names) > MOST_COLUMNS:
        raise ValueError(
            f"a record holds at most {MOST_COLUMNS} values, got {len(names)}."
        )
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(
                f"a name must be text of 1 to {LONGEST_NAME} characters, got "
                f"{name!r:.99}."
            )
        try:
            name.encode()
        except UnicodeEncodeError as e:
            raise ValueError(f"the name {name!r} is no Unicode text.") from e
