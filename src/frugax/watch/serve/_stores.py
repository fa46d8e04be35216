"""Hold one stream's numbers and its newest arrays in memory, for the live page."""

import bisect
import dataclasses
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int64, Shaped

from ..journal import Column

# Packed bytes of one column to keep; beyond it the oldest blocks are dropped.
_MAX_PACKED_BYTES = 256 * 2**20
# Unpacked blocks to keep for a scrubber that moves back and forth.
_MAX_UNPACKED_BYTES = 64 * 2**20


class GrowingArray:
    """An array that grows at its end in amortised constant time."""

    def __init__(self, dtype: np.dtype) -> None:
        self._buffer = np.empty(1024, dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def array(self) -> Shaped[np.ndarray, " n"]:
        """The content as a view, which is valid until the next change."""
        return self._buffer[: self._n]

    def extend(self, values: Shaped[np.ndarray, " m"]) -> None:
        """Append values; a wider dtype widens the whole array."""
        # Growing by half keeps the copies linear in the final size.
        dtype = np.result_type(self._buffer.dtype, values.dtype)
        needed = self._n + len(values)
        if needed > len(self._buffer) or dtype != self._buffer.dtype:
            buffer = np.empty(max(needed, len(self._buffer) * 3 // 2), dtype)
            buffer[: self._n] = self.array
            self._buffer = buffer
        self._buffer[self._n : needed] = values
        self._n = needed

    def fill(self, value: object, count: int) -> None:
        """Append `value` that many times."""
        self.extend(np.full(count, value, self._buffer.dtype))

    def truncate(self, count: int) -> None:
        """Keep the first `count` values."""
        self._n = min(self._n, count)


class NumberTable:
    """The records of a stream, column by column, each with steps of its own.

    Integers are kept as float64, exact to 2**53, which is enough for display.

    Attributes:
        integer_columns: the columns of integers or booleans.
    """

    def __init__(self) -> None:
        self._steps = GrowingArray(np.dtype(np.int64))
        self._values: dict[str, GrowingArray] = {}
        self._present: dict[str, GrowingArray] = {}  # only for columns with gaps
        self.integer_columns: set[str] = set()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order of appearance."""
        return tuple(self._values)

    @property
    def steps(self) -> Int64[np.ndarray, " n"]:
        """The step of each record, strictly increasing."""
        return self._steps.array

    def append(
        self, steps: Int64[np.ndarray, " n"], columns: Mapping[str, Column]
    ) -> None:
        """Append records."""
        before, n = len(self), len(steps)
        self._steps.extend(steps)
        for name, column in columns.items():
            present, values = column.present, column.values
            if name not in self._values:
                self._start_column(name, values.dtype, before)
            if values.dtype.kind == "f":
                self.integer_columns.discard(name)
            else:
                values = values.astype(np.float64)
            if len(values) < n:
                self._track_gaps(name)
                spread = np.full(n, np.nan, values.dtype)
                spread[present] = values
                self._values[name].extend(spread)
                self._present[name].extend(present)
                continue
            self._values[name].extend(values)
            if name in self._present:
                self._present[name].fill(True, n)
        for name in self._values.keys() - columns.keys():
            self._track_gaps(name)
            self._values[name].fill(np.nan, n)
            self._present[name].fill(False, n)

    def rewind(self, step: int) -> None:
        """Forget the records after `step`."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        self._steps.truncate(n)
        for column in (*self._values.values(), *self._present.values()):
            column.truncate(n)

    def column(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> tuple[Int64[np.ndarray, " m"], Shaped[np.ndarray, " m"]]:
        """Return steps and values of one column, of the records `start` to `stop`."""
        rows = slice(start, stop)
        steps, values = self.steps[rows], self._values[name].array[rows]
        if name not in self._present:
            return steps, values
        present = self._present[name].array[rows]
        return steps[present], values[present]

    def last_value(self, name: str) -> float | None:
        """Return the newest value of a column; None if it has no value."""
        # The last 64 records first: searching a column of a million takes longer.
        for start in (max(len(self) - 64, 0), 0):
            _, values = self.column(name, start)
            if len(values):
                return float(values[-1])
        return None

    def _start_column(self, name: str, dtype: np.dtype, before: int) -> None:
        if dtype.kind != "f":
            self.integer_columns.add(name)
            dtype = np.dtype(np.float64)
        self._values[name] = GrowingArray(dtype)
        if before:
            self._values[name].fill(np.nan, before)
            self._present[name] = GrowingArray(np.dtype(bool))
            self._present[name].fill(False, before)

    def _track_gaps(self, name: str) -> None:
        if name not in self._present:
            self._present[name] = GrowingArray(np.dtype(bool))
            self._present[name].fill(True, len(self._values[name]))


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    first: int  # number of its first frame among all of the column
    column: Column
    packed_bytes: int


class FrameStore:
    """The newest frames of one column by number, packed as the journal packs them."""

    def __init__(self, *, max_bytes: int = _MAX_PACKED_BYTES) -> None:
        self._max_bytes = max_bytes
        self._steps = GrowingArray(np.dtype(np.int64))
        self._blocks: list[_Block] = []
        self._bytes = 0
        # Least recently used blocks come first.
        self._unpacked: OrderedDict[int, np.ndarray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def first(self) -> int:
        """The number of the oldest frame that is still kept."""
        return self._blocks[0].first if self._blocks else len(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one frame."""
        return self._blocks[-1].column.shape if self._blocks else ()

    @property
    def dtype(self) -> str:
        """The dtype of the frames."""
        return str(self._blocks[-1].column.dtype) if self._blocks else "-"

    @property
    def steps(self) -> Int64[np.ndarray, " n"]:
        """The step of every frame, kept or dropped."""
        return self._steps.array

    def append(self, steps: Int64[np.ndarray, " n"], column: Column) -> None:
        """Append frames."""
        stored = column.stored
        if isinstance(stored, np.ndarray):
            size = stored.nbytes
        else:
            # Copied: a view would keep the whole window of the file in memory.
            stored = dataclasses.replace(stored, body=bytes(stored.body))
            column = dataclasses.replace(column, stored=stored)
            size = len(stored.body)
        self._blocks.append(_Block(len(self), column, size))
        self._steps.extend(steps)
        self._bytes += size
        while self._bytes > self._max_bytes and len(self._blocks) > 1:
            oldest = self._blocks.pop(0)
            self._bytes -= oldest.packed_bytes
            self._unpacked.pop(oldest.first, None)

    def rewind(self, step: int) -> None:
        """Forget the frames after `step`."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        self._steps.truncate(n)
        # A block that is cut has other frames at the same number.
        self._unpacked.clear()
        while self._blocks and self._blocks[-1].first >= n:
            self._bytes -= self._blocks.pop().packed_bytes
        if self._blocks:
            last = self._blocks[-1]
            if last.first + len(last.column) > n:
                kept = dataclasses.replace(last.column, kept=n - last.first)
                self._blocks[-1] = dataclasses.replace(last, column=kept)

    def frame(self, number: int) -> Shaped[np.ndarray, "..."]:
        """Return one frame."""
        if not self.first <= number < len(self):
            raise LookupError(
                f"there is no frame {number}: {self.first} to {len(self) - 1} are held."
            )
        at = bisect.bisect_right(self._blocks, number, key=lambda block: block.first)
        block = self._blocks[at - 1]
        return self._unpack(block)[number - block.first]

    def _unpack(self, block: _Block) -> np.ndarray:
        values = self._unpacked.pop(block.first, None)
        if values is None:
            values = block.column.values
        self._unpacked[block.first] = values
        while (
            len(self._unpacked) > 1
            and sum(a.nbytes for a in self._unpacked.values()) > _MAX_UNPACKED_BYTES
        ):
            self._unpacked.popitem(last=False)
        return values
