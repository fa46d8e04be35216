"""The open block of one stream: records that are not written yet."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from ._blocks import Written, encode_records
from ._columns import Column
from ._dtypes import DTYPES, code_of
from ._heads import MOST_BLOCK_BYTES, RECORDS_PER_BLOCK
from ._packing import Codec, pack, pack_smallest
from ._values import as_array, as_number, as_numbers, check_size

Row: TypeAlias = dict[str, Any]  # np.number or np.ndarray by name
# Which records have it (None: all), and the values of those.
_Part: TypeAlias = tuple[np.ndarray | None, np.ndarray]


@dataclasses.dataclass(slots=True)
class _Rows:
    """Records that came one by one."""

    steps: list[int]
    rows: list[Row]

    def parts(self) -> tuple[np.ndarray, dict[str, _Part]]:
        parts: dict[str, _Part] = {}
        for name in dict.fromkeys(name for row in self.rows for name in row):
            values = np.array([row[name] for row in self.rows if name in row])
            present = None
            if len(values) < len(self.rows):
                present = np.array([name in row for row in self.rows])
            parts[name] = present, values
        return np.array(self.steps, np.int64), parts

    def until(self, n: int) -> "_Rows":
        return _Rows(self.steps[:n], self.rows[:n])


@dataclasses.dataclass(slots=True)
class _Many:
    """Records that came as columns; all have all of them."""

    steps: np.ndarray
    columns: dict[str, np.ndarray]

    def parts(self) -> tuple[np.ndarray, dict[str, _Part]]:
        return self.steps, {name: (None, v) for name, v in self.columns.items()}

    def until(self, n: int) -> "_Many":
        return _Many(self.steps[:n], {k: v[:n] for k, v in self.columns.items()})


class Stream:
    """One stream of a journal, at its end.

    Attributes:
        name: of the stream; "" for the training steps, which have only numbers.
        before: how many of its records are in blocks.
        last_step: of the last record; None before the first.
        open: how many records are in no block yet.
    """

    def __init__(
        self, name: str, *, before: int = 0, last_step: int | None = None
    ) -> None:
        self.name = name
        self.before = before
        self.last_step = last_step
        self.open = 0
        self._bytes = 0
        self._parts: list[_Rows | _Many] = []
        # What an array of this name must be: dtype and shape; () for numbers.
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._codecs: dict[str, Codec] = {}

    def learn(self, columns: Mapping[str, Column]) -> None:
        """Take over from a written block what its arrays are."""
        for name, column in columns.items():
            code = code_of(column.dtype)
            if column.shape and code is not None:
                self._kinds[name] = code, column.shape
            else:
                self._kinds[name] = "", ()

    def checked(self, values: Mapping[str, Any]) -> Row:
        """A record's values as they are kept: numbers, and copies of arrays.

        Raises:
            TypeError: one is neither, or an array among the training steps.
            ValueError: an array is too large, or not as those before.
        """
        row: Row = {}
        for name, value in values.items():
            if self.name and np.ndim(value):
                array = as_array(name, value)
                self._fit(name, array.shape, array.dtype)
                row[name] = array
            else:
                row[name] = as_number(name, value)
                self._fit(name, (), None)
        return row

    def checked_many(self, columns: Mapping[str, Any], n: int) -> dict[str, np.ndarray]:
        """The same for columns of `n` records; arrays are copied only if need be.

        Raises:
            TypeError: one holds no numbers, or arrays among the training steps.
            ValueError: one has not `n` records, is too large or not as those before.
        """
        made: dict[str, np.ndarray] = {}
        for name, given in columns.items():
            array = np.asarray(given)
            if array.ndim < 1 or len(array) != n:
                raise ValueError(
                    f"{name!r} must hold {n} records, one for each step, got shape "
                    f"{array.shape}."
                )
            if array.ndim == 1:
                made[name] = as_numbers(name, array)
                self._fit(name, (), None)
                continue
            if not self.name:
                raise TypeError(
                    f"{name!r} must be one number for each step, got shape "
                    f"{array.shape}; arrays need a stream with a name."
                )
            code = code_of(array.dtype)
            if code is None:
                raise TypeError(
                    f"{name!r} must hold numbers or truth values, got {array.dtype}."
                )
            check_size(name, array.shape[1:], array.dtype.itemsize)
            self._fit(name, array.shape[1:], array.dtype)
            made[name] = np.ascontiguousarray(array, DTYPES[code])
        return made

    def _fit(self, name: str, shape: tuple[int, ...], dtype: np.dtype | None) -> None:
        kind = ((dtype is not None and code_of(dtype)) or "", shape)
        if self._kinds.setdefault(name, kind) != kind:
            code, was = self._kinds[name]
            raise ValueError(
                f"{name!r} in stream {self.name!r} has been {code or 'a number'}"
                f"{list(was) if was else ''} so far, got {kind[0] or 'a number'}"
                f"{list(shape) if shape else ''}: use another stream or name."
            )

    def room(self, record_bytes: int) -> int:
        """How many records of that size the open block can still take."""
        if not self.open:
            return max(
                1, min(RECORDS_PER_BLOCK, MOST_BLOCK_BYTES // (record_bytes or 1))
            )
        rest = (MOST_BLOCK_BYTES - self._bytes) // (record_bytes or 1)
        return max(0, min(RECORDS_PER_BLOCK - self.open, rest))

    def add(self, step: int, row: Row, record_bytes: int) -> None:
        """Take a record."""
        if not self._parts or not isinstance(self._parts[-1], _Rows):
            self._parts.append(_Rows([], []))
        last = self._parts[-1]
        assert isinstance(last, _Rows)  # just made so
        last.steps.append(step)
        last.rows.append(row)
        self._took(1, step, record_bytes)

    def extend(
        self, steps: np.ndarray, columns: dict[str, np.ndarray], record_bytes: int
    ) -> None:
        """Take as many records as there is room for; arrays are not copied yet."""
        self._parts.append(_Many(steps, columns))
        self._took(len(steps), int(steps[-1]), record_bytes)

    def _took(self, n: int, step: int, record_bytes: int) -> None:
        self.open += n
        self._bytes += n * record_bytes
        self.last_step = step

    def own(self) -> None:
        """Copy what still belongs to the caller."""
        if self._parts and isinstance(last := self._parts[-1], _Many):
            columns = {name: v.copy() for name, v in last.columns.items()}
            self._parts[-1] = _Many(last.steps.copy(), columns)

    def cut(self, step: int) -> None:
        """Forget the open records after `step`."""
        if self.last_step is None or self.last_step <= step:
            return
        kept: list[_Rows | _Many] = []
        for part in self._parts:
            n = int(np.searchsorted(np.asarray(part.steps), step, side="right"))
            if n:
                kept.append(part.until(n))
        self._parts = kept
        # The bytes only decide how early the block is written: what was cut off may
        # stay counted.
        self.open = sum(len(part.steps) for part in kept)
        self.last_step = step

    def block(self, first: int, *, salt: int) -> bytes:
        """The open block, encoded; it stays open until `written`."""
        parts = [part.parts() for part in self._parts]
        steps = parts[0][0]
        if len(parts) > 1:
            steps = np.concatenate([steps for steps, _ in parts])
        names = dict.fromkeys(name for _, columns in parts for name in columns)
        columns: dict[str, Written] = {}
        for name in names:
            present, values = _joined(name, parts)
            columns[name] = self._packed(name, present, values)
        head = {"stream": self.name, "first": first, "before": self.before}
        return encode_records(head, steps, columns, salt=salt)

    def _packed(
        self, name: str, present: np.ndarray | None, values: np.ndarray
    ) -> Written:
        code = code_of(values.dtype)
        assert code is not None  # checked before it was taken
        if not self._kinds[name][1]:
            return Written(code, present, values)
        values = np.ascontiguousarray(values)
        codec = self._codecs.get(name)
        if codec is None:
            codec, packed = pack_smallest(values, code)
            self._codecs[name] = codec
        else:
            packed = pack(values, code, codec)
        return Written(code, present, None, values.shape[1:], codec, packed)

    def written(self) -> None:
        """The open block is in the file; begin another."""
        self.before += self.open
        self.open = self._bytes = 0
        self._parts.clear()


def record_bytes(row: Mapping[str, Any], *, axes: int = 0) -> int:
    """What the arrays of a record take; with `axes` of 1, of columns of records."""
    return sum(
        math.prod(value.shape[axes:]) * value.dtype.itemsize
        for value in row.values()
        if value.ndim > axes
    )


def _joined(name: str, parts: list[tuple[np.ndarray, dict[str, _Part]]]) -> _Part:
    if len(parts) == 1:
        return parts[0][1][name]
    masks = [
        np.zeros(len(steps), bool)
        if name not in columns
        else np.ones(len(steps), bool)
        if (present := columns[name][0]) is None
        else present
        for steps, columns in parts
    ]
    present = np.concatenate(masks)
    values = np.concatenate([c[name][1] for _, c in parts if name in c])
    return (None if present.all() else present), values
