"""What the arrays of an export are called, and what is in them."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from ._columns import Column
from ._dtypes import is_narrow
from ._records import Records


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """One array of an export.

    Attributes:
        stream: of which stream.
        name: of the column; or "steps", or the column's name with "@steps".
        dtype: as it is exported.
        shape: `(n, ...)`.
        parts: the values, `(m, ...)` each; made when asked for.
    """

    stream: str
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    parts: Callable[[], Iterator[np.ndarray]]

    @property
    def label(self) -> str:
        """Its name in the file."""
        return f"{self.stream}/{self.name}" if self.stream else self.name

    @property
    def nbytes(self) -> int:
        """What it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def tables_of(stream: str, records: Records) -> Iterator[Table]:
    """The arrays of one stream; none if it has no records."""
    steps = records.steps
    if not len(steps):
        return
    yield Table(stream, "steps", steps.dtype, steps.shape, lambda: iter([steps]))
    for name in records.names:
        columns = records.columns(name)
        dtype = np.result_type(*{column.dtype for column in columns})
        if is_narrow(dtype):
            dtype = np.dtype(np.float32)
        n = sum(map(len, columns))
        parts = lambda columns=columns, dtype=dtype: _unpacked(columns, dtype)
        yield Table(stream, name, dtype, (n, *columns[0].shape), parts)
        if n < len(steps):
            own = records.steps_with(name)
            label = f"{name}@steps"
            yield Table(
                stream, label, own.dtype, own.shape, lambda own=own: iter([own])
            )


def _unpacked(columns: tuple[Column, ...], dtype: np.dtype) -> Iterator[np.ndarray]:
    for column in columns:
        yield column.values.astype(dtype)
