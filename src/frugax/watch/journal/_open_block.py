"""The write buffer of one stream of a journal, which is encoded as one block."""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from ._validation import as_array, as_number, as_numbers, check_dtype, check_size
from .blocks import MAX_BLOCK_BYTES, RECORDS_PER_BLOCK, EncodedColumn, encode_records
from .packing import DTYPES, Codec, Column, code_of, pack, pack_smallest

Row: TypeAlias = dict[str, Any]  # np.number or np.ndarray by name
# Which records have a value (None: all of them), and the values of those.
_Values: TypeAlias = tuple[np.ndarray | None, np.ndarray]


@dataclasses.dataclass(slots=True)
class _Rows:
    """Records that were added one by one."""

    steps: list[int]
    rows: list[Row]

    def to_columns(self) -> tuple[np.ndarray, dict[str, _Values]]:
        columns: dict[str, _Values] = {}
        for name in dict.fromkeys(name for row in self.rows for name in row):
            values = np.array([row[name] for row in self.rows if name in row])
            present = None
            if len(values) < len(self.rows):
                present = np.array([name in row for row in self.rows])
            columns[name] = present, values
        return np.array(self.steps, np.int64), columns

    def head(self, n: int) -> "_Rows":
        return _Rows(self.steps[:n], self.rows[:n])


@dataclasses.dataclass(slots=True)
class _Columns:
    """Records that were added as columns, so that every record has all names."""

    steps: np.ndarray
    columns: dict[str, np.ndarray]

    def to_columns(self) -> tuple[np.ndarray, dict[str, _Values]]:
        return self.steps, {name: (None, v) for name, v in self.columns.items()}

    def head(self, n: int) -> "_Columns":
        return _Columns(self.steps[:n], {k: v[:n] for k, v in self.columns.items()})


class OpenBlock:
    """The records of one stream since its last written block; `len` counts them.

    Attributes:
        name: the name of the stream; "" for the training steps, which have numbers
            only.
        before: how many records of the stream are written.
        last_step: the last step, written or not; None before the first.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.before = 0
        self.last_step: int | None = None
        self._count = 0
        self._bytes = 0
        self._since = 0.0  # when the first of its records came
        self._parts: list[_Rows | _Columns] = []
        # Dtype and shape of the arrays of each name; ("", ()) for numbers.
        self._kinds: dict[str, tuple[str, tuple[int, ...]]] = {}
        # The codec that was smaller for the first block of each name. Measuring both
        # for every block would double the cost of packing.
        self._codecs: dict[str, Codec] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def age_s(self) -> float:
        """Seconds since the first of its records came; 0 without any."""
        return time.monotonic() - self._since if self._count else 0.0

    def learn_kinds(self, columns: Mapping[str, Column]) -> None:
        """Take over the dtypes and shapes of a block that is in the file."""
        for name, column in columns.items():
            code = code_of(column.dtype)
            if column.shape and code is not None:
                self._kinds[name] = code, column.shape
            else:
                self._kinds[name] = "", ()

    def convert(self, values: Mapping[str, Any]) -> Row:
        """Convert the values of one record to numbers, and to copies of arrays."""
        row: Row = {}
        for name, value in values.items():
            # Training steps take numbers only, so that their blocks stay small.
            if self.name and np.ndim(value):
                array = as_array(name, value)
                self._check_kind(name, array.shape, array.dtype)
                row[name] = array
            else:
                row[name] = as_number(name, value)
                self._check_kind(name, (), None)
        return row

    def convert_columns(
        self, columns: Mapping[str, Any], n: int
    ) -> dict[str, np.ndarray]:
        """Convert columns of `n` records; arrays are copied only where necessary."""
        converted: dict[str, np.ndarray] = {}
        for name, column in columns.items():
            array = np.asarray(column)
            if array.ndim < 1 or len(array) != n:
                raise ValueError(
                    f"{name!r} must hold {n} records, one for each step, got shape "
                    f"{array.shape}."
                )
            if array.ndim == 1:
                converted[name] = as_numbers(name, array)
                self._check_kind(name, (), None)
                continue
            if not self.name:
                raise TypeError(
                    f"{name!r} must be one number for each step, got shape "
                    f"{array.shape}; arrays need a stream with a name."
                )
            dtype = DTYPES[check_dtype(name, array.dtype)]
            check_size(name, array.shape[1:], array.dtype.itemsize)
            self._check_kind(name, array.shape[1:], array.dtype)
            converted[name] = np.ascontiguousarray(array, dtype)
        return converted

    def _check_kind(
        self, name: str, shape: tuple[int, ...], dtype: np.dtype | None
    ) -> None:
        kind = ((dtype is not None and code_of(dtype)) or "", shape)
        known = self._kinds.setdefault(name, kind)
        if known != kind:
            raise ValueError(
                f"{name!r} in stream {self.name!r} has been {_describe_kind(*known)} "
                f"so far, got {_describe_kind(*kind)}: use another stream or name."
            )

    def room_for(self, record_bytes: int) -> int:
        """Return how many records of this size still fit in the block."""
        records = (MAX_BLOCK_BYTES - self._bytes) // (record_bytes or 1)
        # The smaller of two limits: records bound the loss by a crash, bytes the
        # memory.
        room = min(RECORDS_PER_BLOCK - self._count, records)
        # An empty block takes one record of any size.
        return max(room, 0 if self._count else 1)

    def add(self, step: int, row: Row, record_bytes: int) -> None:
        """Append one record."""
        if not self._parts or not isinstance(self._parts[-1], _Rows):
            self._parts.append(_Rows([], []))
        last = self._parts[-1]
        assert isinstance(last, _Rows)  # ensured above
        last.steps.append(step)
        last.rows.append(row)
        self._count_records(1, step, record_bytes)

    def extend(
        self,
        steps: Int64[np.ndarray, " n"],
        columns: dict[str, np.ndarray],
        record_bytes: int,
    ) -> None:
        """Append records for which there is room, without copying their arrays."""
        self._parts.append(_Columns(steps, columns))
        self._count_records(len(steps), int(steps[-1]), record_bytes)

    def _count_records(self, n: int, step: int, record_bytes: int) -> None:
        if not self._count:
            self._since = time.monotonic()
        self._count += n
        self._bytes += n * record_bytes
        self.last_step = step

    def copy_borrowed(self) -> None:
        """Copy the arrays that still belong to the caller of `extend`."""
        if self._parts and isinstance(last := self._parts[-1], _Columns):
            columns = {name: v.copy() for name, v in last.columns.items()}
            self._parts[-1] = _Columns(last.steps.copy(), columns)

    def cut(self, step: int) -> None:
        """Forget the records after `step`."""
        if self.last_step is None or self.last_step <= step:
            return
        kept: list[_Rows | _Columns] = []
        for part in self._parts:
            n = int(np.searchsorted(np.asarray(part.steps), step, side="right"))
            if n:
                kept.append(part.head(n))
        self._parts = kept
        self._count = sum(len(part.steps) for part in kept)
        # An upper bound: `_bytes` only decides how early the block is written.
        if not kept:
            self._bytes = 0
        self.last_step = step

    def encode(self, first: int, *, salt: int) -> bytes:
        """Encode the block without changing it; `reset` it once it is written."""
        parts = [part.to_columns() for part in self._parts]
        steps = parts[0][0]
        if len(parts) > 1:
            steps = np.concatenate([steps for steps, _ in parts])
        # In order of appearance, which readers report as the order of the names.
        names = dict.fromkeys(name for _, columns in parts for name in columns)
        columns = {name: self._encode_column(name, parts) for name in names}
        head = {"stream": self.name, "first": first, "before": self.before}
        return encode_records(head, steps, columns, salt=salt)

    def _encode_column(
        self, name: str, parts: list[tuple[np.ndarray, dict[str, _Values]]]
    ) -> EncodedColumn:
        present, values = _concatenate(name, parts)
        code = code_of(values.dtype)
        assert code is not None  # checked by `convert`
        if not self._kinds[name][1]:
            return EncodedColumn(code, present, values)
        values = np.ascontiguousarray(values)
        codec = self._codecs.get(name)
        if codec is None:
            codec, packed = pack_smallest(values, code)
            self._codecs[name] = codec
        else:
            packed = pack(values, code, codec)
        return EncodedColumn(code, present, None, values.shape[1:], codec, packed)

    def reset(self) -> None:
        """Begin the next block, once this one is in the file."""
        self.before += self._count
        self._count = self._bytes = 0
        self._parts.clear()


def record_bytes(row: Mapping[str, Any], *, axes: int = 0) -> int:
    """Return the size of a record's arrays."""
    return sum(
        math.prod(value.shape[axes:]) * value.dtype.itemsize
        for value in row.values()
        if value.ndim > axes
    )


def _describe_kind(code: str, shape: tuple[int, ...]) -> str:
    return f"{code}{list(shape)}" if shape else code or "a number"


def _concatenate(
    name: str, parts: list[tuple[np.ndarray, dict[str, _Values]]]
) -> _Values:
    if len(parts) == 1:
        return parts[0][1][name]
    masks: list[np.ndarray] = []
    for steps, columns in parts:
        present = None
        if name in columns:
            present = columns[name][0]
        if present is None:
            present = np.full(len(steps), name in columns)
        masks.append(present)
    mask = np.concatenate(masks)
    values = np.concatenate([c[name][1] for _, c in parts if name in c])
    return (None if mask.all() else mask), values
