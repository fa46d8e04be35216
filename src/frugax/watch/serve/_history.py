"""Everything a journal has said so far, and what of it a page has not seen yet.

A cursor says how much a page holds: which journal, how many rewinds it knows of and
how many records of each stream. All of that is a function of the file alone, so a
cursor stays good when the server starts anew.
"""

import dataclasses
import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64, Shaped

from ..journal import Appended, Change, Column, Rewound
from ._columns import Table
from ._frames import Frames
from ._thin import thin

# Up to here a page is given every point, beyond it the peaks.
MOST_POINTS = 10_000
THINNED_POINTS = 4_000
MOST_COLUMNS = 32  # of one stream, unless the page names those it wants
STEP_SECONDS = "seconds per step"  # derived from `seconds`, the clock of the run room
_CLOCK = "seconds"
_LONGEST_CURSOR = 16_000  # a journal has at most 1000 streams

Points: TypeAlias = tuple[Int64[np.ndarray, " k"], Shaped[np.ndarray, " k"]]


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """How much of a history a page holds; as text it goes over the wire.

    Attributes:
        journal: which one, 0 before its first record.
        cuts: how many rewinds it knows of.
        counts: records of each stream, in the streams' order of appearance.
    """

    journal: int = 0
    cuts: int = 0
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        counts = ".".join(map(str, self.counts))
        return f"{self.journal:x}-{self.cuts}-{counts}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """The cursor that `str` wrote; what is none is the beginning."""
        try:
            if len(text) > _LONGEST_CURSOR:
                return cls()
            journal, cuts, counts = text.split("-")
            numbers = tuple(int(n) for n in counts.split(".") if n)
            made = cls(int(journal, 16), int(cuts), numbers)
        except ValueError:
            return cls()
        return made if made.cuts >= 0 and min(numbers, default=0) >= 0 else cls()


class History:
    """The streams of one journal. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, Table] = {"": Table()}
        self._frames: dict[str, dict[str, Frames]] = {}
        self._cuts: list[Rewound] = []
        self._journal = 0

    def take(self, changes: Iterable[Change]) -> None:
        """Take what the journal says, in its order."""
        with self._lock:
            for change in changes:
                if isinstance(change, Rewound):
                    self._cut(change)
                elif isinstance(change, Appended):
                    self._add(change)

    @property
    def cursor(self) -> Cursor:
        """Where a page is that holds all of it."""
        with self._lock:
            return self._cursor()

    @property
    def last_step(self) -> int | None:
        """The newest training step; None before the first."""
        with self._lock:
            steps = self._tables[""].steps
            return int(steps[-1]) if len(steps) else None

    def outline(self) -> dict[str, Any]:
        """What there is: for each stream its records, columns and newest values."""
        with self._lock:
            return {
                name: {
                    "records": len(table),
                    "columns": list(table.names),
                    "whole": sorted(table.whole),
                    "first": int(table.steps[0]) if len(table) else None,
                    "last": int(table.steps[-1]) if len(table) else None,
                    "latest": {
                        column: None if found is None else _plain(found[1])
                        for column in table.names[:MOST_COLUMNS]
                        for found in [table.last(column)]
                    },
                    "frames": {
                        column: {
                            "count": len(frames),
                            "first": frames.first,
                            "shape": list(frames.shape),
                            "dtype": frames.dtype,
                        }
                        for column, frames in self._frames.get(name, {}).items()
                    },
                }
                for name, table in self._tables.items()
            }

    def since(self, cursor: Cursor, columns: Sequence[str] = ()) -> dict[str, Any]:
        """What a page at `cursor` lacks.

        Args:
            cursor: what it holds.
            columns: those it wants; the first 32 of each stream if none are named.

        Returns:
            For JSON: `reset` (forget all), `cut` (by stream, the step after which to
            forget), `streams` (by stream and column, points to add), `cursor`.
        """
        with self._lock:
            now = self._cursor()
            known = self._known(cursor, now)
            reset = known is None
            at, cut = known or ({}, {})
            streams: dict[str, Any] = {}
            for name, table in self._tables.items():
                start = at.get(name, 0)
                if start == len(table):
                    continue
                wanted = [c for c in columns if c in table.names] or table.names
                made = {
                    column: _series(table.column(column, start))
                    for column in wanted[:MOST_COLUMNS]
                }
                if not name and _CLOCK in table.names:
                    made[STEP_SECONDS] = _series(_step_seconds(table, start, None))
                streams[name] = {k: v for k, v in made.items() if v["x"]}
            return {
                "reset": reset,
                "cut": cut,
                "streams": streams,
                "cursor": str(now),
            }

    def window(
        self, stream: str, columns: Sequence[str], low: int, high: int, points: int
    ) -> dict[str, Any]:
        """The points of some columns at steps from `low` to `high`, thinned.

        Raises:
            LookupError: there is no such stream or column.
        """
        with self._lock:
            table = self._tables[stream]
            start = int(np.searchsorted(table.steps, low, side="left"))
            stop = int(np.searchsorted(table.steps, high, side="right"))
            # One more at each side, so that lines leave the picture.
            start, stop = max(start - 1, 0), min(stop + 1, len(table))
            made = {}
            for column in columns:
                if not stream and column == STEP_SECONDS and _CLOCK in table.names:
                    found = _step_seconds(table, start, stop)
                else:
                    found = table.column(column, start, stop)
                made[column] = _series(found, most=points, thinned=points)
            return made

    def rows(self, stream: str, *, before: int | None, count: int) -> dict[str, Any]:
        """Whole records, the newest first.

        Args:
            stream: whose.
            before: only those with a lower step; None for the newest.
            count: at most so many.

        Raises:
            LookupError: there is no such stream.
        """
        with self._lock:
            table = self._tables[stream]
            n = len(table)
            if before is not None:
                n = int(np.searchsorted(table.steps, before, side="left"))
            start = max(n - count, 0)
            steps = table.steps[start:n]
            names = table.names[:MOST_COLUMNS]
            rows: list[dict[str, Any]] = [{} for _ in steps]
            for name in names:
                having, values = table.column(name, start, n)
                for at, value in zip(
                    np.searchsorted(steps, having), values.tolist(), strict=True
                ):
                    rows[at][name] = _plain(value)
            return {
                "columns": list(names),
                "whole": sorted(table.whole),
                "steps": steps[::-1].tolist(),
                "rows": rows[::-1],
                "older": start,
            }

    def frame(
        self, stream: str, column: str, *, number: int | None, step: int | None
    ) -> tuple[int, int, Shaped[np.ndarray, "..."]]:
        """One frame, by its number or as the newest at a step or before.

        Returns:
            Its number, its step and the array.

        Raises:
            LookupError: there is no such stream, column or frame.
        """
        with self._lock:
            frames = self._frames[stream][column]
            if number is None:
                target = np.iinfo(np.int64).max if step is None else step
                number = int(np.searchsorted(frames.steps, target, side="right")) - 1
                number = min(max(number, frames.first), len(frames) - 1)
            found = frames.frame(number)
            return number, int(frames.steps[number]), found

    def _cursor(self) -> Cursor:
        counts = tuple(len(table) for table in self._tables.values())
        return Cursor(self._journal, len(self._cuts), counts)

    def _known(
        self, cursor: Cursor, now: Cursor
    ) -> tuple[dict[str, int], dict[str, int]] | None:
        """Records of each stream that a page still holds; None if it must start anew.

        Beside them, by stream, the step after which it must forget.
        """
        if cursor.journal != now.journal or cursor.cuts > now.cuts:
            return None
        if len(cursor.counts) > len(now.counts):
            return None
        at = dict(zip(self._tables, cursor.counts, strict=False))
        cut: dict[str, int] = {}
        for rewound in self._cuts[cursor.cuts :]:
            step = min(rewound.step, cut.get(rewound.stream, rewound.step))
            cut[rewound.stream] = step
        for name, step in cut.items():
            stayed = np.searchsorted(self._tables[name].steps, step, side="right")
            at[name] = min(at.get(name, 0), int(stayed))
        if any(n > len(self._tables[name]) for name, n in at.items()):
            return None
        return at, cut

    def _cut(self, rewound: Rewound) -> None:
        self._cuts.append(rewound)
        self._tables[rewound.stream].cut(rewound.step)
        for frames in self._frames.get(rewound.stream, {}).values():
            frames.cut(rewound.step)

    def _add(self, added: Appended) -> None:
        if not self._journal:
            self._journal = zlib.crc32(added.steps.tobytes()) or 1
            for column in added.columns.values():
                data = np.ascontiguousarray(column.values).tobytes()
                self._journal = zlib.crc32(data, self._journal)
        numbers: dict[str, Column] = {}
        for name, column in added.columns.items():
            if not column.shape:
                numbers[name] = column
                continue
            frames = self._frames.setdefault(added.stream, {}).setdefault(
                name, Frames()
            )
            frames.append(added.steps[column.present], column)
        self._tables.setdefault(added.stream, Table()).append(added.steps, numbers)


def _step_seconds(table: Table, start: int, stop: int | None) -> Points:
    """Seconds of each step, from a column that holds the clock."""
    steps, clock = table.column(_CLOCK, max(start - 1, 0), stop)
    if len(steps) < 2:
        return steps[:0], clock[:0].astype(np.float64)
    taken = np.diff(clock.astype(np.float64)) / np.diff(steps)
    # The clock of a run that goes on after a crash may start behind the last one.
    return steps[1:], np.where(taken >= 0, taken, np.nan)


def _series(
    points: Points, *, most: int = MOST_POINTS, thinned: int = THINNED_POINTS
) -> dict[str, Any]:
    steps, values = points
    n = len(steps)
    if n > most:
        steps, values = thin(steps, values, most_points=thinned)
    return {
        "x": steps.tolist(),
        "y": [_plain(v) for v in values.tolist()],
        "of": n,
    }


def _plain(value: float) -> float | None:
    """Seven digits, which is more than a screen shows; JSON has no NaN."""
    if not np.isfinite(value):
        return None
    return (
        value if value == int(value) and abs(value) < 2**53 else float(f"{value:.7g}")
    )
