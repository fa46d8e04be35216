"""Write rows of records to the journal, and count the written and the lost ones."""

import contextlib
import dataclasses
import sys
import time
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._row_batch import RowBatch
from .delivery import Losses, Why, error_text
from .journal import Journal
from .sinks import Kind


@dataclasses.dataclass(slots=True)
class _OpenStep:
    """Numbers of a step that wait for more numbers of the same step."""

    step: int
    values: dict[str, np.ndarray]
    records: int
    since: float


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
        self._open: _OpenStep | None = None
        # The last row of training steps: step and values.
        self._last_row: tuple[int, dict[str, Any]] | None = None
        self._sources: set[str | None] = set()
        self._kinds: dict[str, dict[str, Any]] = {}  # dtypes and shapes by stream
        self._announced: set[str] = set()
        self._attempt: tuple[str, int, int, int] | None = None

    def leave_out(self, kind: Kind, count: int = 1) -> None:
        """Count records that nobody asked for."""
        # Given as well, because each record of the ledger is given once and then
        # accounted for once.
        self.losses.give(kind, count)
        self.losses.leave_out(kind, count)

    def lose(self, kind: Kind, count: int, why: Why = "queue full") -> None:
        """Count lost records, and say so once."""
        self.losses.drop(kind, count, why=why)
        self._announce(f"{kind} {why}", f"{kind} records are lost ({why})")

    def refuse(self, kind: Kind, count: int, error: Exception) -> None:
        """Count records that cannot be stored, and say why once."""
        self.last_error = error_text(error)
        self.losses.drop(kind, count, why="refused")
        self._announce(self.last_error, f"a record is lost: {self.last_error}")

    def note_failure(self, error: Exception) -> None:
        """Remember for the receipt an error that must not reach the program."""
        if not isinstance(error, OutputError):
            self.last_error = error_text(error)
            return
        self.failure = error
        self._announce("failure", f"{error} Records wait in memory")

    def write_numbers(self, rows: RowBatch) -> None:
        """Write numbers of training steps; the newest step stays open for a moment.

        Numbers of several programs and of `Watcher.record` that belong to one step are
        one record. Those that come after it was written are added to it.

        Raises:
            OutputError: the journal cannot be written; `rows_written` rows are taken.
        """
        self.rows_written = 0
        self._sources.add(rows.source)
        count = len(rows)
        if len(self._sources) == 1 and count > 1:
            if self._open is not None:
                self.close_step()
            head, rows = rows.split(count - 1)
            self.write(head, "scalar")
            self._last_row = None
        for i, step in enumerate(rows.steps):
            at = int(step)
            values = {name: column[i] for name, column in rows.columns.items()}
            # A repeated name means another record, whatever its step is: threads that
            # call at once come in any order, and two functions may share a name.
            if (open_step := self._open) is not None and (
                open_step.step < at or not open_step.values.keys().isdisjoint(values)
            ):
                self.close_step()
            if self._open is None and self._extend_last(at, values):
                self.losses.keep("scalar")
                self.rows_written = count - len(rows) + i + 1
                continue
            if self._open is None:
                last = None if self._journal is None else self._journal.last_step
                at = at if last is None else max(at, last + 1)
                self._open = _OpenStep(at, {}, 0, time.monotonic())
            self._open.values |= values
            self._open.records += 1
            self.rows_written = count - len(rows) + i + 1

    def close_step(self, *, min_age_s: float = 0.0) -> None:
        """Write the open step; after an `OutputError` it stays open."""
        if (step := self._open) is None or time.monotonic() - step.since < min_age_s:
            return
        written = self.rows_written
        row = RowBatch.single("scalar", "", step.step, step.values)
        self.write(row, "scalar", count=step.records)
        self.rows_written = written
        self._open = None
        self._last_row = step.step, step.values

    def _extend_last(self, step: int, values: dict[str, Any]) -> bool:
        """Add numbers to the record of their step, if that was the last one written."""
        if self._last_row is None or self._journal is None:
            return False
        last, known = self._last_row
        if step != last or self._journal.last_step != last:
            return False
        if not known.keys().isdisjoint(values):
            return False
        self._journal.extend_last(known | values)
        self._last_row = last, known | values
        return True

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
            stream = self._stream_for(rows)
            shifted = rows.shift_after(journal.last_step_of(stream))
            if not len(rows):
                return
            attempt = stream, int(rows.steps[0]), len(rows), int(shifted.steps[-1])
            is_repeated = self._attempt is not None and (
                self._attempt[:3] == attempt[:3]
                and journal.last_step_of(stream) == self._attempt[3]
            )
            try:
                # Ctrl-C may end a write after the journal took the rows: the next try
                # must not write them twice.
                if not is_repeated:
                    self._attempt = attempt
                    journal.write_many(shifted.steps, shifted.columns, stream)
            except OutputError:
                # A block may have been written before the disk was full.
                last = journal.last_step_of(stream)
                if stream == "":
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
                self.rows_written = len(rows)
                self._write_rest(rows, kind, records, e)
                return
            self._attempt = None
            if stream == "":
                self.last_step = journal.last_step
        self.rows_written = len(rows)
        if kind is not None:
            self.losses.keep(kind, records)

    def _write_rest(
        self, rows: RowBatch, kind: Kind | None, records: int, error: Exception
    ) -> None:
        """Write the columns that can be stored, after one could not."""
        kept = {}
        for name, column in rows.columns.items():
            probe = Journal.check_column(name, column, is_named=bool(rows.stream))
            if probe is None:
                kept[name] = column
        if kind is not None and (len(kept) == len(rows.columns) or not kept):
            self.refuse(kind, records, error)
            return
        if kind is not None:
            self.refuse(kind, 0, error)
        if kept:
            self.write(dataclasses.replace(rows, columns=kept), kind, count=records)

    def _stream_for(self, rows: RowBatch) -> str:
        """Return the stream of these rows; arrays of a new shape get one of their own.

        All arrays of a stream have one shape and dtype.
        """
        if not rows.stream:
            return rows.stream
        kinds = {
            name: (column.dtype.str, column.shape[1:])
            for name, column in rows.columns.items()
            if column.ndim > 1
        }
        if self._kinds.setdefault(rows.stream, kinds) == kinds:
            return rows.stream
        shapes = " ".join("x".join(map(str, shape)) for _, shape in kinds.values())
        dtypes = " ".join(dict.fromkeys(dtype[1:] for dtype, _ in kinds.values()))
        return f"{rows.stream} {shapes} {dtypes}".rstrip()[:100]

    def _announce(self, key: str, text: str) -> None:
        if key in self._announced or len(self._announced) >= 20:
            return
        self._announced.add(key)
        # Not a warning: turned into an error by a filter it would end the thread.
        # Standard error may be closed or missing.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(f"frugax.watch: {text.rstrip('.')}.\n")
