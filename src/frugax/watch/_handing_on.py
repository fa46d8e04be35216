"""Where records go once they are on the host: the journal, the sinks, the callbacks.

Everything is counted here: what the journal has taken is kept; what nobody asked for
is left out; what cannot be written is lost and said. Sinks count for themselves.
"""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._rows import Rows
from .delivery import KINDS, EventQueue, Losses, Outlet, OutletReport, Why, error_text
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
        losses: what became of the records, as far as the journal is concerned; without
            one, as far as the sinks have been given them.
        last_error: what the journal said when it last refused something.
        failure: why the journal could not be written when it last could not.
        last_step: the last of the stream "" that was written from here.
    """

    def __init__(
        self,
        journal: Journal | None,
        sinks: Sequence[Sink],
        *,
        asynchronous: bool,
        most_bytes: int,
    ) -> None:
        self.losses = Losses()
        self.last_error = ""
        self._journal = journal
        self._asynchronous = asynchronous
        self._outlets = [Outlet(sink, most_bytes=most_bytes) for sink in sinks]
        self._calls = _Calls()
        self._calling = Outlet(self._calls, most_bytes=most_bytes)
        # What programs hand over from inside, perhaps while the main thread waits for
        # them: so it has a lock of its own, which is never held for long.
        self._inbox = EventQueue(most_bytes, self.losses)
        self._inbox_lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._held: _Held | None = None
        self._written = 0  # how many rows `_write` could write before it failed
        self.failure: OutputError | None = None
        self.last_step: int | None = None

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

    @property
    def held_step(self) -> int | None:
        """The step whose numbers wait for more numbers of the same step."""
        return None if self._held is None else self._held.step

    @property
    def notes(self) -> int:
        """How many records that were handed over from inside wait for the journal."""
        return len(self._inbox)

    @property
    def is_half_full(self) -> bool:
        """Whether half of the room for these is taken."""
        return 2 * self._inbox.bytes > self._inbox.most_bytes

    def count(self, stream: str) -> int:
        """The step of the next note of a stream: 0, 1, 2..."""
        with self._inbox_lock:
            step = self._counts.get(stream, -1) + 1
            self._counts[stream] = step
        return step

    def note(
        self, kind: Kind, stream: str, step: int, values: Mapping[str, np.ndarray]
    ) -> None:
        """Take a record that a program has handed over from inside.

        Args:
            kind: its class.
            stream: what it belongs to.
            step: from `count`.
            values: by name; the journal's and the sinks' own.
        """
        self.losses.give(kind)
        event = Event(kind, stream, step, values)
        if self._journal is not None:
            with self._inbox_lock:
                self._inbox.add(event)
        if self._journal is None:
            self.losses.keep(kind)
        self._give(self._outlets, [event])

    def leave_out(self, kind: Kind, count: int = 1) -> None:
        """Book records that nobody asked for."""
        self.losses.give(kind, count)
        self.losses.leave_out(kind, count)

    def lose(
        self, kind: Kind, count: int, *, given: bool, why: Why = "queue full"
    ) -> None:
        """Book records that are lost.

        Args:
            kind: their class.
            count: how many.
            given: whether they are not booked as given yet.
            why: the reason.
        """
        if given:
            self.losses.give(kind, count)
        self.losses.drop(kind, count, why=why)

    def note_failure(self, error: Exception) -> None:
        """Keep for the receipt what must not reach the program."""
        if isinstance(error, OutputError):
            self.failure = error
        else:
            self.last_error = error_text(error)

    def write_notes(self) -> None:
        """Write what programs have handed over from inside to the journal.

        Raises:
            OutputError: the journal cannot be written; the rest waits.
        """
        while self._journal is not None and len(self._inbox):
            with self._inbox_lock:
                taken = self._inbox.take(1)
            try:
                for item in taken:
                    self._write(_row(item.event), item.event.kind)
            except OutputError:
                with self._inbox_lock:
                    self._inbox.put_back(taken)
                raise
            with self._inbox_lock:
                self._inbox.release(taken)

    def rows(self, rows: Rows) -> Rows | None:
        """Take some rows that a program gave as outputs.

        Returns:
            The rows that the journal could not write, to be given again; None if there
            are none. Why is in `failure`.
        """
        handler = None if rows.probe is None else rows.probe.handler
        rest: Rows | None = None
        try:
            if rows.kind is not None and rows.stream == "":
                self._hold(rows)
            elif rows.kind is not None:
                self._write(rows, rows.kind)
        except OutputError as e:
            self.failure = e
            rows, rest = rows.parts(self._written)
        if len(rows) and rows.kind is not None and self._outlets:
            thin = rows if rows.kind == "summary" else rows.thinned(_MOST_ROWS)
            self._give(self._outlets, thin.events(rows.kind))
        shown = getattr(handler, "is_display", False) and self.reaches_somebody
        if len(rows) and handler is not None and not shown:
            # `act_on`: the callbacks of this room, which count for themselves.
            plain = lambda arrays: handler(*arrays)
            self._calls.acts[rows.stream] = getattr(handler, "act_on", plain)
            self._give([self._calling], rows.events(rows.kind or "scalar"))
        return rest

    def step(self, step: int, values: Mapping[str, Any]) -> None:
        """Take the metrics of one training step, together with what is held of it.

        Raises:
            OutputError: the journal cannot be written; to be given again.
            ValueError: a value is none for the journal.
        """
        if self._held is not None and self._held.step < step:
            self.let_go()
        held = self._held
        if held is not None:
            values = {**held.values, **values}
        if self._journal is not None:
            last = self._journal.last_step
            # Programs that count their own calls may be ahead of the caller.
            at = step if last is None else max(step, last + 1)
            self._journal.write(at, values)
            self.last_step = at
        if held is not None:
            self.losses.keep("scalar", held.rows)
            self._held = None
        if self._outlets:
            # The values are views of JAX's buffers: a sink gets its own.
            own = {name: np.array(value) for name, value in values.items()}
            self._give(self._outlets, [Event("scalar", "", step, own)])

    def let_go(self) -> None:
        """Write the numbers that wait for more of the same step.

        Raises:
            OutputError: the journal cannot be written; they still wait.
        """
        if (held := self._held) is None:
            return
        columns = {name: value[None] for name, value in held.values.items()}
        row = Rows("scalar", "", np.array([held.step], np.int64), columns)
        self._write(row, "scalar", count=held.rows)
        self._held = None

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
        tallies = self.losses.tallies
        values: dict[str, float] = {"overhead": overhead, "budget": limit}
        for kind in KINDS:
            values[f"kept_{kind}"] = tallies[kind].kept
            values[f"dropped_{kind}"] = tallies[kind].lost
        columns = {name: np.asarray([value]) for name, value in values.items()}
        self._write(Rows(None, _STATUS, np.array([step], np.int64), columns), None)
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

    def _hold(self, rows: Rows) -> None:
        """Keep the numbers of a step: there may be more of the same one.

        Raises:
            OutputError: those of the step before cannot be written.
        """
        step = int(rows.steps[0])
        held = self._held
        # The same names again are another record, whatever its step: threads that call
        # at once come in any order, and two functions may record under one name.
        if held is not None and (
            held.step < step or not held.values.keys().isdisjoint(rows.columns)
        ):
            self._written = 0
            self.let_go()
        if self._held is None:
            last = None if self._journal is None else self._journal.last_step
            self._held = _Held(int(rows.after(last).steps[0]))
        self._held.rows += 1
        self._held.values |= {name: column[0] for name, column in rows.columns.items()}

    def _write(
        self, rows: Rows, kind: Kind | None, *, count: int | None = None
    ) -> None:
        """Write rows to the journal, if there is one, and book them.

        Args:
            rows: with steps that are moved up where the stream is ahead of them.
            kind: what they are booked as; None: nothing.
            count: how many records they are, if not one for each row.

        Raises:
            OutputError: it cannot be written; `_written` of them were.
        """
        journal = self._journal
        booked = len(rows) if count is None else count
        self._written = 0
        if journal is not None:
            moved = rows.after(journal.last_step_of(rows.stream))
            try:
                journal.write_many(moved.steps, moved.columns, rows.stream)
            except OutputError:
                last = journal.last_step_of(rows.stream)
                if rows.stream == "":
                    self.last_step = last
                if last is not None:
                    self._written = int(np.searchsorted(moved.steps, last, "right"))
                if kind is not None and count is None:
                    self.losses.keep(kind, self._written)
                raise
            except (TypeError, ValueError) as e:  # what the format cannot hold
                self.last_error = error_text(e)
                if kind is not None:
                    self.losses.drop(kind, booked, why="refused")
                return
            if rows.stream == "":
                self.last_step = journal.last_step
        if kind is not None:
            self.losses.keep(kind, booked)


@dataclasses.dataclass(slots=True)
class _Held:
    """Numbers of a step that wait for more of them.

    Attributes:
        step: which.
        values: by name, each of shape `()`.
        rows: how many records they are from.
    """

    step: int
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    rows: int = 0


def _row(event: Event) -> Rows:
    columns = {name: np.asarray(value)[None] for name, value in event.values.items()}
    return Rows(event.kind, event.stream, np.array([event.step], np.int64), columns)
