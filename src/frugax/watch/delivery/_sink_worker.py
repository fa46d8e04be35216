"""Feed one sink from a queue and a worker thread, and survive anything the sink does.

`put` never waits and never raises for anything that the sink does. A sink whose write
takes too long is dropped: it gets no further records, and a line on standard error and
the report name it. Python cannot stop its thread, which holds its last records until
the write ends. No extra thread watches for that: `put`, `flush`, `close` and `report`
check the clock. Where no thread is available, as while Python 3.12 and later exit,
`flush` and `close` write in the caller's thread.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from frugax.fileio import abandon_in_children

from ..sinks import Event, Kind, Sink
from ._event_queue import EventQueue, QueuedEvent
from ._losses import Losses, Tally
from ._runner import error_text

State: TypeAlias = Literal["working", "resting", "dropped"]
# Longest pause between two looks at the clock while `flush` or `close` waits, since the
# end of a write that hangs is never announced.
_POLL_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class SinkReport:
    """The state and the counts of a sink.

    Attributes:
        name: name of the sink.
        state: whether it works, rests after failures, or was dropped because a write
            did not end.
        tallies: counts of its records, by class.
        failures: writes that raised.
        rested: how often it has been left alone for a while.
        last_error: text of the last error; empty if there was none.
        cpu_s: CPU seconds of the writes that have ended.
    """

    name: str
    state: State
    tallies: Mapping[Kind, Tally]
    failures: int
    rested: int
    last_error: str
    cpu_s: float

    @property
    def has_problems(self) -> bool:
        """Whether a write failed or did not end, or a record was lost."""
        lost = any(tally.lost for tally in self.tallies.values())
        return lost or bool(self.failures) or self.state == "dropped"

    def __str__(self) -> str:
        lost = sum(tally.lost for tally in self.tallies.values())
        given = sum(tally.given for tally in self.tallies.values())
        text = f"{self.name}: {self.state}, {lost:,} of {given:,} records lost"
        if self.failures:
            text += f", {self.failures:,} writes failed (last: {self.last_error})"
        return text


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
    ) -> None:
        """Start no thread before the first event.

        Args:
            sink: the sink.
            max_bytes: cap of the queue in bytes; > 0.
            max_events: most events of one write; >= 1.
            failures: failures in a row after which the sink rests, and tries of a
                summary; >= 1.
            rest_s: duration of a rest in seconds.
            hang_s: seconds after which a sink whose write has not ended is dropped;
                > 0.

        Raises:
            ValueError: a number is out of its range.
        """
        for name, value in (
            ("max_bytes", max_bytes),
            ("max_events", max_events),
            ("failures", failures),
            ("hang_s", hang_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        if not rest_s >= 0:
            raise ValueError(f"rest_s must be >= 0, got {rest_s}.")
        self.sink = sink
        self.losses = Losses()
        self._queue = EventQueue(max_bytes, self.losses)
        self._max_events = max_events
        self._max_failures = failures
        self._rest_s = rest_s
        self._hang_s = hang_s
        # One condition guards all that follows; it is never held during a call of the
        # sink.
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._threads_unavailable = False
        self._taken: list[QueuedEvent] = []  # that the sink is writing
        self._call_began: float | None = None  # None while the sink is not called
        self._is_dropped = False
        # A circuit breaker (Nygard, Release It!, 2007): a sink that keeps failing is
        # left alone for a while, and then tried with one event.
        self._failures_in_a_row = 0
        self._rests_until = 0.0
        self._rested = 0
        self._failures = 0
        self._last_error = ""
        self._cpu_s = 0.0
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
        self._thread, self._taken, self._call_began = None, [], None
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

    def put(self, events: Iterable[Event]) -> None:
        """Queue events. Returns at once, whatever the sink does.

        Args:
            events: in the order in which they were made; not changed afterwards.
        """
        with self._changed:
            for event in events:
                self.losses.give(event.kind)
                if self._is_dropped:
                    self.losses.drop(event.kind, why="sink hung")
                elif self._is_shut:
                    self.losses.drop(event.kind, why="closed")
                else:
                    self._queue.add(event)
            self._drop_if_hung()
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
            self._rests_until = 0.0
            while len(self._queue) or self._taken:
                self._drop_if_hung()
                if self._is_dropped:
                    return False
                has_thread = self._ensure_thread()
                if self._rest_left_s > 0:
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
                self._drop_if_hung()
                if self._is_dropped:
                    break
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
            self._drop_if_hung()
            state: State = "resting" if self._rest_left_s > 0 else "working"
            return SinkReport(
                name=self.sink.name,
                state="dropped" if self._is_dropped else state,
                tallies=self.losses.tallies,
                failures=self._failures,
                rested=self._rested,
                last_error=self._last_error,
                cpu_s=self._cpu_s,
            )

    @property
    def _rest_left_s(self) -> float:
        return max(0.0, self._rests_until - time.monotonic())

    def _drop_if_hung(self) -> None:
        """Give the sink up if its call takes too long."""
        if self._is_dropped or self._call_began is None:
            return
        if time.monotonic() - self._call_began <= self._hang_s:
            return
        self._is_dropped = True
        for item in (*self._taken, *self._queue.clear()):
            self.losses.drop(item.event.kind, why="sink hung")
        # Standard error may be closed or missing.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(
                f"frugax.watch: the sink {self.sink.name!r} is dropped: a write did "
                f"not end within {self._hang_s:g} s. The run goes on.\n"
            )

    def _ensure_thread(self) -> bool:
        """Start a thread if there is work. Returns False if there can be none."""
        if self._thread is not None and self._thread.is_alive():
            return True
        if not len(self._queue) and not self._is_closing:
            return True
        # Assigned before it starts: an interrupt inside `start` must not leave a thread
        # that works beside the next one. A thread that is not `_thread` ends itself.
        self._thread = threading.Thread(
            target=self._work, name=f"frugax sink {self.sink.name}", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError as e:  # no more threads, or the interpreter is exiting
            # An error of the sink itself is more informative.
            self._last_error = self._last_error or error_text(e)
            self._thread = None
            self._threads_unavailable = True
            return False
        self._threads_unavailable = False
        return True

    def _work(self) -> None:
        """Serve the sink until it is closed or dropped."""
        while self._wait_for_work():
            is_close = not self._taken
            self._call_sink()
            if is_close:
                return

    def _run_inline(self) -> None:
        """Make one call of the sink in this thread; there is work to do."""
        self._thread = threading.current_thread()
        if self._wait_for_work():
            self._call_sink()
        self._thread = None

    def _wait_for_work(self) -> bool:
        """Wait for events or for `close`. Returns False if this thread should end."""
        with self._changed:
            while self._thread is threading.current_thread() and not self._is_dropped:
                if self._is_closing:
                    self._call_began = time.monotonic()
                    return True
                wait_s = self._rest_left_s
                if len(self._queue) and wait_s <= 0:
                    # One at a time after a failure, so that a single event that the
                    # sink cannot take does not cost the others their place.
                    count = 1 if self._failures_in_a_row else self._max_events
                    self._taken = self._queue.take(count)
                    self._call_began = time.monotonic()
                    return True
                self._changed.wait(wait_s if len(self._queue) else None)
            return False

    def _call_sink(self) -> None:
        """Write the taken events, or close the sink if none were taken."""
        is_close = not self._taken
        error: str | None = None
        before = time.thread_time()
        try:
            if is_close:
                self.sink.close()
            else:
                self.sink.write([item.event for item in self._taken])
        # Any exception of a sink, SystemExit too, is counted and shown in the receipt;
        # it must end neither this thread nor the program.
        except BaseException as e:
            error = error_text(e)
        # CPU time of this thread, and not the clock's: a sink that waits for a network
        # takes nothing from the program.
        cpu_s = time.thread_time() - before
        with self._changed:
            self._cpu_s += cpu_s
            self._finish_call(error, is_close=is_close)
            self._changed.notify_all()

    def _finish_call(self, error: str | None, *, is_close: bool) -> None:
        taken, self._taken, self._call_began = self._taken, [], None
        if error is not None:
            self._failures += 1
            self._last_error = error
        if is_close:
            self._is_closing = False
            self._thread = None
            self._sink_closed = error is None
        elif self._is_dropped:
            self._queue.release(taken)
            # The write has ended after all: its events were counted as lost.
            if error is None:
                for item in taken:
                    self.losses.keep_late(item.event.kind, why="sink hung")
        elif error is None:
            self._failures_in_a_row = 0
            self._queue.release(taken)
            for item in taken:
                self.losses.keep(item.event.kind)
        else:
            # After a rest one failure is enough: the sink has not recovered.
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= self._max_failures:
                self._rested += 1
                self._rests_until = time.monotonic() + self._rest_s
            self._requeue_or_drop(taken)

    def _requeue_or_drop(self, taken: list[QueuedEvent]) -> None:
        # Only summaries are retried: a scalar or a frame is soon replaced by the next.
        retried: list[QueuedEvent] = []
        lost: list[QueuedEvent] = []
        for item in taken:
            item.tries += 1
            if item.event.kind == "summary" and item.tries < self._max_failures:
                retried.append(item)
            else:
                lost.append(item)
        for item in lost:
            self.losses.drop(item.event.kind, why="sink failed")
        self._queue.release(lost)
        self._queue.put_back(retried)
