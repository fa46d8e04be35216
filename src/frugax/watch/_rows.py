"""What leaves a program, as the rows that a journal and sinks take.

A record of a program is an array or a few, with an axis in front for each loop around
its probe, and marked where it may not have been made. A row is one step of one stream.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64, Shaped

from .probes import Last, Partly, Probe
from .sinks import Event, Kind


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one stream.

    Attributes:
        kind: their class; None for a function of the user's.
        stream: what they belong to.
        steps: `(n,)`, rising.
        columns: by name, each `(n, ...)`.
        probe: the one they are from; None where several share a row.
    """

    kind: Kind | None
    stream: str
    steps: Int64[np.ndarray, " n"]
    columns: Mapping[str, Shaped[np.ndarray, "n ..."]]
    probe: Probe | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def after(self, last: int | None) -> "Rows":
        """The same, with steps above `last`: moved up where they are not."""
        if last is None or not len(self) or self.steps[0] > last:
            return self
        return dataclasses.replace(self, steps=self.steps + (last + 1 - self.steps[0]))

    def parts(self, at: int) -> tuple["Rows", "Rows"]:
        """The first `at` rows, and the others."""
        first = {name: column[:at] for name, column in self.columns.items()}
        rest = {name: column[at:] for name, column in self.columns.items()}
        return (
            dataclasses.replace(self, steps=self.steps[:at], columns=first),
            dataclasses.replace(self, steps=self.steps[at:], columns=rest),
        )

    def thinned(self, most: int) -> "Rows":
        """At most so many of them, evenly, the last one among them."""
        if len(self) <= most:
            return self
        chosen = np.linspace(len(self) - 1, 0, most).round().astype(int)[::-1]
        columns = {name: column[chosen] for name, column in self.columns.items()}
        return dataclasses.replace(self, steps=self.steps[chosen], columns=columns)

    def events(self, kind: Kind) -> list[Event]:
        """Each row as an event of its own, which shares no memory with the others."""
        return [
            Event(
                kind,
                self.stream,
                int(step),
                {name: np.array(column[i]) for name, column in self.columns.items()},
            )
            for i, step in enumerate(self.steps)
        ]


def fields_of(probe: Probe, value: Any) -> dict[str, np.ndarray]:
    """The values of a record by name, in the order of the probe's fields.

    Args:
        probe: what it is a record of.
        value: as `collect` gives it: an array, a dict of them, or marked. Where the
            mark is an array, it is a column "present" or "count" of its own.
    """
    marks: dict[str, np.ndarray] = {}
    if isinstance(value, Partly):
        present = np.asarray(value.present)
        marks = {"present": present} if present.ndim else {}
        value = value.values
    elif isinstance(value, Last):
        marks, value = {"count": np.asarray(value.count)}, value.values
    if not isinstance(value, Mapping):
        name = probe.fields[0] if probe.fields and probe.fields[0] else probe.name
        return {name: np.asarray(value)} | marks
    return {name: np.asarray(array) for name, array in value.items()} | marks


def rows_of(
    step: int,
    probes: Mapping[str, Probe],
    records: Mapping[str, Any],
    axes: Mapping[str, Sequence[str]],
) -> list[Rows]:
    """All rows of what one call of a program gave.

    Args:
        step: the number of the call.
        probes: by the names of the records.
        records: as `collect` gives them, as NumPy arrays.
        axes: what the first axes of each record are: "steps" of a loop, the rows of a
            "ring", or something else. None if it is not named.

    Returns:
        First what is one number for this step, in the stream "", together; then each
        other record in a stream of its name.
    """
    numbers: dict[str, np.ndarray] = {}
    found: list[Rows] = []
    for name, value in records.items():
        probe = probes[name]
        made = _made(probe, name, value, tuple(axes.get(name, ())))
        if made is None:
            continue
        columns, looped = made
        kind = None if probe.kind == "call" else probe.kind
        if (
            kind == "scalar"
            and not looped
            and not any(c.ndim for c in columns.values())
        ):
            alone = len(columns) == 1
            numbers |= {name if alone else f"{name}/{f}": c for f, c in columns.items()}
            continue
        count = len(next(iter(columns.values()))) if looped else 1
        if not looped:
            columns = {field: column[None] for field, column in columns.items()}
        steps = np.arange(step * count, (step + 1) * count, dtype=np.int64)
        found.append(Rows(kind, name, steps, columns, probe))
    if numbers:
        columns = {name: column[None] for name, column in numbers.items()}
        found.insert(0, Rows("scalar", "", np.array([step], np.int64), columns))
    return found


def _made(
    probe: Probe, name: str, value: Any, axes: tuple[str, ...]
) -> tuple[dict[str, np.ndarray], bool] | None:
    """The columns that were made, and whether their first axis is rounds."""
    rounds = len(list(itertools.takewhile(lambda axis: axis == "steps", axes)))
    named = dataclasses.replace(probe, name=name)
    present: np.ndarray | None = None
    if isinstance(value, Partly):
        present = np.asarray(value.present)
        if not present.any():
            return None
        if present.ndim <= rounds:  # whole rounds were made or not
            value = value.values
    elif isinstance(value, Last):
        if not np.any(value.count):
            return None
        if axes[:1] == ("ring",):
            return _unrolled(fields_of(named, value.values), int(value.count)), True
    columns = fields_of(named, value)
    if not rounds:
        return columns, False
    lead = next(iter(columns.values())).shape[:rounds]
    flat = {
        field: column.reshape(-1, *column.shape[rounds:])
        for field, column in columns.items()
    }
    if present is not None and present.ndim <= rounds:
        shape = present.shape + (1,) * (rounds - present.ndim)
        chosen = np.broadcast_to(present.reshape(shape), lead).reshape(-1)
        flat = {field: column[chosen] for field, column in flat.items()}
    return flat, True


def _unrolled(columns: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The rows of a ring in the order in which they were made."""
    rows = len(next(iter(columns.values())))
    order = np.arange(max(count - rows, 0), count) % rows
    return {field: column[order] for field, column in columns.items()}
