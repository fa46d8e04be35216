"""`Rows`: records on the host, as columns over the steps of one stream."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from ._event import Event, Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one stream.

    Attributes:
        kind: their class; None for those on watching itself, which do not count.
        stream: the name of the stream.
        steps: the steps; those that do not rise are moved up when they are written.
        columns: the values by name.
        is_callers: whether they are metrics of `Watcher.record`, and not of a program.
        more_records: how many records the rows hold beyond one each.
    """

    kind: Kind | None
    stream: str
    steps: Int64[np.ndarray, " n"]
    columns: Mapping[str, Shaped[np.ndarray, "n ..."]]
    is_callers: bool = False
    more_records: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def nbytes(self) -> int:
        """The size of the values."""
        return sum(column.nbytes for column in self.columns.values())

    @classmethod
    def single(
        cls,
        kind: Kind | None,
        stream: str,
        step: int,
        values: Mapping[str, Any],
    ) -> "Rows":
        """Make a batch of one row."""
        columns = {name: np.asanyarray(value)[None] for name, value in values.items()}
        return cls(kind, stream, np.array([step], np.int64), columns)

    @classmethod
    def of_events(cls, events: Iterable[Event]) -> list["Rows"]:
        """Join neighbours of one stream whose values are alike."""
        kind_of = lambda event: (
            event.kind,
            event.stream,
            [(name, x.dtype, x.shape) for name, x in event.values.items()],
        )
        made: list[Rows] = []
        for (kind, stream, _), group in itertools.groupby(events, kind_of):
            same = list(group)
            steps = np.array([event.step for event in same], np.int64)
            columns = {
                name: np.stack([event.values[name] for event in same])
                for name in same[0].values
            }
            made.append(cls(kind, stream, steps, columns))
        return made

    def shift_after(self, last: int | None) -> "Rows":
        """Return the rows with strictly rising steps above `last`.

        Threads that call at once come in any order, and a program that counts its own
        calls may be ahead of a stream: the order of the rows stays.
        """
        steps = self.steps
        low = np.iinfo(np.int64).min if last is None else last + 1
        if len(steps) and (steps[0] < low or (np.diff(steps) <= 0).any()):
            offsets = np.arange(len(steps))
            above = np.maximum.accumulate(np.maximum(steps, low) - offsets) + offsets
            return dataclasses.replace(self, steps=above)
        return self

    def select(self, chosen: Any) -> "Rows":
        """Return some of the rows, by a slice or an array of indices."""
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return dataclasses.replace(self, steps=self.steps[chosen], columns=columns)

    def split(self) -> list["Rows"]:
        """Return the rows of each column, in a stream of its name."""
        return [
            dataclasses.replace(self, stream=name, columns={name: column})
            for name, column in self.columns.items()
        ]

    def thin(self, max_rows: int) -> "Rows":
        """Return at most `max_rows` evenly spaced rows that include the last one."""
        if len(self) <= max_rows:
            return self
        # Spaced from the end, so that rounding never loses the newest row.
        chosen = np.linspace(len(self) - 1, 0, max_rows).round().astype(int)[::-1]
        return self.select(chosen)

    def to_events(self, kind: Kind) -> list[Event]:
        """Return each row as an event whose arrays share no memory with the others."""
        return [
            Event(
                kind,
                self.stream,
                int(step),
                # Masked arrays stay so: some of their values do not exist.
                {name: np.array(c[i], subok=True) for name, c in self.columns.items()},
            )
            for i, step in enumerate(self.steps)
        ]


def merge_steps(
    newest: Rows | None, batches: Sequence[Rows]
) -> tuple[list[Rows], Rows]:
    """Join the numbers of each step that came from several sources.

    Args:
        newest: the row of the newest step so far, to which more numbers may belong.
        batches: further numbers of training steps; at least one row.

    Returns:
        The rows in the order of their steps, and the row of the newest step.
    """
    known = batches if newest is None else [newest, *batches]
    if len({(rows.is_callers, *rows.columns) for rows in known}) < 2:
        *whole, last = known
        return [*whole, last.select(slice(-1))], last.select(slice(-1, None))
    single = [
        rows.select(slice(i, i + 1)) for rows in batches for i in range(len(rows))
    ]
    single.sort(key=lambda row: int(row.steps[0]))  # stable: equal steps stay in order
    if newest is None:
        newest = single.pop(0)
    merged = [newest]
    for row in single:
        last = merged[-1]
        # A repeated name means another record, whatever its step is: threads that call
        # at once come in any order, and two functions may share a name.
        is_repeated = not last.columns.keys().isdisjoint(row.columns)
        if last.steps[0] < row.steps[0] or is_repeated:
            merged.append(row)
            continue
        merged[-1] = dataclasses.replace(
            last,
            columns={**last.columns, **row.columns},
            is_callers=last.is_callers or row.is_callers,
            more_records=last.more_records + 1,
        )
    *whole, last = merged
    names_of = lambda row: sorted(row.columns)
    groups = [list(rows) for _, rows in itertools.groupby(whole, key=names_of)]
    return [_concatenate(rows) for rows in groups], last


def _concatenate(rows: list[Rows]) -> Rows:
    return dataclasses.replace(
        rows[0],
        steps=np.concatenate([row.steps for row in rows]),
        columns={
            name: np.concatenate([row.columns[name] for row in rows])
            for name in rows[0].columns
        },
        is_callers=any(row.is_callers for row in rows),
        more_records=sum(row.more_records for row in rows),
    )
