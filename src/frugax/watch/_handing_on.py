"""Where records go once they are on the host: the journal, the sinks, the callbacks.

What becomes of them in the journal is in `_books.py`; sinks count for themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._books import Books
from ._notes import Notes
from ._rows import Rows
from .delivery import KINDS, HostHandler, Outlet, OutletReport
from .journal import Journal
from .sinks import Event, Kind, Sink

# A loop of 10,000 rounds must not become as many events: of rows that come at once,
# each sink gets so many at most. The journal has them all.
_MOST_ROWS = 64
_STATUS = "watch"

Act = Callable[[Sequence[np.ndarray]], object]


class _Calls:
    """A sink that hands rows to the functions on the host that wait for them."""

    name = "callbacks"

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}

    def write(self, events: Sequence[Event]) -> None:
        for event in events:
            self.acts[event.stream](list(event.values.values()))

    def close(self) -> None:
        """There is nothing to close."""


class HandingOn:
    """Hands rows and notes on. `note` may be called by any thread, the rest by one.

    Attributes:
        books: what the journal was given, and what became of the records.
        notes: what programs handed over from inside and the journal does not have yet.
    """

    def __init__(
        self,
        journal: Journal | None,
        sinks: Sequence[Sink],
        *,
        asynchronous: bool,
        most_bytes: int,
    ) -> None:
        self.books = Books(journal)
        self.notes = Notes(most_bytes, self.books.losses)
        self._journal = journal
        self._asynchronous = asynchronous
        self._outlets = [Outlet(sink, most_bytes=most_bytes) for sink in sinks]
        self._calls = _Calls()
        self._calling = Outlet(self._calls, most_bytes=most_bytes)

    @property
    def reaches_somebody(self) -> bool:
        """Whether there is a journal or a sink."""
        return self._journal is not None or bool(self._outlets)

    @property
    def has_sinks(self) -> bool:
        """Whether there is a sink."""
        return bool(self._outlets)

    @property
    def cpu_s(self) -> float:
        """Seconds of a CPU core that sinks and callbacks have taken."""
        return sum(outlet.cpu_s for outlet in (*self._outlets, self._calling))

    def note(
        self, kind: Kind, stream: str, step: int, values: Mapping[str, np.ndarray]
    ) -> None:
        """Take a record that a program has handed over from inside.

        Args:
            kind: its class.
            stream: what it belongs to.
            step: from `notes.count`.
            values: by name; the journal's and the sinks' own.
        """
        self.books.losses.give(kind)
        event = Event(kind, stream, step, values)
        if self._journal is None:
            self.books.losses.keep(kind)
        else:
            self.notes.add(event)
        self._give(self._outlets, [event])

    def write_notes(self) -> None:
        """Write what programs have handed over from inside to the journal.

        Raises:
            OutputError: the journal cannot be written; the rest waits.
        """
        self.notes.write(lambda event: self.books.write(_row(event), event.kind))

    def rows(self, rows: Rows) -> Rows | None:
        """Take some rows that a program gave as outputs.

        Returns:
            The rows that the journal could not write, to be given again; None if there
            are none. Why is in `books.failure`.
        """
        handler = None if rows.probe is None else rows.probe.handler
        rest: Rows | None = None
        try:
            if rows.kind is not None and rows.stream == "":
                self.books.hold(rows)
            elif rows.kind is not None:
                self.books.write(rows, rows.kind)
        except OutputError as e:
            self.books.failure = e
            rows, rest = rows.parts(self.books.written)
        if len(rows) and rows.kind is not None and self._outlets:
            thin = rows if rows.kind == "summary" else rows.thinned(_MOST_ROWS)
            self._give(self._outlets, thin.events(rows.kind))
        own = isinstance(handler, HostHandler)
        shown = own and handler.is_display and self.reaches_somebody
        if len(rows) and handler is not None and not shown:
            plain = lambda arrays: handler(*arrays)
            self._calls.acts[rows.stream] = handler.handle_output if own else plain
            self._give([self._calling], rows.events(rows.kind or "scalar"))
        return rest

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Take the metrics of one training step, together with what is held of it.

        Raises:
            OutputError: the journal cannot be written; to be given again.
            ValueError: a value is none for the journal.
        """
        values = self.books.step(step, values)
        if self._outlets:
            # The values are views of JAX's buffers: a sink gets its own.
            own = {name: np.array(value) for name, value in values.items()}
            self._give(self._outlets, [Event("scalar", "", step, own)])

    def status(self, step: int, *, share: float | None, limit: float) -> None:
        """Say how watching itself goes, to the journal and the sinks.

        Args:
            step: the training step.
            share: of the running time that watching has taken so far.
            limit: what it may take.

        Raises:
            OutputError: the journal cannot be written.
        """
        overhead = 0.0 if share is None else share
        tallies = self.books.losses.tallies
        values: dict[str, float] = {"overhead": overhead, "budget": limit}
        for kind in KINDS:
            values[f"kept_{kind}"] = tallies[kind].kept
            values[f"dropped_{kind}"] = tallies[kind].lost
        columns = {name: np.asarray([value]) for name, value in values.items()}
        self.books.write(Rows(None, _STATUS, np.array([step], np.int64), columns), None)
        if self._outlets:
            said = {"overhead": np.asarray(overhead), "budget": np.asarray(limit)}
            for kind in KINDS:
                said[f"given.{kind}"] = np.asarray(tallies[kind].given)
                said[f"dropped.{kind}"] = np.asarray(tallies[kind].lost)
            self._give(self._outlets, [Event("summary", _STATUS, step, said)])

    def flush(self, timeout_s: float) -> bool:
        """Wait until sinks and callbacks have what they were given; see `Outlet`."""
        outlets = (*self._outlets, self._calling)
        return all([outlet.flush(timeout_s) for outlet in outlets])

    def close(self, timeout_s: float) -> bool:
        """Close the sinks; see `Outlet`."""
        outlets = (*self._outlets, self._calling)
        return all([outlet.close(timeout_s) for outlet in outlets])

    def reports(self) -> list[OutletReport]:
        """How the sinks have done; the callbacks too, if something went wrong there."""
        reports = [outlet.report() for outlet in self._outlets]
        calls = self._calling.report()
        return [*reports, calls] if calls.went_wrong else reports

    def _give(self, outlets: Sequence[Outlet], events: Sequence[Event]) -> None:
        for outlet in outlets:
            outlet.put(events)
            if not self._asynchronous:
                outlet.flush()


def _row(event: Event) -> Rows:
    columns = {name: np.asarray(value)[None] for name, value in event.values.items()}
    return Rows(event.kind, event.stream, np.array([event.step], np.int64), columns)
