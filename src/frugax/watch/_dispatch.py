"""Dispatch records that are on the host to the journal, the sinks and the handlers."""

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from frugax.errors import OutputError

from ._journal_writer import JournalWriter
from ._row_batch import RowBatch
from .delivery import (
    KINDS,
    SinkReport,
    SinkWorker,
    callback_stats,
    run_inline,
)
from .journal import Journal
from .probes import Probe
from .sinks import Event, Sink

# A loop of 10,000 rounds must not become 10,000 events: each sink gets at most this
# many rows of one batch. The journal gets all of them.
_MAX_EVENTS_PER_BATCH = 64
_STATUS_STREAM = "watch"


class _HandlerSink:
    """A sink that calls the host functions which handle a probe's values."""

    name = "callbacks"

    def __init__(self) -> None:
        self.probes: dict[str, Probe] = {}

    def write(self, events: Sequence[Event]) -> None:
        for event in events:
            probe = self.probes[event.stream]
            assert probe.handler is not None
            # A mark of the lanes that recorded may follow the probe's own values.
            arrays = list(event.values.values())[: len(probe.fields)]
            outcome = run_inline(functools.partial(probe.handler, *arrays))
            callback_stats.record_outcome(probe.label, outcome)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class Dispatch:
    """Passes rows on; for one thread.

    Attributes:
        writer: writes to the journal and counts.
        journal: the journal; None without one.
    """

    def __init__(
        self,
        journal: Journal | None,
        sinks: Sequence[Sink | SinkWorker],
        *,
        asynchronous: bool,
        max_bytes: int,
    ) -> None:
        self.writer = JournalWriter(journal)
        self.journal = journal
        self._asynchronous = asynchronous
        self._workers = [
            sink
            if isinstance(sink, SinkWorker)
            else SinkWorker(sink, max_bytes=max_bytes)
            for sink in sinks
        ]
        # Handlers are users' functions: like sinks they may raise or hang.
        self._handler_sink = _HandlerSink()
        self._handler_worker = SinkWorker(self._handler_sink, max_bytes=max_bytes)

    @property
    def has_consumers(self) -> bool:
        """Whether there is a journal or a sink."""
        return self.journal is not None or bool(self._workers)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that sinks and handlers have taken."""
        return sum(worker.cpu_s for worker in (*self._workers, self._handler_worker))

    def dispatch_rows(self, rows: RowBatch) -> RowBatch | None:
        """Pass on rows; returns those that the journal could not write, or None.

        The error is in `writer.failure`; the rows are to be passed again later.
        """
        unwritten: RowBatch | None = None
        try:
            if rows.kind is not None and rows.stream == "":
                self.writer.write_numbers(rows)
            elif rows.kind is not None:
                self.writer.write(rows, rows.kind)
            self.writer.failure = None
        except OutputError as e:
            self.writer.note_failure(e)
            rows, unwritten = rows.split(self.writer.rows_written)
        if len(rows) and rows.kind is not None and self._workers:
            thin = rows
            # No summary and no number of a training step may be lost.
            if rows.kind != "summary" and rows.stream:
                thin = rows.thin(_MAX_EVENTS_PER_BATCH)
            self._feed(self._workers, thin.to_events(rows.kind))
        probe = rows.probe
        # A handler of a record shows it where no journal and no sink does.
        is_shown = rows.kind is not None and self.has_consumers
        if len(rows) and probe is not None and probe.handler and not is_shown:
            self._handler_sink.probes[rows.stream] = probe
            self._feed([self._handler_worker], rows.to_events(rows.kind or "scalar"))
        return unwritten

    def write_open_rows(self, min_step_age_s: float) -> None:
        """Write the rows in memory, so that a crash loses little."""
        self.writer.close_step(min_age_s=min_step_age_s)
        if self.journal is not None and not self.journal.closed:
            self.journal.write_open_blocks()

    def dispatch_status(self, step: int, values: Mapping[str, float]) -> None:
        """Write the overhead and the losses so far to the journal and the sinks."""
        tallies = self.writer.losses.tallies
        columns = dict(values)
        event_values = {name: np.asarray(value) for name, value in values.items()}
        # In every status, zeros included, so that the live page can tell "nothing lost"
        # from "not known".
        for kind in KINDS:
            columns[f"kept_{kind}"] = tallies[kind].kept
            columns[f"dropped_{kind}"] = tallies[kind].lost
            columns[f"waiting_{kind}"] = tallies[kind].waiting
            event_values[f"given.{kind}"] = np.asarray(tallies[kind].given)
            event_values[f"dropped.{kind}"] = np.asarray(tallies[kind].lost)
        self.writer.write(RowBatch.single(None, _STATUS_STREAM, step, columns), None)
        if self._workers:
            event = Event("summary", _STATUS_STREAM, step, event_values)
            self._feed(self._workers, [event])

    def flush(self, timeout_s: float) -> bool:
        """Wait until sinks and handlers have their events; see `SinkWorker.flush`."""
        workers = (*self._workers, self._handler_worker)
        # A list: a generator would skip the sinks behind the first that fails.
        return all([worker.flush(timeout_s) for worker in workers])

    def close(self, timeout_s: float) -> bool:
        """Close the sinks; see `SinkWorker.close`."""
        workers = (*self._workers, self._handler_worker)
        return all([worker.close(timeout_s) for worker in workers])

    def reports(self) -> list[SinkReport]:
        """Report on the sinks, and on the handlers if they had problems."""
        reports = [worker.report() for worker in self._workers]
        handlers = self._handler_worker.report()
        return [*reports, handlers] if handlers.has_problems else reports

    def _feed(self, workers: Sequence[SinkWorker], events: Sequence[Event]) -> None:
        for worker in workers:
            worker.put(events)
            if not self._asynchronous:
                worker.flush()
