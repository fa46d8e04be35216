"""Write rows to the journal, if there is one, and account for every record.

A written record is kept, a record that nobody asked for is left out, and a record that
cannot be written is lost and reported. Without a journal every record counts as kept.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._rows import RowBatch
from .delivery import Losses, Why, error_text
from .journal import Journal
from .sinks import Kind


@dataclasses.dataclass(slots=True)
class _BufferedStep:
    """Numbers of a step that wait for more numbers of the same step.

    Attributes:
        step: the step.
        values: the numbers by name, each of shape `()`.
        records: how many records they come from.
    """

    step: int
    values: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    records: int = 0


class JournalWriter:
    """Writes rows and counts them. For one thread, except `leave_out` and `lose`.

    Attributes:
        losses: counts of the records as far as the journal is concerned.
        last_error: text of the last refusal by the journal.
        failure: the error with which the last write failed; None after a success.
        last_step: the last step of the stream "" that was written here.
        rows_written: rows that the last `write` managed to write.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.losses = Losses()
        self.last_error = ""
        self.failure: OutputError | None = None
        self.last_step: int | None = None
        self.rows_written = 0
        self._journal = journal
        self._buffered: _BufferedStep | None = None

    def leave_out(self, kind: Kind, count: int = 1) -> None:
        """Count records that nobody asked for."""
        # Given as well, because each record of the ledger is given once and then
        # accounted for once.
        self.losses.give(kind, count)
        self.losses.leave_out(kind, count)

    def lose(
        self, kind: Kind, count: int, *, is_new: bool, why: Why = "queue full"
    ) -> None:
        """Count lost records; `is_new` if they have not been counted as given yet."""
        if is_new:
            self.losses.give(kind, count)
        self.losses.drop(kind, count, why=why)

    def note_failure(self, error: Exception) -> None:
        """Remember for the receipt an error that must not reach the program."""
        if isinstance(error, OutputError):
            self.failure = error
        else:
            self.last_error = error_text(error)

    def buffer(self, row: RowBatch) -> None:
        """Keep the numbers of a step, since more of the same step may follow.

        The journal takes a step once: numbers of several programs and of
        `Watcher.record` that belong to one step must be written together.
        """
        step = int(row.steps[0])
        buffered = self._buffered
        # A repeated name means another record, whatever its step is: threads that call
        # at once come in any order, and two functions may record under one name.
        if buffered is not None and (
            buffered.step < step or not buffered.values.keys().isdisjoint(row.columns)
        ):
            self.rows_written = 0
            self.flush_buffered()
        if self._buffered is None:
            last = None if self._journal is None else self._journal.last_step
            self._buffered = _BufferedStep(int(row.shift_after(last).steps[0]))
        self._buffered.records += 1
        self._buffered.values |= {n: column[0] for n, column in row.columns.items()}

    def write_step(self, step: int, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Write the metrics of a step with its buffered numbers; returns all of them.

        After an `OutputError` the same call may be repeated.
        """
        if self._buffered is not None and self._buffered.step < step:
            self.flush_buffered()
        buffered = self._buffered
        if buffered is not None:
            values = {**buffered.values, **values}
        if self._journal is not None:
            last = self._journal.last_step
            # Programs that count their own calls may be ahead of the caller's steps.
            at = step if last is None else max(step, last + 1)
            self._journal.write(at, values)
            self.last_step = at
        # Only now: an error above leaves the numbers buffered for the next try.
        if buffered is not None:
            self.losses.keep("scalar", buffered.records)
            self._buffered = None
        return values

    def flush_buffered(self) -> None:
        """Write the buffered numbers; after an `OutputError` they stay buffered."""
        if (buffered := self._buffered) is None:
            return
        row = RowBatch.single("scalar", "", buffered.step, buffered.values)
        self.write(row, "scalar", count=buffered.records)
        self._buffered = None

    def write(
        self, rows: RowBatch, kind: Kind | None, *, count: int | None = None
    ) -> None:
        """Write rows and count them.

        Args:
            rows: the rows; their steps are shifted where the stream is ahead of them.
            kind: the class they count as; None to count nothing.
            count: number of records, if not one per row.

        Raises:
            OutputError: the journal cannot be written; `rows_written` rows are in it.
        """
        journal = self._journal
        records = len(rows) if count is None else count
        self.rows_written = 0
        if journal is not None:
            shifted = rows.shift_after(journal.last_step_of(rows.stream))
            try:
                journal.write_many(shifted.steps, shifted.columns, rows.stream)
            except OutputError:
                # A block may have been written before the disk was full.
                last = journal.last_step_of(rows.stream)
                if rows.stream == "":
                    self.last_step = last
                if last is not None:
                    written = np.searchsorted(shifted.steps, last, "right")
                    self.rows_written = int(written)
                if kind is not None and count is None:
                    self.losses.keep(kind, self.rows_written)
                raise
            # The format cannot store a value. The program that recorded it goes on,
            # so the record is lost, and the receipt shows the error.
            except (TypeError, ValueError) as e:
                self.last_error = error_text(e)
                if kind is not None:
                    self.losses.drop(kind, records, why="refused")
                return
            if rows.stream == "":
                self.last_step = journal.last_step
        if kind is not None:
            self.losses.keep(kind, records)
