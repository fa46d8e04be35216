"""Feed one sink from a queue and a worker thread, and survive anything the sink does.

`put` never waits and never raises for anything that the sink does. A write that takes
too long is abandoned: its thread is left alone, and its records count as lost and,
while the thread holds them, against the cap. No extra thread watches for that: `put`,
`flush`, `close` and `report` check the clock. Where no thread is available, as while
Python 3.12 and later exit, `flush` and `close` write in the caller's thread.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from frugax.fileio import abandon_in_children

from ..sinks import Event, Kind, Sink
from ._circuit_breaker import CircuitBreaker, State
from ._event_queue import EventQueue, QueuedEvent
from ._losses import Losses, Tally
from ._runner import error_text

# Longest pause between two looks at the clock while `flush` or `close` waits, since the
# end of a write that hangs is never announced.
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class SinkReport:
    """The state and the counts of a sink.

    Attributes:
        name: name of the sink.
        state: whether it works, rests after failures, or is on trial after a rest.
        tallies: counts of its records, by class.
        failures: writes that raised.
        hung: writes that were abandoned, including those that ended later.
        rested: how often it has been left alone for a while.
        last_error: text of the last error; empty if there was none.
        cpu_s: CPU seconds of the writes that have ended.
    """

    name: str
    state: State
    tallies: Mapping[Kind, Tally]
    failures: int
    hung: int
    rested: int
    last_error: str
    cpu_s: float

    @property
    def has_problems(self) -> bool:
        """Whether a write failed or hung, or a record was lost."""
        lost = any(tally.lost for tally in self.tallies.values())
        return lost or bool(self.failures or self.hung)

    def __str__(self) -> str:
        lost = sum(tally.lost for tally in self.tallies.values())
        given = sum(tally.given for tally in self.tallies.values())
        text = f"{self.name}: {self.state}, {lost:,} of {given:,} records lost"
        if self.failures:
            text += f", {self.failures:,} writes failed (last: {self.last_error})"
        if self.hung:
            text += f", {self.hung:,} hung"
        return text


class _Worker:
    """A thread and its current call of the sink."""

    def __init__(self, run: Callable[["_Worker"], None], name: str) -> None:
        self.taken: list[QueuedEvent] = []
        self.call_began: float | None = None
        self.abandoned = False
        self.thread = threading.Thread(
            target=run, args=(self,), name=f"frugax sink {name}", daemon=True
        )


class SinkWorker:
    """Hands events to a sink from a thread of its own.

    Events that wait, and events that the sink holds, take at most `max_bytes`. When
    that is full, frames are dropped first, then scalars, then summaries, the oldest
    first. A summary whose write raised is tried again; scalars and frames are not.

    Attributes:
        sink: the sink.
        losses: counts of its records.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        max_bytes: int = 8 * 2**20,
        max_events: int = 256,
        failures: int = 3,
        rest_s: float = 30.0,
        hang_s: float = 30.0,
        max_hung: int = 4,
    ) -> None:
        """Start no thread before the first event.

        Args:
            sink: the sink.
            max_bytes: cap of the queue in bytes; > 0.
            max_events: most events of one write; >= 1.
            failures: failures in a row after which the sink rests, and tries of a
                summary; >= 1.
            rest_s: duration of a rest in seconds.
            hang_s: seconds after which a write is abandoned; > 0.
            max_hung: number of abandoned writes that have not ended at which nothing
                more is tried; >= 1.

        Raises:
            ValueError: a number is out of its range.
        """
        for name, value in (
            ("max_bytes", max_bytes),
            ("max_events", max_events),
            ("hang_s", hang_s),
            ("max_hung", max_hung),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        self.sink = sink
        self.losses = Losses()
        self._breaker = CircuitBreaker(failures=failures, rest_s=rest_s)
        self._queue = EventQueue(max_bytes, self.losses)
        self._max_events = max_events
        self._max_tries = failures
        self._hang_s = hang_s
        self._max_hung = max_hung
        # One condition guards all that follows; it is never held during a call of the
        # sink.
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._threads_unavailable = False
        self._abandoned: list[_Worker] = []
        self._hung = 0
        self._failures = 0
        self._last_error = ""
        self._cpu_s = 0.0
        self._is_torn = False  # an interrupt may have left `put` half done
        self._is_closing = False
        self._is_shut = False  # no event is accepted any more
        self._sink_closed = False  # the sink's own `close` has returned
        self._closed_cleanly = False
        abandon_in_children(self)

    def abandon(self) -> None:
        """Take and write nothing more in a forked child: the sink is its parent's."""
        self._changed = threading.Condition()
        self.losses = Losses()
        self._queue = EventQueue(self._queue.max_bytes, self.losses)
        self._worker, self._abandoned = None, []
        self._is_shut = self._closed_cleanly = True

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that wait or that the sink holds, as counted for the cap."""
        with self._changed:
            return self._queue.bytes

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the writes that have ended."""
        return self._cpu_s

    @property
    def is_settled(self) -> bool:
        """Whether no call of the sink is under way, not even an abandoned one."""
        with self._changed:
            busy = self._worker is not None and self._worker.call_began is not None
            return not busy and not self._abandoned

    def put(self, events: Iterable[Event]) -> None:
        """Queue events. Returns at once, whatever the sink does.

        Args:
            events: in the order in which they were made; not changed afterwards.
        """
        with self._changed:
            # Ctrl-C can end this method anywhere. The next call repairs the counts.
            if self._is_torn:
                self._queue.recount()
            self._is_torn = True
            for event in events:
                self.losses.give(event.kind)
                if self._is_shut:
                    self.losses.drop(event.kind, why="closed")
                else:
                    self._queue.add(event)
            self._is_torn = False
            self._abandon_if_hung()
            self._ensure_thread()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all queued events are written.

        A sink that rests is tried once, immediately.

        Returns:
            Whether nothing waits any more; False if the sink hangs or fails again, or
            after the timeout.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            # The last chance before the run ends, so a rest is cut short.
            self._breaker.wake()
            while len(self._queue) or (self._worker and self._worker.taken):
                self._abandon_if_hung()
                has_thread = self._ensure_thread()
                if self._breaker.wait_s > 0:
                    return False
                if not has_thread:
                    if not self._threads_unavailable:
                        return False
                    self._run_inline()
                    continue
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.notify_all()
                self._changed.wait(min(left_s, _POLL_S))
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, then close the sink. Events that were not written count as lost.

        Returns:
            Whether all events were written and the sink closed without an error. A
            second call changes nothing and gives the same answer.
        """
        deadline = time.monotonic() + timeout_s
        if self._is_shut:
            return self._closed_cleanly
        is_flushed = self.flush(timeout_s)
        with self._changed:
            self._is_shut = True
            for item in self._queue.clear():
                self.losses.drop(item.event.kind, why="closed")
            self._is_closing = True
            while self._is_closing:
                self._abandon_if_hung()
                left_s = deadline - time.monotonic()
                if not self._ensure_thread():
                    if self._threads_unavailable:
                        self._run_inline()
                    break
                if left_s <= 0:
                    break
                self._changed.notify_all()
                self._changed.wait(min(left_s, _POLL_S))
            self._closed_cleanly = is_flushed and self._sink_closed
            return self._closed_cleanly

    def report(self) -> SinkReport:
        """Report the state and the counts so far."""
        with self._changed:
            self._abandon_if_hung()
            return SinkReport(
                name=self.sink.name,
                state=self._breaker.state,
                tallies=self.losses.tallies,
                failures=self._failures,
                hung=self._hung,
                rested=self._breaker.rested,
                last_error=self._last_error,
                cpu_s=self._cpu_s,
            )

    def _abandon_if_hung(self) -> None:
        """Abandon the current call of the sink if it takes too long."""
        worker = self._worker
        if worker is None or worker.call_began is None:
            return
        if time.monotonic() - worker.call_began <= self._hang_s:
            return
        worker.abandoned = True
        self._worker = None
        # Python cannot stop a thread. It is kept here only to be counted until its call
        # ends.
        self._abandoned.append(worker)
        self._hung += 1
        self._is_closing = False  # if `close` is what hangs, it is not tried again
        for item in worker.taken:
            self.losses.drop(item.event.kind, why="sink hung")
        self._breaker.rest()

    def _ensure_thread(self) -> bool:
        """Start a thread if there is work. Returns False if there can be none."""
        if self._worker is not None and self._worker.thread.is_alive():
            return True
        if not len(self._queue) and not self._is_closing:
            return True
        if len(self._abandoned) >= self._max_hung:
            return False
        # Assigned before it starts: an interrupt inside `start` must not leave a thread
        # that works beside the next one. A thread that is not `_worker` ends itself.
        self._worker = _Worker(self._work, self.sink.name)
        try:
            self._worker.thread.start()
        except RuntimeError as e:  # no more threads, or the interpreter is exiting
            # An error of the sink itself is more informative.
            self._last_error = self._last_error or error_text(e)
            self._worker = None
            self._threads_unavailable = True
            return False
        self._threads_unavailable = False
        return True

    def _work(self, me: _Worker) -> None:
        """Serve the sink until the worker is abandoned or closed."""
        while self._wait_for_work(me):
            is_close = not me.taken
            self._call_sink(me)
            if me.abandoned or is_close:
                return

    def _run_inline(self) -> None:
        """Make one call of the sink in this thread; there is work to do."""
        me = self._worker = _Worker(self._work, self.sink.name)
        if self._wait_for_work(me):
            self._call_sink(me)
        self._worker = None

    def _wait_for_work(self, me: _Worker) -> bool:
        """Wait for events or for `close`. Returns False if this thread should end."""
        with self._changed:
            while self._worker is me:
                if self._is_closing:
                    me.call_began = time.monotonic()
                    return True
                wait_s = self._breaker.wait_s
                if len(self._queue) and wait_s <= 0:
                    self._breaker.begin()
                    # One at a time after a failure, so that a single event that the
                    # sink cannot take does not cost the others their place.
                    is_trial = self._breaker.state == "on trial"
                    alone = is_trial or self._breaker.in_a_row > 0
                    me.taken = self._queue.take(1 if alone else self._max_events)
                    me.call_began = time.monotonic()
                    return True
                self._changed.wait(wait_s if len(self._queue) else None)
            return False

    def _call_sink(self, me: _Worker) -> None:
        """Write the taken events, or close the sink if none were taken."""
        is_close = not me.taken
        error: str | None = None
        before = time.thread_time()
        try:
            if is_close:
                self.sink.close()
            else:
                self.sink.write([item.event for item in me.taken])
        # Any exception of a sink, SystemExit too, is counted and shown in the receipt;
        # it must end neither this thread nor the program.
        except BaseException as e:
            error = error_text(e)
        # CPU time of this thread, and not the clock's: a sink that waits for a network
        # takes nothing from the program.
        cpu_s = time.thread_time() - before
        with self._changed:
            self._cpu_s += cpu_s
            self._finish_call(me, error, is_close=is_close)
            self._changed.notify_all()

    def _finish_call(self, me: _Worker, error: str | None, *, is_close: bool) -> None:
        taken, me.taken, me.call_began = me.taken, [], None
        if error is not None:
            self._failures += 1
            self._last_error = error
        if me.abandoned:
            self._abandoned.remove(me)
            self._queue.release(taken)
            # The write has ended after all: its events were counted as lost.
            if error is None:
                for item in taken:
                    self.losses.keep_late(item.event.kind, why="sink hung")
                self._sink_closed |= is_close
        elif is_close:
            self._is_closing = False
            self._worker = None
            self._sink_closed = error is None
        elif error is None:
            self._breaker.succeed()
            self._queue.release(taken)
            for item in taken:
                self.losses.keep(item.event.kind)
        else:
            self._breaker.fail()
            self._requeue_or_drop(taken)

    def _requeue_or_drop(self, taken: list[QueuedEvent]) -> None:
        # Only summaries are retried: a scalar or a frame is soon replaced by the next.
        retried: list[QueuedEvent] = []
        lost: list[QueuedEvent] = []
        for item in taken:
            item.tries += 1
            if item.event.kind == "summary" and item.tries < self._max_tries:
                retried.append(item)
            else:
                lost.append(item)
        for item in lost:
            self.losses.drop(item.event.kind, why="sink failed")
        self._queue.release(lost)
        self._queue.put_back(retried)
