"""Keep a journal's records in memory, and return what a live page lacks or asks for.

A cursor states how much a page has: the journal, the number of rewinds and the number
of records of each stream. All of these depend on the file alone, so a cursor stays
valid when the server restarts.
"""

import dataclasses
import threading
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Int64, Shaped

from frugax.report import downsample

from ..journal import Appended, Change, Column, Rewound
from ._stores import FrameStore, NumberTable

# Longer series are downsampled before they are sent.
_MAX_POINTS = 10_000
_DOWNSAMPLED_POINTS = 4_000
# Columns of one stream to send, unless the page names those it wants.
MAX_COLUMNS = 32
# A derived series; `seconds` is the clock column that `frugax.run` records.
_STEP_SECONDS = "seconds per step"
# By stream, the column with the time of each record; a run without a clock column has
# the state of watching, about once a second.
_CLOCKS = {"": "seconds", "watch": "time"}
_MAX_CURSOR_LENGTH = 16_000  # enough for the 1000 streams of a journal

Points: TypeAlias = tuple[Int64[np.ndarray, " k"], Shaped[np.ndarray, " k"]]


@dataclasses.dataclass(frozen=True, slots=True)
class Cursor:
    """The part of a history that a page has; its text goes over the wire.

    Attributes:
        journal: a checksum that identifies the journal; 0 before its first record.
        rewinds: the number of rewinds that the page knows.
        counts: the records of each stream, in the streams' order of appearance.
    """

    journal: int = 0
    rewinds: int = 0
    counts: tuple[int, ...] = ()

    def __str__(self) -> str:
        counts = ".".join(map(str, self.counts))
        return f"{self.journal:x}-{self.rewinds}-{counts}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse the text of a cursor; any other text means the beginning."""
        # The text comes from a request, so nothing in it is trusted.
        try:
            if len(text) > _MAX_CURSOR_LENGTH:
                return cls()
            journal, rewinds, counts = text.split("-")
            numbers = tuple(int(n) for n in counts.split(".") if n)
            cursor = cls(int(journal, 16), int(rewinds), numbers)
        except ValueError:
            return cls()
        if cursor.rewinds < 0 or min(numbers, default=0) < 0:
            return cls()
        return cursor


class History:
    """The streams of one journal; all methods are thread-safe."""

    def __init__(self) -> None:
        # One thread appends while others answer requests: without the lock a page could
        # get steps and values of different lengths.
        self._lock = threading.Lock()
        self._tables: dict[str, NumberTable] = {"": NumberTable()}
        self._frames: dict[str, dict[str, FrameStore]] = {}
        # All are kept, since a page may have missed several while it was disconnected.
        self._rewinds: list[Rewound] = []
        self._journal = 0

    def apply(self, changes: Iterable[Change]) -> None:
        """Apply changes of the journal, in their order."""
        with self._lock:
            for change in changes:
                if isinstance(change, Rewound):
                    self._rewind(change)
                elif isinstance(change, Appended):
                    self._append(change)

    @property
    def cursor(self) -> Cursor:
        """The cursor of a page that has everything."""
        with self._lock:
            return self._cursor()

    @property
    def last_step(self) -> int | None:
        """The newest training step; None before the first."""
        with self._lock:
            steps = self._tables[""].steps
            return int(steps[-1]) if len(steps) else None

    def outline(self) -> dict[str, Any]:
        """Describe each stream for JSON: its records, columns and newest values."""
        with self._lock:
            return {
                name: self._outline_stream(name, table)
                for name, table in self._tables.items()
            }

    def _outline_stream(self, name: str, table: NumberTable) -> dict[str, Any]:
        steps = table.steps
        first = last = None
        if len(steps):
            first, last = int(steps[0]), int(steps[-1])
        latest: dict[str, float | None] = {}
        for column in table.names[:MAX_COLUMNS]:
            value = table.last_value(column)
            latest[column] = None if value is None else _to_json_number(value)
        frames = {
            column: {
                "count": len(store),
                "first": store.first,
                "shape": list(store.shape),
                "dtype": store.dtype,
            }
            for column, store in self._frames.get(name, {}).items()
        }
        return {
            "records": len(table),
            "columns": list(table.names),
            "whole": sorted(table.integer_columns),
            "first": first,
            "last": last,
            "latest": latest,
            "frames": frames,
        }

    def since(self, cursor: Cursor, columns: Sequence[str] = ()) -> dict[str, Any]:
        """Return the changes that a page at `cursor` lacks."""
        with self._lock:
            now = self._cursor()
            known = self._compare(cursor, now)
            at, cut = known or ({}, {})
            streams: dict[str, Any] = {}
            for name, table in self._tables.items():
                start = at.get(name, 0)
                if start == len(table):
                    continue
                # A page names columns of all streams at once.
                wanted = [c for c in columns if c in table.names] or table.names
                series = {
                    column: _to_series(table.column(column, start))
                    for column in wanted[:MAX_COLUMNS]
                }
                if _CLOCKS.get(name) in table.names:
                    points = _step_seconds(table, _CLOCKS[name], start, None)
                    series[_STEP_SECONDS] = _to_series(points)
                streams[name] = {k: v for k, v in series.items() if v["x"]}
            return {
                "reset": known is None,
                "cut": cut,
                "streams": streams,
                "cursor": str(now),
            }

    def window(
        self, stream: str, columns: Sequence[str], low: int, high: int, points: int
    ) -> dict[str, Any]:
        """Return columns at the steps from `low` to `high`, downsampled to `points`."""
        with self._lock:
            table = self._tables[stream]
            start = int(np.searchsorted(table.steps, low, side="left"))
            stop = int(np.searchsorted(table.steps, high, side="right"))
            # One more point at each side, so that lines run out of the picture.
            start, stop = max(start - 1, 0), min(stop + 1, len(table))
            series: dict[str, Any] = {}
            for column in columns:
                if column == _STEP_SECONDS and _CLOCKS.get(stream) in table.names:
                    found = _step_seconds(table, _CLOCKS[stream], start, stop)
                else:
                    found = table.column(column, start, stop)
                series[column] = _to_series(found, limit=points, max_points=points)
            return series

    def rows(self, stream: str, *, before: int | None, count: int) -> dict[str, Any]:
        """Return whole records, newest first."""
        with self._lock:
            table = self._tables[stream]
            n = len(table)
            if before is not None:
                n = int(np.searchsorted(table.steps, before, side="left"))
            start = max(n - count, 0)
            steps = table.steps[start:n]
            names = table.names[:MAX_COLUMNS]
            rows: list[dict[str, Any]] = [{} for _ in steps]
            for name in names:
                own_steps, values = table.column(name, start, n)
                indices = np.searchsorted(steps, own_steps)
                for i, value in zip(indices, values.tolist(), strict=True):
                    rows[i][name] = _to_json_number(value)
            return {
                "columns": list(names),
                "whole": sorted(table.integer_columns),
                "steps": steps[::-1].tolist(),
                "rows": rows[::-1],
                "older": start,
            }

    def histogram(self, stream: str, count: int) -> dict[str, Any]:
        """Return at most `count` histograms of a stream, evenly spaced, for JSON."""
        with self._lock:
            frames, table = self._frames[stream]["counts"], self._tables[stream]
            n = min(count, len(frames) - frames.first)
            numbers = np.linspace(frames.first, len(frames) - 1, n).round().astype(int)
            steps = frames.steps[numbers]
            found = {"steps": steps.tolist()}
            found["counts"] = [frames.frame(int(i)).tolist() for i in numbers]
            for name in ("low", "high"):
                own_steps, values = table.column(name)
                at = np.searchsorted(own_steps, steps).clip(0, max(len(values) - 1, 0))
                found[name] = [_to_json_number(v) for v in values[at].tolist()]
            return found

    def frame(
        self, stream: str, column: str, *, number: int | None, step: int | None
    ) -> tuple[int, int, Shaped[np.ndarray, "..."]]:
        """Return one frame, by its number or as the newest at or before a step."""
        with self._lock:
            frames = self._frames[stream][column]
            if number is None:
                if step is None:
                    step = np.iinfo(np.int64).max
                number = int(np.searchsorted(frames.steps, step, side="right")) - 1
                number = min(max(number, frames.first), len(frames) - 1)
            array = frames.frame(number)
            return number, int(frames.steps[number]), array

    def _cursor(self) -> Cursor:
        counts = tuple(len(table) for table in self._tables.values())
        return Cursor(self._journal, len(self._rewinds), counts)

    def _compare(
        self, cursor: Cursor, now: Cursor
    ) -> tuple[dict[str, int], dict[str, int]] | None:
        """Compare a page's cursor with the present one."""
        if cursor.journal != now.journal or cursor.rewinds > now.rewinds:
            return None
        if len(cursor.counts) > len(now.counts):
            return None
        kept = dict(zip(self._tables, cursor.counts, strict=False))
        cut: dict[str, int] = {}
        for rewound in self._rewinds[cursor.rewinds :]:
            step = min(rewound.step, cut.get(rewound.stream, rewound.step))
            cut[rewound.stream] = step
        for name, step in cut.items():
            # Records after the rewind are not the page's, even at the same steps.
            count = np.searchsorted(self._tables[name].steps, step, side="right")
            kept[name] = min(kept.get(name, 0), int(count))
        if any(n > len(self._tables[name]) for name, n in kept.items()):
            return None
        return kept, cut

    def _rewind(self, rewound: Rewound) -> None:
        self._rewinds.append(rewound)
        self._tables[rewound.stream].rewind(rewound.step)
        for frames in self._frames.get(rewound.stream, {}).values():
            frames.rewind(rewound.step)

    def _append(self, added: Appended) -> None:
        if not self._journal:
            # The first block identifies the journal, also to a restarted server.
            self._journal = zlib.crc32(added.steps.tobytes()) or 1
            for column in added.columns.values():
                data = np.ascontiguousarray(column.values).tobytes()
                self._journal = zlib.crc32(data, self._journal)
        numbers: dict[str, Column] = {}
        for name, column in added.columns.items():
            if not column.shape:
                numbers[name] = column
                continue
            stores = self._frames.setdefault(added.stream, {})
            frames = stores.setdefault(name, FrameStore())
            frames.append(added.steps[column.present], column)
        table = self._tables.setdefault(added.stream, NumberTable())
        table.append(added.steps, numbers)


def _step_seconds(
    table: NumberTable, clock_name: str, start: int, stop: int | None
) -> Points:
    """Derive the seconds of each step from a column of times."""
    steps, clock = table.column(clock_name, max(start - 1, 0), stop)
    if len(steps) < 2:
        return steps[:0], clock[:0].astype(np.float64)
    seconds = np.diff(clock.astype(np.float64)) / np.diff(steps)
    # The clock of a run that continues after a crash may start before the last value.
    return steps[1:], np.where(seconds >= 0, seconds, np.nan)


def _to_series(
    points: Points, *, limit: int = _MAX_POINTS, max_points: int = _DOWNSAMPLED_POINTS
) -> dict[str, Any]:
    steps, values = points
    n = len(steps)
    if n > limit:
        steps, values = downsample(steps, values, max_points)
    return {
        "x": steps.tolist(),
        "y": [_to_json_number(v) for v in values.tolist()],
        "of": n,
    }


def _to_json_number(value: float) -> float | None:
    """Round to seven digits, more than a screen shows; NaN and infinity become None."""
    if not np.isfinite(value):
        return None
    # Steps and counts must not be rounded; beyond 2**53 JavaScript cannot represent
    # every integer.
    if value == int(value) and abs(value) < 2**53:
        return value
    return float(f"{value:.7g}")
