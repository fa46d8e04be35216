"""Find records of a journal again by step or number, without holding them in memory.

The index knows where each block of the file is, and which steps and arrays it holds:
about 50 bytes for 64 records. A block is read and unpacked when somebody asks for it.
"""

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int64, Shaped

from frugax.errors import CorruptFileError

from ..journal import Appended, Change, Column, Rewound

# Columns of a table of records.
_MAX_COLUMNS = 32
# Records that are read for one curve of a short stretch: a tenth of a second.
_MAX_RECORDS = 32_768
# Blocks that are searched for the newest value of a column after a rewind.
_MAX_SEARCHED = 16


class JournalIndex:
    """Where the records of one journal are; every method is safe in any thread."""

    def __init__(self, read_block: Callable[[int, int], Appended]) -> None:
        """Know of no record yet.

        Args:
            read_block: reads a block again, such as `Follower.read_block`.
        """
        self._read_block = read_block
        # One thread appends while others answer requests.
        self._lock = threading.RLock()
        self._streams: dict[str, _StreamIndex] = {"": _StreamIndex(read_block)}
        # The arrays of a block, for a slider that moves through them.
        self._unpacked: tuple[object, np.ndarray] = None, np.empty(0)

    def apply(self, change: Change) -> None:
        """Apply the next change of the journal."""
        with self._lock:
            if isinstance(change, Rewound):
                self._streams[change.stream].rewind(change.step)
            elif isinstance(change, Appended):
                if change.stream not in self._streams:
                    self._streams[change.stream] = _StreamIndex(self._read_block)
                self._streams[change.stream].append(change)

    def outline(self) -> dict[str, Any]:
        """Describe each stream for JSON: its records, columns and newest values."""
        with self._lock:
            return {name: stream.outline() for name, stream in self._streams.items()}

    def rows(self, stream: str, *, before: int | None, count: int) -> dict[str, Any]:
        """Return whole records, newest first, for JSON.

        Args:
            stream: their stream.
            before: only records before this step.
            count: the most records.

        Raises:
            LookupError: there is no such stream, or its records are gone.
        """
        with self._lock:
            found = self._streams[stream]
            end = len(found)
            if before is not None:
                end = found.count_before(before)
            names = [*found.is_integer][:_MAX_COLUMNS]
            start = max(end - count, 0)
            steps: list[int] = []
            rows: list[dict[str, Any]] = []
            for record in reversed(range(start, end)):
                at = found.block_of(record)
                block, inside = found.read(at), record - found.start_of(at)
                steps.append(int(block.steps[inside]))
                rows.append(_row(block, names, inside))
            whole = sorted(name for name, whole in found.is_integer.items() if whole)
            columns = {"columns": names, "whole": whole}
            return {**columns, "steps": steps, "rows": rows, "older": start}

    def frame(
        self, stream: str, column: str, *, number: int | None, step: int | None
    ) -> tuple[int, int, Shaped[np.ndarray, "..."]]:
        """Return number, step and values of one array.

        Args:
            stream: its stream.
            column: its column.
            number: how many arrays of the column come before it; None to go by `step`.
            step: the newest array at or before this step is returned, or else the
                first; None for the newest of all.

        Raises:
            LookupError: there is no such array, or it is gone.
        """
        with self._lock:
            found = self._streams[stream]
            arrays = found.arrays[column]
            if number is None:
                number = found.number_at(column, step)
            if not 0 <= number < arrays.count:
                raise LookupError(
                    f"there is no frame {number}: 0 to {arrays.count - 1} are held."
                )
            block, record, at = found.locate(column, number)
            return number, int(block.steps[record]), self._unpack(block, column)[at]

    def histogram(self, stream: str, count: int) -> dict[str, Any]:
        """Return at most `count` histograms of a stream, evenly spaced, for JSON.

        Raises:
            LookupError: there is no such stream, or its records are gone.
        """
        with self._lock:
            found = self._streams[stream]
            total = found.arrays["counts"].count
            chosen = np.linspace(0, total - 1, min(count, total)).round().astype(int)
            told: dict[str, list[Any]] = {
                name: [] for name in ("steps", "counts", "low", "high")
            }
            for number in chosen.tolist():
                block, record, at = found.locate("counts", number)
                told["steps"].append(int(block.steps[record]))
                told["counts"].append(self._unpack(block, "counts")[at].tolist())
                row = _row(block, ("low", "high"), record)
                for name in ("low", "high"):
                    told[name].append(row.get(name))
            return told

    def points(
        self, stream: str, column: str, low: float, high: float
    ) -> tuple[Int64[np.ndarray, " n"], Float[np.ndarray, " n"]] | None:
        """Return steps and values of a column between two steps, and one point beside.

        None if there are too many records between, or the column is unknown.
        """
        with self._lock:
            found = self._streams.get(stream)
            if found is None or column not in found.is_integer:
                return None
            # One point more at each side, so that lines run out of the picture.
            start = max(bisect_left(found.lasts, low) - 1, 0)
            stop = min(bisect_right(found.firsts, high) + 1, found.blocks)
            if stop <= start or (
                found.start_of(stop) - found.start_of(start) > _MAX_RECORDS
            ):
                return None
            steps, values = [np.empty(0, np.int64)], [np.empty(0)]
            for at in range(start, stop):
                block = found.read(at)
                one = block.columns.get(column)
                if one is not None:
                    steps.append(block.steps[one.present])
                    values.append(np.asarray(one.values, np.float64))
        x, y = np.concatenate(steps), np.concatenate(values)
        first = max(int(np.searchsorted(x, low, side="left")) - 1, 0)
        last = int(np.searchsorted(x, high, side="right")) + 1
        return x[first:last], y[first:last]

    def _unpack(self, block: Appended, name: str) -> np.ndarray:
        column = block.columns[name]
        key = block.offset, name, len(column)
        if self._unpacked[0] != key:
            self._unpacked = key, column.values
        return self._unpacked[1]


class _ArrayColumn:
    """A column of arrays.

    Attributes:
        shape: the shape of one array.
        dtype: its dtype.
        ends: how many arrays there are up to the end of each block of the stream.
    """

    def __init__(self, column: Column, blocks: int) -> None:
        self.shape, self.dtype = column.shape, column.dtype
        self.ends = array("q", bytes(8 * blocks))

    @property
    def count(self) -> int:
        return self.start_of(len(self.ends))

    def start_of(self, at: int) -> int:
        """How many arrays come before a block."""
        return self.ends[at - 1] if at else 0


class _StreamIndex:
    """The blocks of one stream.

    Attributes:
        places: where each block is in the file, and then its bytes, in turns.
        firsts: the first step of each block.
        lasts: the last step of each block that is not void.
        ends: how many records there are up to the end of each block.
        is_integer: by column of numbers, whether all of them are whole.
        arrays: the columns of arrays.
    """

    def __init__(self, read_block: Callable[[int, int], Appended]) -> None:
        self.places, self.firsts = array("q"), array("q")
        self.lasts, self.ends = array("q"), array("q")
        self.is_integer: dict[str, bool] = {}
        self.arrays: dict[str, _ArrayColumn] = {}
        self._newest: dict[str, float] = {}  # by column of numbers
        self._read_block = read_block
        self._last_read: Appended | None = None

    def __len__(self) -> int:
        return self.start_of(self.blocks)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.ends)

    def start_of(self, at: int) -> int:
        """How many records come before a block."""
        return self.ends[at - 1] if at else 0

    def block_of(self, record: int) -> int:
        """Return the number of the block that has a record."""
        return bisect_right(self.ends, record)

    def append(self, added: Appended) -> None:
        for name, column in added.columns.items():
            if column.shape:
                if name not in self.arrays:
                    self.arrays[name] = _ArrayColumn(column, self.blocks)
                continue
            is_integer = column.dtype.kind != "f"
            self.is_integer[name] = self.is_integer.get(name, True) and is_integer
            if len(column):
                self._newest[name] = float(column.values[-1])
        self.places.extend((added.offset, added.size))
        self.firsts.append(int(added.steps[0]))
        self.lasts.append(int(added.steps[-1]))
        self.ends.append(len(self) + len(added.steps))
        for name, arrays in self.arrays.items():
            column = added.columns.get(name)
            arrays.ends.append(arrays.count + (0 if column is None else len(column)))

    def rewind(self, step: int) -> None:
        kept = bisect_right(self.firsts, step)
        del self.places[2 * kept :], self.firsts[kept:]
        del self.lasts[kept:], self.ends[kept:]
        for arrays in self.arrays.values():
            del arrays.ends[kept:]
        if kept and self.lasts[-1] > step:
            self.lasts[-1] = step
            block = self.read(kept - 1)
            self.lasts[-1] = int(block.steps[-1])
            self.ends[-1] = self.start_of(kept - 1) + len(block.steps)
            for name, arrays in self.arrays.items():
                column = block.columns.get(name)
                count = 0 if column is None else len(column)
                arrays.ends[-1] = arrays.start_of(kept - 1) + count
        self._newest.clear()
        for at in reversed(range(max(kept - _MAX_SEARCHED, 0), kept)):
            if self._newest.keys() == self.is_integer.keys():
                break
            for name, column in self.read(at).columns.items():
                if not column.shape and len(column):
                    self._newest.setdefault(name, float(column.values[-1]))

    def read(self, at: int) -> Appended:
        """Read the records of a block that are not void.

        Raises:
            LookupError: they are not in the file any more.
        """
        offset, size = self.places[2 * at : 2 * at + 2]
        block = self._last_read
        if block is None or block.offset != offset or block.size != size:
            try:
                block = self._last_read = self._read_block(offset, size)
            except (OSError, CorruptFileError) as e:
                raise LookupError("the journal has been replaced or removed.") from e
        return block.until(self.lasts[at])

    def count_before(self, step: int) -> int:
        """How many records come before a step."""
        at = bisect_left(self.firsts, step) - 1
        if at < 0:
            return 0
        inside = np.searchsorted(self.read(at).steps, step, side="left")
        return self.start_of(at) + int(inside)

    def number_at(self, column: str, step: int | None) -> int:
        """Return the number of the newest array at or before a step."""
        arrays = self.arrays[column]
        if step is None:
            return arrays.count - 1
        at = bisect_right(self.firsts, step) - 1
        if at < 0:
            return 0
        block = self.read(at)
        inside = 0
        if column in block.columns:
            records = int(np.searchsorted(block.steps, step, side="right"))
            inside = int(block.columns[column].present[:records].sum())
        return max(arrays.start_of(at) + inside - 1, 0)

    def locate(self, column: str, number: int) -> tuple[Appended, int, int]:
        """Return the block of an array, its record there, and its number there."""
        arrays = self.arrays[column]
        at = bisect_right(arrays.ends, number)
        block, inside = self.read(at), number - arrays.start_of(at)
        record = int(np.flatnonzero(block.columns[column].present)[inside])
        return block, record, inside

    def outline(self) -> dict[str, Any]:
        frames = {
            name: {
                "count": arrays.count,
                "shape": list(arrays.shape),
                "dtype": str(arrays.dtype),
            }
            for name, arrays in self.arrays.items()
        }
        latest = {
            name: to_json_number(self._newest[name])
            for name in self.is_integer
            if name in self._newest
        }
        return {
            "records": len(self),
            "columns": [*self.is_integer],
            "whole": sorted(name for name, whole in self.is_integer.items() if whole),
            "first": self.firsts[0] if self.blocks else None,
            "last": self.lasts[-1] if self.blocks else None,
            "latest": latest,
            "frames": frames,
        }


def to_json_number(value: float | None) -> float | None:
    """Round to seven digits, more than a screen shows; NaN and infinity become None."""
    if value is None or not np.isfinite(value):
        return None
    # Steps and counts must not be rounded; beyond 2**53 JavaScript cannot represent
    # every integer.
    if value == int(value) and abs(value) < 2**53:
        return value
    return float(f"{value:.7g}")


def _row(block: Appended, names: Sequence[str], record: int) -> dict[str, float | None]:
    """Return the numbers of one record by name."""
    row: dict[str, float | None] = {}
    for name in names:
        column = block.columns.get(name)
        if column is not None and not column.shape and column.present[record]:
            value = column.values[int(column.present[:record].sum())]
            row[name] = to_json_number(float(value))
    return row
