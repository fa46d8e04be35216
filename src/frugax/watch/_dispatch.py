"""Dispatch records that are on the host to the journal, the sinks and the handlers."""

import functools
import time
from collections.abc import Mapping, Sequence

from ._event import KINDS, STATUS_STREAM, Event, Sink
from ._journal_writer import JournalWriter
from ._rows import Rows, merge_steps
from .delivery import (
    SinkReport,
    SinkWorker,
    callback_stats,
    run_inline,
)
from .journal import Journal
from .probes import Probe

# A loop of 10,000 rounds must not become 10,000 events: each sink gets at most this
# many rows of one batch. The journal gets all of them.
_MAX_EVENTS_PER_BATCH = 64


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
    ) -> None:
        self.writer = JournalWriter(journal)
        self.journal = journal
        self._newest: Rows | None = None  # of training steps
        self._newest_since = 0.0
        self._asynchronous = asynchronous
        self._workers = [
            sink if isinstance(sink, SinkWorker) else SinkWorker(sink) for sink in sinks
        ]
        # Handlers are users' functions: like sinks they may raise or hang.
        self._handler_sink = _HandlerSink()
        self._handler_worker = SinkWorker(self._handler_sink)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that sinks and handlers have taken."""
        return sum(worker.cpu_s for worker in (*self._workers, self._handler_worker))

    def dispatch(self, batches: Sequence[Rows]) -> None:
        """Pass on rows; the newest training step waits for more numbers of the same.

        Raises:
            OutputError: the journal cannot be written; what is not in it waits.
        """
        numbers = [r for r in batches if r.kind == "scalar" and not r.stream]
        passed = [r for r in batches if r.kind != "scalar" or r.stream]
        if numbers:
            whole, self._newest = merge_steps(self._newest, numbers)
            self._newest_since = time.monotonic()
            passed = [*whole, *passed]
        self._pass_on(passed)

    def _pass_on(self, batches: Sequence[Rows]) -> None:
        batches = [rows for rows in batches if len(rows)]
        for rows in batches:
            if rows.kind is not None and self._workers:
                thin = rows
                # No summary and no number of a training step may be lost.
                if rows.kind != "summary" and rows.stream:
                    thin = rows.thin(_MAX_EVENTS_PER_BATCH)
                self._feed(self._workers, thin.to_events(rows.kind))
            probe = rows.probe
            # A handler of a record shows it where no journal and no sink does.
            is_shown = rows.kind and (self.journal is not None or self._workers)
            if probe is not None and probe.handler and not is_shown:
                self._handler_sink.probes[rows.stream] = probe
                self._feed(
                    [self._handler_worker], rows.to_events(rows.kind or "scalar")
                )
        self.writer.write(rows for rows in batches if rows.kind is not None)

    def write_open_rows(self, min_step_age_s: float) -> None:
        """Write the rows in memory, so that a crash loses little."""
        newest, age_s = self._newest, time.monotonic() - self._newest_since
        if newest is not None and age_s >= min_step_age_s:
            self._newest = None
            self._pass_on([newest])
        if self.journal is not None and not self.journal.closed:
            self.journal.write_open_blocks()

    def dispatch_status(self, step: int, values: Mapping[str, float]) -> None:
        """Write the overhead and the losses so far to the journal and the sinks."""
        tallies = self.writer.losses.tallies
        columns = dict(values)
        # In every status, zeros included, so that the live page can tell "nothing lost"
        # from "not known".
        for kind in KINDS:
            columns[f"kept_{kind}"] = tallies[kind].kept
            columns[f"dropped_{kind}"] = tallies[kind].lost
        row = Rows.single(None, STATUS_STREAM, step, columns)
        self.writer.write([row])
        self._feed(self._workers, row.to_events("summary"))

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
