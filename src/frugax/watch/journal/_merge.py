"""`merge`: iterate over the records of several processes' journals in step order."""

import dataclasses
import heapq
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ._changes import Appended
from ._follower import Follower

# Of one journal at a time; a block of 64 records is read whole.
_READ_BYTES = 2**14


@dataclasses.dataclass(frozen=True, slots=True)
class MergedRow:
    """One record of one process.

    Attributes:
        step: its step.
        process: the number of its journal.
        values: its values by name.
    """

    step: int
    process: int
    values: dict[str, Any]


def process_journals(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the journals of a run of several processes, by the processes' numbers."""
    found = [p for p in Path(folder).glob("process*/journal") if p.is_file()]
    number = lambda path: path.parent.name.removeprefix("process")
    return sorted(found, key=lambda path: (len(number(path)), number(path)))


def merge(
    journals: Sequence[str | os.PathLike[str]], stream: str = ""
) -> Iterator[MergedRow]:
    """Yield the records of several journals, by step and then by process.

    At any time one small part of each journal is in memory, whatever their length, and
    no file stays open. For journals that are not rewound: a record that a rewind takes
    back is yielded as well.

    Args:
        journals: such as those of `process_journals`.
        stream: the stream to read.

    Raises:
        CorruptFileError: a file is not a journal.
        FileNotFoundError: there is no such file.
    """
    rows = [_rows(path, number, stream) for number, path in enumerate(journals)]
    return heapq.merge(*rows, key=lambda row: (row.step, row.process))


def _rows(
    path: str | os.PathLike[str], number: int, stream: str
) -> Iterator[MergedRow]:
    for change in Follower(path).poll_all(_READ_BYTES):
        if not isinstance(change, Appended) or change.stream != stream:
            continue
        rows: list[dict[str, Any]] = [{} for _ in change.steps]
        for name, column in change.columns.items():
            present = np.flatnonzero(column.present).tolist()
            for at, value in zip(present, column.values, strict=True):
                rows[at][name] = value
        for step, values in zip(change.steps.tolist(), rows, strict=True):
            yield MergedRow(step, number, values)
