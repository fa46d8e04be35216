"""The numbers of one stream, in memory: columns that grow at the end."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Int64, Shaped

from ..journal import Column


class Growing:
    """An array that grows at its end without being copied each time."""

    def __init__(self, dtype: np.dtype) -> None:
        self._room = np.empty(1024, dtype)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    @property
    def array(self) -> np.ndarray:
        """What it holds, `(n,)`; a view, to be read before the next change."""
        return self._room[: self._n]

    def extend(self, values: np.ndarray) -> None:
        """Add to the end; a wider kind of number makes all of it wider."""
        dtype = np.result_type(self._room.dtype, values.dtype)
        needed = self._n + len(values)
        if needed > len(self._room) or dtype != self._room.dtype:
            room = np.empty(max(needed, len(self._room) * 3 // 2), dtype)
            room[: self._n] = self.array
            self._room = room
        self._room[self._n : needed] = values
        self._n = needed

    def fill(self, value: object, count: int) -> None:
        """Add `value` that many times."""
        self.extend(np.full(count, value, self._room.dtype))

    def cut(self, count: int) -> None:
        """Keep the first `count`."""
        self._n = min(self._n, count)


class Table:
    """The records of a stream, column by column, each with its own steps.

    Whole numbers are held as float64, exact to 2**53: this is for looking at.
    """

    def __init__(self) -> None:
        self._steps = Growing(np.dtype(np.int64))
        self._values: dict[str, Growing] = {}
        self._present: dict[str, Growing] = {}  # only of columns with holes
        self.whole: set[str] = set()  # columns of whole numbers or truth values

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns, in order of appearance."""
        return tuple(self._values)

    @property
    def steps(self) -> Int64[np.ndarray, " n"]:
        """The step of each record, rising."""
        return self._steps.array

    def append(
        self, steps: Int64[np.ndarray, " n"], columns: Mapping[str, Column]
    ) -> None:
        """Add records behind the last one.

        Args:
            steps: rising, above the last.
            columns: their numbers, by name.
        """
        before, n = len(self), len(steps)
        self._steps.extend(steps)
        for name, column in columns.items():
            present, given = column.present, column.values
            if name not in self._values:
                self._start(name, given.dtype, before)
            values = given if given.dtype.kind == "f" else given.astype(np.float64)
            if given.dtype.kind == "f":
                self.whole.discard(name)
            if len(given) < n:
                self._holes(name)
                spread = np.full(n, np.nan, values.dtype)
                spread[present] = values
                self._values[name].extend(spread)
                self._present[name].extend(present)
                continue
            self._values[name].extend(values)
            if name in self._present:
                self._present[name].fill(True, n)
        for name in self._values.keys() - columns.keys():
            self._holes(name)
            self._values[name].fill(np.nan, n)
            self._present[name].fill(False, n)

    def cut(self, step: int) -> None:
        """Forget the records after `step`."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        self._steps.cut(n)
        for column in (*self._values.values(), *self._present.values()):
            column.cut(n)

    def column(
        self, name: str, start: int = 0, stop: int | None = None
    ) -> tuple[Int64[np.ndarray, " m"], Shaped[np.ndarray, " m"]]:
        """Steps and values of one column, of the records `start` to `stop`.

        Raises:
            KeyError: there is no such column.
        """
        cut = slice(start, stop)
        steps, values = self.steps[cut], self._values[name].array[cut]
        if name not in self._present:
            return steps, values
        present = self._present[name].array[cut]
        return steps[present], values[present]

    def last(self, name: str) -> tuple[int, float] | None:
        """The newest value of a column and its step; None if there is none."""
        for start in (max(len(self) - 64, 0), 0):
            steps, values = self.column(name, start)
            if len(steps):
                return int(steps[-1]), float(values[-1])
        return None

    def _start(self, name: str, dtype: np.dtype, before: int) -> None:
        kind = dtype if dtype.kind == "f" else np.dtype(np.float64)
        self._values[name] = Growing(kind)
        if dtype.kind != "f":
            self.whole.add(name)
        if before:
            self._values[name].fill(np.nan, before)
            self._present[name] = Growing(np.dtype(bool))
            self._present[name].fill(False, before)

    def _holes(self, name: str) -> None:
        if name not in self._present:
            n = len(self._values[name])
            self._present[name] = Growing(np.dtype(bool))
            self._present[name].fill(True, n)
