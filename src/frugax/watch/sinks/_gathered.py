"""What a report is made from: all records, in bounded memory.

Curves are thinned so that peaks stay, films lose every other frame, tables their oldest
rows. What was left out is counted.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from frugax.report import downsample

from ._event import Event
from ._numbers import STATUS_STREAM, Plain, numbers, plain, tag
from ._picture import Picture, pictures

_MOST_POINTS = 4000
_MOST_CURVES = 100
_MOST_ROWS = 1000
# A screen has no more cells than this to show.
_MOST_CELLS = 256


class Curve:
    """One number over steps."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._values: list[float] = []

    def add(self, step: int, value: float) -> None:
        """Append a point; past twice the limit, thin them."""
        self._steps.append(step)
        self._values.append(value)
        if len(self._steps) > 2 * _MOST_POINTS:
            x, y = downsample(*self.points(), _MOST_POINTS)
            self._steps, self._values = x.tolist(), y.tolist()

    def points(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Steps and values."""
        return np.array(self._steps, float), np.array(self._values, float)


@dataclasses.dataclass(slots=True)
class Film:
    """Pictures of one kind over steps.

    Attributes:
        frames: (step, picture), rising.
        seen: how many there were.
        every: one in how many is kept.
    """

    frames: list[tuple[int, Picture]] = dataclasses.field(default_factory=list)
    seen: int = 0
    every: int = 1
    _newest: tuple[int, Picture] | None = None

    def add(self, step: int, shown: Picture) -> None:
        """Keep the picture if it is its turn; the newest is always kept."""
        self._newest = (step, shown)
        if self.seen % self.every == 0:
            self.frames.append((step, shown))
        self.seen += 1

    def halve(self) -> None:
        """Let go of every other picture."""
        self.frames = self.frames[::2]
        self.every *= 2

    def all(self) -> list[tuple[int, Picture]]:
        """What is kept, and the newest."""
        if self._newest is None or self.frames[-1] is self._newest:
            return list(self.frames)
        if self.frames[-1][1] is self._newest[1]:
            return list(self.frames)
        return [*self.frames, self._newest]

    @property
    def bytes(self) -> int:
        """What its pictures hold."""
        return sum(shown.codes.nbytes + shown.known.nbytes for _, shown in self.frames)


@dataclasses.dataclass(slots=True)
class Table:
    """The records of one stream of summaries.

    Attributes:
        names: of the columns, in order of appearance.
        rows: the newest: (step, value by name).
        seen: how many there were.
    """

    names: dict[str, None] = dataclasses.field(default_factory=dict)
    rows: deque[tuple[int, Mapping[str, Plain]]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=_MOST_ROWS)
    )
    seen: int = 0


class Gathered:
    """Everything that a report shows.

    Attributes:
        curves: by tag.
        films: by tag.
        tables: by stream, of summaries.
        status: how watching goes, the newest.
        records: how many were taken.
        last_step: of the training steps; None before the first.
        left_out: how many further curves there would be.
    """

    def __init__(self, most_bytes: int) -> None:
        self.curves: dict[str, Curve] = {}
        self.films: dict[str, Film] = {}
        self.tables: dict[str, Table] = {}
        self.status: dict[str, float] = {}
        self.records = 0
        self.last_step: int | None = None
        self._most_bytes = most_bytes
        self._bytes = 0
        self._left_out: set[str] = set()

    @property
    def left_out(self) -> int:
        """How many curves there are beyond the most that are kept."""
        return len(self._left_out)

    def take(self, event: Event) -> None:
        """Take one record."""
        self.records += 1
        if event.stream == STATUS_STREAM:
            self.status.update(numbers(dataclasses.replace(event, stream="")))
        elif event.kind == "frame":
            self._film(event)
        elif event.kind == "summary" and event.stream:
            self._row(event)
        else:
            if not event.stream:
                self.last_step = event.step
            for key, value in numbers(event).items():
                if key not in self.curves and len(self.curves) >= _MOST_CURVES:
                    if len(self._left_out) < 1000:
                        self._left_out.add(key)
                    continue
                self.curves.setdefault(key, Curve()).add(event.step, value)

    def _film(self, event: Event) -> None:
        for name, shown in pictures(event.values).items():
            small = shown.thinned(_MOST_CELLS)
            key = tag(event.stream, name)
            same = self.films.get(key)
            if same is not None and same.frames[-1][1].kind != shown.kind:
                key = f"{key} ({shown.kind})"
            film = self.films.setdefault(key, Film())
            before = len(film.frames)
            film.add(event.step, small)
            if len(film.frames) > before:
                self._bytes += small.codes.nbytes + small.known.nbytes
        while self._bytes > self._most_bytes:
            largest = max(self.films.values(), key=lambda film: film.bytes)
            if len(largest.frames) < 2:
                return  # nothing but single pictures is left
            largest.halve()
            self._bytes = sum(film.bytes for film in self.films.values())

    def _row(self, event: Event) -> None:
        table = self.tables.setdefault(event.stream, Table())
        row = {name: plain(value) for name, value in event.values.items()}
        table.names.update(dict.fromkeys(row))
        table.rows.append((event.step, row))
        table.seen += 1
