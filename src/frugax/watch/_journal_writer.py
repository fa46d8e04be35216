"""Write rows of records to the journal, and count the written and the lost ones."""

import dataclasses
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from frugax.errors import OutputError

from ._event import Kind
from ._rows import Rows
from .delivery import Losses, Why, error_text, write_message
from .journal import Journal


class JournalWriter:
    """Writes rows and counts them. For one thread, except `leave_out` and `lose`.

    Attributes:
        losses: counts of the records as far as the journal is concerned.
        last_error: text of the last refusal by the journal.
        failure: the error with which the last write failed; None after a success.
        last_step: the last step of the stream "" that was written here.
        waiting: rows that are not in the journal yet, the oldest first.
    """

    def __init__(self, journal: Journal | None) -> None:
        self.losses = Losses()
        self.last_error = ""
        self.failure: OutputError | None = None
        self.last_step: int | None = None
        self.waiting: deque[Rows] = deque()
        self._journal = journal
        self._begun: Rows | None = None  # the first that waits, with final steps
        self._last_row: Rows | None = None  # of training steps
        self._kinds: dict[str, dict[str, Any]] = {}  # dtypes and shapes by stream
        self._kind_of: dict[str, Kind] = {}  # of the records of a stream
        self._announced: set[str] = set()

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

    def write(self, batches: Iterable[Rows] = ()) -> None:
        """Write rows, after those that wait.

        Raises:
            OutputError: the journal cannot be written; the other records wait.
        """
        self.waiting.extend(batches)
        while self.waiting:
            try:
                self._write_first()
            except OutputError as e:
                self.note_failure(e)
                raise
        self.failure = None

    def drop_first(self, why: Why = "queue full") -> None:
        """Lose the oldest rows that wait."""
        rows = self.waiting.popleft()
        if rows.kind is not None:
            taken = self._count_taken(rows)
            self.losses.keep(rows.kind, taken)
            self.lose(rows.kind, len(rows) + rows.more_records - taken, why)

    def settle(self) -> None:
        """Count records as lost that a journal closed on a full disk did not get.

        Some of it was kept in the journal's own memory.
        """
        while self.waiting:
            self.drop_first("not written")
        if self._journal is not None:
            for stream, count in self._journal.unwritten.items():
                if kind := self._kind_of.pop(stream, None):
                    self.losses.keep(kind, -count)
                    self.losses.drop(kind, count, why="not written")

    def _write_first(self) -> None:
        rows = self.waiting[0]
        try:
            if self._journal is not None:
                self._append(self._journal, rows)
        # The format cannot store a value. The program that recorded it goes on, so the
        # record is lost, and the receipt shows the error.
        except (TypeError, ValueError) as e:
            self._refuse_columns(rows, e)
            return
        rows = self.waiting.popleft()
        if rows.kind is not None:
            self.losses.keep(rows.kind, len(rows) + rows.more_records)

    def _refuse_columns(self, rows: Rows, error: Exception) -> None:
        """Leave out the columns that cannot be stored; without any other, the rows."""
        is_named = bool(rows.stream)
        kept = {
            name: column
            for name, column in rows.columns.items()
            if Journal.takes_column(name, column, is_named=is_named)
        }
        if kept and len(kept) < len(rows.columns):
            count = 0
            self.waiting[0] = dataclasses.replace(rows, columns=kept)
        else:
            count = len(rows) + rows.more_records
            self.waiting.popleft()
        if rows.kind is not None:
            self.refuse(rows.kind, count, error)

    def _append(self, journal: Journal, rows: Rows) -> None:
        """Write rows; their steps are shifted where the stream is ahead of them."""
        stream = self._stream_for(rows)
        if rows is not self._begun:
            if not stream and self._extend_last(journal, rows.select(slice(1))):
                self.losses.keep("scalar")
                rows = self.waiting[0] = rows.select(slice(1, None))
            rows = rows.shift_after(journal.last_step_of(stream))
            self._begun = self.waiting[0] = rows
        if rows.kind is not None:
            self._kind_of[stream] = rows.kind
        rest = rows.select(slice(self._count_taken(rows), None))
        if len(rest):
            journal.write_many(rest.steps, rest.columns, stream)
        if not stream:
            self.last_step = journal.last_step
            if len(rows):
                self._last_row = rows.select(slice(-1, None))

    def _count_taken(self, rows: Rows) -> int:
        """Count the rows that the journal has from a write that did not end well.

        The disk was full, or Ctrl-C came: the next try must not write them twice.
        """
        if self._journal is None or rows is not self._begun:
            return 0
        last = self._journal.last_step_of(self._stream_for(rows))
        return 0 if last is None else int(np.searchsorted(rows.steps, last, "right"))

    def _extend_last(self, journal: Journal, row: Rows) -> bool:
        """Add numbers to the record of their step, if that was the last one written."""
        last = self._last_row
        if last is None or not len(row) or row.steps[0] != last.steps[0]:
            return False
        known, values = last.columns, row.columns
        if journal.last_step != last.steps[0] or not known.keys().isdisjoint(values):
            return False
        whole = {**known, **values}
        journal.extend_last({name: column[0] for name, column in whole.items()})
        self._last_row = dataclasses.replace(last, columns=whole)
        return True

    def _stream_for(self, rows: Rows) -> str:
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
        write_message(f"{text.rstrip('.')}.")
