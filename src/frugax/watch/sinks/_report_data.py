"""Collect curves, image sequences and tables for the HTML report, in bounded memory.

Curves are downsampled so that peaks stay, films lose every other frame, and tables
their oldest rows. All omissions are counted.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from frugax.report import downsample

from ..drawing import Picture
from ._event import (
    STATUS_STREAM,
    Event,
    PlainValue,
    event_numbers,
    event_pictures,
    to_plain,
)

# Charts are some thousand pixels wide at most, so more points could not be told apart.
_MAX_POINTS = 4000
_MAX_CURVES = 100
# A browser lays out a table of this length at once; longer ones delay the whole page.
_MAX_ROWS = 1000
# A page has no room to show more cells than this on a side.
_MAX_CELLS = 256


class Curve:
    """One number over steps."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._values: list[float] = []

    def add(self, step: int, value: float) -> None:
        """Append a point."""
        self._steps.append(step)
        self._values.append(value)
        # Downsampled at twice the limit only, so that a point costs O(1) on average.
        if len(self._steps) > 2 * _MAX_POINTS:
            x, y = downsample(*self.points(), _MAX_POINTS)
            self._steps, self._values = x.tolist(), y.tolist()

    def points(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Return steps and values."""
        return np.array(self._steps, float), np.array(self._values, float)


@dataclasses.dataclass(slots=True)
class Film:
    """Pictures of one kind over steps.

    Attributes:
        frames: the kept (step, picture) pairs, in order.
        seen: the number of pictures that were added.
        every: one of this many pictures is kept.
    """

    frames: list[tuple[int, Picture]] = dataclasses.field(default_factory=list)
    seen: int = 0
    every: int = 1
    _newest: tuple[int, Picture] | None = None

    def add(self, step: int, picture: Picture) -> None:
        """Keep the picture if it is its turn; the newest is always kept."""
        self._newest = (step, picture)
        if self.seen % self.every == 0:
            self.frames.append(self._newest)
        self.seen += 1

    def halve(self) -> None:
        """Drop every other picture."""
        # Halving and not dropping the oldest: the film still covers the whole run,
        # evenly.
        self.frames = self.frames[::2]
        self.every *= 2

    def all_frames(self) -> list[tuple[int, Picture]]:
        """Return the kept pictures and the newest."""
        if self._newest is None or self.frames[-1] is self._newest:
            return list(self.frames)
        return [*self.frames, self._newest]

    @property
    def nbytes(self) -> int:
        """The size of its pictures."""
        return sum(_picture_bytes(picture) for _, picture in self.frames)


@dataclasses.dataclass(slots=True)
class SummaryTable:
    """The records of one stream of summaries.

    Attributes:
        names: the columns, in order of appearance.
        rows: the newest records: (step, values by name).
        seen: the number of records that were added.
    """

    names: dict[str, None] = dataclasses.field(default_factory=dict)
    rows: deque[tuple[int, Mapping[str, PlainValue]]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_MAX_ROWS)
    )
    seen: int = 0


class ReportData:
    """The content of a report.

    Attributes:
        curves: the curves by tag.
        films: the films by tag.
        tables: the tables of summaries by stream.
        status: the newest status of watching itself.
        records: the number of records that were added.
        last_step: the last training step; None before the first.
    """

    def __init__(self, max_bytes: int) -> None:
        self.curves: dict[str, Curve] = {}
        self.films: dict[str, Film] = {}
        self.tables: dict[str, SummaryTable] = {}
        self.status: dict[str, float] = {}
        self.records = 0
        self.last_step: int | None = None
        self._max_bytes = max_bytes
        self._bytes = 0
        self._omitted: set[str] = set()

    @property
    def omitted_curves(self) -> int:
        """How many curves there are beyond the limit."""
        return len(self._omitted)

    def add(self, event: Event) -> None:
        """Add one record."""
        self.records += 1
        if event.stream == STATUS_STREAM:
            self.status.update(event_numbers(dataclasses.replace(event, stream="")))
        elif event.kind == "frame":
            self._add_frame(event)
        elif event.kind == "summary" and event.stream:
            self._add_row(event)
        else:
            if not event.stream:
                self.last_step = event.step
            for key, value in event_numbers(event).items():
                self._add_point(key, event.step, value)

    def _add_point(self, key: str, step: int, value: float) -> None:
        if key in self.curves or len(self.curves) < _MAX_CURVES:
            self.curves.setdefault(key, Curve()).add(step, value)
        elif len(self._omitted) < 1000:  # a program may make up names without end
            self._omitted.add(key)

    def _add_frame(self, event: Event) -> None:
        for key, picture in event_pictures(event).items():
            picture = picture.shrink(_MAX_CELLS)
            film = self.films.get(key)
            if film is not None and film.frames[-1][1].kind != picture.kind:
                # The script decodes a film by one kind, so pictures of another kind get
                # a film of their own.
                key = f"{key} ({picture.kind})"
            film = self.films.setdefault(key, Film())
            before = len(film.frames)
            film.add(event.step, picture)
            if len(film.frames) > before:
                self._bytes += _picture_bytes(picture)
        while self._bytes > self._max_bytes:
            largest = max(self.films.values(), key=lambda film: film.nbytes)
            if len(largest.frames) < 2:
                return  # only single pictures are left
            largest.halve()
            self._bytes = sum(film.nbytes for film in self.films.values())

    def _add_row(self, event: Event) -> None:
        table = self.tables.setdefault(event.stream, SummaryTable())
        row = {name: to_plain(value) for name, value in event.values.items()}
        table.names.update(dict.fromkeys(row))
        table.rows.append((event.step, row))
        table.seen += 1


def _picture_bytes(picture: Picture) -> int:
    return picture.codes.nbytes + picture.known.nbytes
