"""The write buffer of one stream of a journal, which is encoded as one block."""

import dataclasses
import math
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64

from ._validation import as_number, as_numbers, check_dtype, check_size, to_numpy
from .blocks import MAX_BLOCK_BYTES, RECORDS_PER_BLOCK, EncodedColumn, encode_records
from .packing import DTYPES, Codec, Column, code_of, pack, pack_smallest

# By name, the values of some records: `(n, ...)`.
Columns: TypeAlias = dict[str, np.ndarray]


@dataclasses.dataclass(slots=True)
class _Part:
    """Records that were added at once, so that all have the same names."""

    steps: Int64[np.ndarray, " n"]
    columns: Columns

    def until(self, step: int) -> "_Part":
        n = int(np.searchsorted(self.steps, step, side="right"))
        return _Part(self.steps[:n], {k: v[:n] for k, v in self.columns.items()})


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
        self._parts: list[_Part] = []
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

    def convert(self, values: Mapping[str, Any]) -> Columns:
        """Convert the values of one record to numbers, and to copies of arrays."""
        columns: Columns = {}
        for name, value in values.items():
            # Training steps take numbers only, so that their blocks stay small.
            is_array = bool(self.name and np.ndim(value))
            convert = to_numpy if is_array else as_number
            columns[name] = np.asarray(convert(name, value))[None]
        return self.convert_columns(columns, 1)

    def convert_columns(self, columns: Mapping[str, Any], n: int) -> Columns:
        """Convert columns of `n` records, which are copied."""
        converted: Columns = {}
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
            converted[name] = np.array(array, dtype, order="C")
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

    def extend(
        self, steps: Int64[np.ndarray, " n"], columns: Columns, record_bytes: int
    ) -> None:
        """Append records for which there is room."""
        if not self._count:
            self._since = time.monotonic()
        self._parts.append(_Part(steps, columns))
        self._count += len(steps)
        self._bytes += len(steps) * record_bytes
        self.last_step = int(steps[-1])

    def cut(self, step: int) -> None:
        """Forget the records after `step`."""
        if self.last_step is None or self.last_step <= step:
            return
        heads = [part.until(step) for part in self._parts]
        self._parts = [part for part in heads if len(part.steps)]
        self._count = sum(len(part.steps) for part in self._parts)
        # An upper bound: `_bytes` only decides how early the block is written.
        if not self._parts:
            self._bytes = 0
        self.last_step = step

    def encode(self, first: int, *, salt: int) -> bytes:
        """Encode the block without changing it; `reset` it once it is written."""
        steps = np.concatenate([part.steps for part in self._parts])
        # In order of appearance, which readers report as the order of the names.
        names = dict.fromkeys(name for part in self._parts for name in part.columns)
        columns = {name: self._encode_column(name) for name in names}
        head = {"stream": self.name, "first": first, "before": self.before}
        return encode_records(head, steps, columns, salt=salt)

    def _encode_column(self, name: str) -> EncodedColumn:
        has_name = [name in part.columns for part in self._parts]
        present = None
        if not all(has_name):
            present = np.repeat(has_name, [len(part.steps) for part in self._parts])
        values = [p.columns[name] for p in self._parts if name in p.columns]
        # Without a copy where there is one part: it may be large.
        whole = values[0] if len(values) == 1 else np.concatenate(values)
        code = code_of(whole.dtype)
        assert code is not None  # checked by `convert`
        if not self._kinds[name][1]:
            return EncodedColumn(code, present, whole)
        whole = np.ascontiguousarray(whole)
        codec = self._codecs.get(name)
        if codec is None:
            codec, packed = pack_smallest(whole, code)
            self._codecs[name] = codec
        else:
            packed = pack(whole, code, codec)
        return EncodedColumn(code, present, None, whole.shape[1:], codec, packed)

    def reset(self) -> None:
        """Begin the next block, once this one is in the file."""
        self.before += self._count
        self._count = self._bytes = 0
        self._parts.clear()


def record_bytes(columns: Columns) -> int:
    """Return the size of the arrays of one record."""
    return sum(
        math.prod(column.shape[1:]) * column.dtype.itemsize
        for column in columns.values()
        if column.ndim > 1
    )


def _describe_kind(code: str, shape: tuple[int, ...]) -> str:
    return f"{code}{list(shape)}" if shape else code or "a number"
