"""Find records of a journal again by step or number, without holding them in memory.

The index knows where each block of the file is, and which steps and arrays it holds:
some 300 bytes for 64 records. A block is read and unpacked when somebody asks for it.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int64, Shaped

from frugax.errors import CorruptFileError

from ..journal import Appended, Change, Rewound

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
                block, inside = found.record(record)
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
            found.arrays[column]  # a LookupError where there is no such column
            count = found.count_arrays(column)
            if number is None:
                number = found.number_at(column, step)
            if not 0 <= number < count:
                raise LookupError(
                    f"there is no frame {number}: 0 to {count - 1} are held."
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
            total = found.count_arrays("counts")
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
            steps, values = [], []
            for block in found.between(low, high, _MAX_RECORDS):
                one = block.columns.get(column)
                if one is not None:
                    steps.append(block.steps[one.present])
                    values.append(np.asarray(one.values, np.float64))
        if not steps:
            return None
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


class _Block(NamedTuple):
    """The place of a block in the file, and its records that are not void.

    Attributes:
        offset: where it begins.
        size: its bytes.
        first: its first step.
        last: its last step.
        end: how many records the stream has up to its end.
        arrays: how many arrays of each column there are up to its end.
    """

    offset: int
    size: int
    first: int
    last: int
    end: int
    arrays: dict[str, int]


_BEGIN = _Block(0, 0, 0, 0, 0, {})


class _StreamIndex:
    """The blocks of one stream.

    Attributes:
        blocks: the blocks, in the order of the file.
        is_integer: by column of numbers, whether all of them are whole.
        arrays: shape and dtype of the columns of arrays.
    """

    def __init__(self, read_block: Callable[[int, int], Appended]) -> None:
        self.blocks: list[_Block] = []
        self.is_integer: dict[str, bool] = {}
        self.arrays: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        self._newest: dict[str, float] = {}  # by column of numbers
        self._read_block = read_block
        self._last_read: Appended | None = None

    def __len__(self) -> int:
        return self._before(len(self.blocks)).end

    def _before(self, at: int) -> _Block:
        return self.blocks[at - 1] if at else _BEGIN

    def append(self, added: Appended) -> None:
        before = self._before(len(self.blocks))
        arrays = before.arrays
        for name, column in added.columns.items():
            if column.shape:
                self.arrays.setdefault(name, (column.shape, column.dtype))
                arrays = arrays | {name: arrays.get(name, 0) + len(column)}
                continue
            is_integer = column.dtype.kind != "f"
            self.is_integer[name] = self.is_integer.get(name, True) and is_integer
            if len(column):
                self._newest[name] = float(column.values[-1])
        place = added.offset, added.size, int(added.steps[0]), int(added.steps[-1])
        self.blocks.append(_Block(*place, before.end + len(added.steps), arrays))

    def rewind(self, step: int) -> None:
        del self.blocks[bisect_right(self.blocks, step, key=lambda b: b.first) :]
        if self.blocks and self.blocks[-1].last > step:
            cut = self.read(len(self.blocks) - 1).until(step)
            self.blocks.pop()
            self.append(cut)
        self._newest.clear()
        for at in reversed(range(len(self.blocks))[-_MAX_SEARCHED:]):
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
        offset, size, _, last, *_ = self.blocks[at]
        block = self._last_read
        if block is None or block.offset != offset or block.size != size:
            try:
                block = self._last_read = self._read_block(offset, size)
            except (OSError, CorruptFileError) as e:
                raise LookupError("the journal has been replaced or removed.") from e
        return block.until(last)

    def record(self, number: int) -> tuple[Appended, int]:
        """Return the block of a record, and its number there."""
        at = bisect_right(self.blocks, number, key=lambda b: b.end)
        return self.read(at), number - self._before(at).end

    def count_before(self, step: int) -> int:
        """How many records come before a step."""
        at = bisect_left(self.blocks, step, key=lambda b: b.first) - 1
        if at < 0:
            return 0
        inside = np.searchsorted(self.read(at).steps, step, side="left")
        return self._before(at).end + int(inside)

    def between(self, low: float, high: float, most: int) -> Iterator[Appended]:
        """Yield the blocks between two steps; none if they hold too many records."""
        # One more at each side, so that lines run out of the picture.
        start = max(bisect_left(self.blocks, low, key=lambda b: b.last) - 1, 0)
        stop = bisect_right(self.blocks, high, key=lambda b: b.first) + 1
        stop = min(stop, len(self.blocks))
        if self._before(stop).end - self._before(start).end <= most:
            yield from map(self.read, range(start, stop))

    def count_arrays(self, column: str) -> int:
        """How many arrays a column has."""
        return self._before(len(self.blocks)).arrays.get(column, 0)

    def number_at(self, column: str, step: int | None) -> int:
        """Return the number of the newest array at or before a step."""
        if step is None:
            return self.count_arrays(column) - 1
        at = bisect_right(self.blocks, step, key=lambda b: b.first) - 1
        if at < 0:
            return 0
        block = self.read(at)
        inside = 0
        if column in block.columns:
            records = int(np.searchsorted(block.steps, step, side="right"))
            inside = int(block.columns[column].present[:records].sum())
        return max(self._before(at).arrays.get(column, 0) + inside - 1, 0)

    def locate(self, column: str, number: int) -> tuple[Appended, int, int]:
        """Return the block of an array, its record there, and its number there."""
        at = bisect_right(self.blocks, number, key=lambda b: b.arrays.get(column, 0))
        block = self.read(at)
        inside = number - self._before(at).arrays.get(column, 0)
        record = int(np.flatnonzero(block.columns[column].present)[inside])
        return block, record, inside

    def outline(self) -> dict[str, Any]:
        frames = {
            name: {
                "count": self.count_arrays(name),
                "shape": list(shape),
                "dtype": str(dtype),
            }
            for name, (shape, dtype) in self.arrays.items()
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
            "first": self.blocks[0].first if self.blocks else None,
            "last": self.blocks[-1].last if self.blocks else None,
            "latest": latest,
            "frames": frames,
        }


def to_json_number(value: float | None) -> float | None:
    """Round to seven digits, more than a screen shows; NaN and infinity become None."""
    if value is None or not np.isfinite(value):
        return None
    # Neither steps and counts nor the seconds of a clock may be rounded.
    if value == int(value) or abs(value) >= 1e9:
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
