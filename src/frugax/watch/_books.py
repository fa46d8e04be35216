"""What the journal has been given, and what became of every record: the books.

What it has taken is kept; what nobody asked for is left out; what cannot be written is
lost and said. Without a journal all that is written counts as kept.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._rows import Rows
from .delivery import Losses, Why, error_text
from .journal import Journal
from .sinks import Kind


class Books:
    """Writes rows to the journal, if there is one, and books them. For one thread.

    Booking alone, `leave_out` and `lose`, is for any thread.

    Attributes:
        losses: what became of the records, as far as the journal is concerned.
        last_error: what the journal said when it last refused something.
        failure: why the journal could not be written when it last could not.
        last_step: the last of the stream "" that was written from here.
        written: how many rows the last `write` could write.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.losses = Losses()
        self.last_error = ""
        self.failure: OutputError | None = None
        self.last_step: int | None = None
        self.written = 0
        self._journal = journal
        self._held: _Held | None = None

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

    def hold(self, rows: Rows) -> None:
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
            self.written = 0
            self.let_go()
        if self._held is None:
            last = None if self._journal is None else self._journal.last_step
            self._held = _Held(int(rows.after(last).steps[0]))
        self._held.rows += 1
        self._held.values |= {name: column[0] for name, column in rows.columns.items()}

    def step(self, step: int, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the metrics of one training step, together with what is held of it.

        Returns:
            All of them.

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
        return values

    def let_go(self) -> None:
        """Write the numbers that wait for more of the same step.

        Raises:
            OutputError: the journal cannot be written; they still wait.
        """
        if (held := self._held) is None:
            return
        columns = {name: value[None] for name, value in held.values.items()}
        row = Rows("scalar", "", np.array([held.step], np.int64), columns)
        self.write(row, "scalar", count=held.rows)
        self._held = None

    def write(self, rows: Rows, kind: Kind | None, *, count: int | None = None) -> None:
        """Write rows to the journal, if there is one, and book them.

        Args:
            rows: with steps that are moved up where the stream is ahead of them.
            kind: what they are booked as; None: nothing.
            count: how many records they are, if not one for each row.

        Raises:
            OutputError: it cannot be written; `written` of them were.
        """
        journal = self._journal
        booked = len(rows) if count is None else count
        self.written = 0
        if journal is not None:
            moved = rows.after(journal.last_step_of(rows.stream))
            try:
                journal.write_many(moved.steps, moved.columns, rows.stream)
            except OutputError:
                last = journal.last_step_of(rows.stream)
                if rows.stream == "":
                    self.last_step = last
                if last is not None:
                    self.written = int(np.searchsorted(moved.steps, last, "right"))
                if kind is not None and count is None:
                    self.losses.keep(kind, self.written)
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
