"""One column of some records: which of them have it, and their values."""

import dataclasses

import numpy as np

from ._dtypes import DTYPES
from ._packing import Packed


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """The values of one name in a row of records.

    Attributes:
        present: which of the records have it, `(n,)`.
        held: the values of those, `(count, ...)`; arrays lie packed until asked for.
        kept: only so many of the values count; None for all.
    """

    present: np.ndarray
    held: np.ndarray | Packed
    kept: int | None = None

    def __len__(self) -> int:
        return int(self.held.shape[0]) if self.kept is None else self.kept

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record's value."""
        return tuple(self.held.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Of the values."""
        if isinstance(self.held, Packed):
            return DTYPES[self.held.code]
        return self.held.dtype

    @property
    def nbytes(self) -> int:
        """What the values take, unpacked."""
        return (
            len(self) * int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        )

    @property
    def values(self) -> np.ndarray:
        """The values of the records that have it, `(count, ...)`; unpacked each time.

        Raises:
            CorruptFileError: a forged file's cannot be unpacked.
        """
        held = self.held
        values = held.unpack() if isinstance(held, Packed) else held
        return values[: len(self)]

    def first(self, n: int) -> "Column":
        """The same for the first `n` records."""
        present = self.present[:n]
        return Column(present, self.held, int(present.sum()))
