"""Feed rows to the sinks of a watcher."""

from collections.abc import Sequence

from ._event import Sink
from ._rows import Rows
from .delivery import SinkReport, SinkWorker

# A loop of 10,000 rounds must not become 10,000 events: each sink gets at most this
# many rows of one batch. The journal gets all of them.
_MAX_EVENTS_PER_BATCH = 64


class SinkFeeds:
    """The sinks of a watcher, each with a queue and a thread; `feed` never waits."""

    def __init__(self, sinks: Sequence[Sink | SinkWorker]) -> None:
        self._workers = [
            sink if isinstance(sink, SinkWorker) else SinkWorker(sink) for sink in sinks
        ]

    @property
    def cpu_s(self) -> float:
        """CPU seconds that the sinks have taken."""
        return sum(worker.cpu_s for worker in self._workers)

    def feed(self, rows: Rows) -> None:
        """Pass rows to the sinks; those on watching itself are summaries to them."""
        if not self._workers:
            return
        # No summary and no number of a training step may be lost.
        if rows.kind in ("scalar", "frame") and rows.stream:
            rows = rows.thin(_MAX_EVENTS_PER_BATCH)
        events = rows.to_events(rows.kind or "summary")
        for worker in self._workers:
            worker.put(events)

    def flush(self, timeout_s: float = 5.0) -> None:
        """Wait until the sinks have their events; see `SinkWorker.flush`."""
        for worker in self._workers:
            worker.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Close the sinks; see `SinkWorker.close`."""
        for worker in self._workers:
            worker.close(timeout_s)

    def reports(self) -> list[SinkReport]:
        """Report on the sinks."""
        return [worker.report() for worker in self._workers]
