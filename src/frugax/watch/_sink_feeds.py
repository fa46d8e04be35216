"""Feed rows to the sinks, and to the functions that handle the values of a probe."""

import functools
from collections.abc import Sequence

from ._event import Event, Kind, Sink
from ._rows import Rows
from .delivery import SinkReport, SinkWorker, callback_stats, run_inline
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
            callback_stats.record(probe.label, outcome)

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class SinkFeeds:
    """The sinks of a watcher, each with a queue and a thread; `feed` never waits.

    Where `asynchronous` is False it waits until the sinks have the rows.
    """

    def __init__(
        self,
        sinks: Sequence[Sink | SinkWorker],
        *,
        has_journal: bool,
        asynchronous: bool,
    ) -> None:
        self._asynchronous = asynchronous
        self._workers = [
            sink if isinstance(sink, SinkWorker) else SinkWorker(sink) for sink in sinks
        ]
        # Where something else shows a record, its handler need not.
        self._shows = has_journal or bool(self._workers)
        # Handlers are users' functions: like sinks they may raise or hang.
        self._handler_sink = _HandlerSink()
        self._handler_worker = SinkWorker(self._handler_sink)
        self._all = (*self._workers, self._handler_worker)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that sinks and handlers have taken."""
        return sum(worker.cpu_s for worker in self._all)

    def feed(self, rows: Rows) -> None:
        """Pass rows to the sinks, or calls and unseen records to their handlers."""
        if rows.kind is not None and self._workers:
            thin = rows
            # No summary and no number of a training step may be lost.
            if rows.kind != "summary" and rows.stream:
                thin = rows.thin(_MAX_EVENTS_PER_BATCH)
            self.feed_as(rows.kind, thin)
        probe = rows.probe
        if probe is not None and probe.handler and not (rows.kind and self._shows):
            self._handler_sink.probes[rows.stream] = probe
            self._put(self._handler_worker, rows.to_events(rows.kind or "scalar"))

    def feed_as(self, kind: Kind, rows: Rows) -> None:
        """Pass rows to the sinks as records of a class."""
        if self._workers:
            events = rows.to_events(kind)
            for worker in self._workers:
                self._put(worker, events)

    def _put(self, worker: SinkWorker, events: Sequence[Event]) -> None:
        worker.put(events)
        if not self._asynchronous:
            worker.flush()

    def flush(self, timeout_s: float) -> None:
        """Wait until sinks and handlers have their events; see `SinkWorker.flush`."""
        for worker in self._all:
            worker.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Close the sinks; see `SinkWorker.close`."""
        for worker in self._all:
            worker.close(timeout_s)

    def reports(self) -> list[SinkReport]:
        """Report on the sinks, and on the handlers if they had problems."""
        reports = [worker.report() for worker in self._workers]
        handlers = self._handler_worker.report()
        return [*reports, handlers] if handlers.has_problems else reports
