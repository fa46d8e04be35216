"""Changes that a journal tells its readers: records added, made void, or lost."""

import dataclasses
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Int64

from .packing import Column

NOT_CLOSED = "it was not closed: records of the last second may be missing"


@dataclasses.dataclass(frozen=True, slots=True)
class LostRange:
    """A range of a journal that could not be read.

    Attributes:
        offset: the offset of its first byte in the file.
        size_bytes: its length, or its length before `Journal.append_to` cut it off.
        records: how many records it held, by the count in the next intact block; None
            at the end of a file, where no block follows. A block holds at most 64.
        reason: the first error in it.
    """

    offset: int
    size_bytes: int
    records: int | None
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Appended:
    """Records that were added.

    Attributes:
        stream: the stream that they belong to.
        steps: their steps, strictly increasing.
        columns: their values by name.
        offset: where their block begins in the file.
        size: its length in bytes.
    """

    stream: str
    steps: Int64[np.ndarray, " n"]
    columns: Mapping[str, Column]
    offset: int
    size: int

    def until(self, step: int) -> "Appended":
        """Return the records up to a step."""
        n = int(np.searchsorted(self.steps, step, side="right"))
        if n == len(self.steps):
            return self
        columns = {
            name: column.head(n)
            for name, column in self.columns.items()
            if column.present[:n].any()
        }
        return dataclasses.replace(self, steps=self.steps[:n], columns=columns)


@dataclasses.dataclass(frozen=True, slots=True)
class Rewound:
    """A stream was rewound: its records after a step have become void.

    Attributes:
        stream: the stream.
        step: the last step that still counts.
    """

    stream: str
    step: int


Change: TypeAlias = Appended | Rewound | LostRange
