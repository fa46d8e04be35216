"""Feed one sink from a queue and a worker thread, and survive anything the sink does.

`put` never waits and never raises for anything that the sink does. A sink whose write
takes too long is dropped: it gets no further records, and a line on standard error and
the report name it. Python cannot stop its thread, which holds its last records until
the write ends. No extra thread watches for that: `put`, `flush`, `close` and `report`
check the clock.
"""

import dataclasses
import functools
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias

from frugax.fileio import abandon_in_children

from .._event import KINDS, Event, Kind, Sink
from ._error_text import error_text, write_message
from ._losses import Losses, Tally, Why

State: TypeAlias = Literal["working", "dropped"]
# Most events of one write.
_MAX_EVENTS = 256
# Memory of an event besides its numbers: the event, its mapping and its place in the
# queue; then the name, the box and the array of each value. Measured with tracemalloc,
# and checked by tests/watch/test_delivery.py.
_PER_EVENT_BYTES = 600
_PER_VALUE_BYTES = 300
# Longest pause between two looks at the clock while `flush` or `close` waits, since the
# end of a write that hangs is never announced.
_POLL_S = 0.05


def charge_bytes(event: Event) -> int:
    """Return the bytes that a queued event is charged for, at least its memory."""
    return event.bytes + _PER_EVENT_BYTES + _PER_VALUE_BYTES * len(event.values)


@dataclasses.dataclass(frozen=True, slots=True)
class SinkReport:
    """The state and the counts of a sink.

    Attributes:
        name: name of the sink.
        state: whether it works, or was dropped because a write did not end.
        tallies: counts of its records, by class.
        failures: writes that raised.
        last_error: text of the last error; empty if there was none.
    """

    name: str
    state: State
    tallies: Mapping[Kind, Tally]
    failures: int
    last_error: str

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
    first. A summary whose write raised is tried once more; scalars and frames are not.

    Attributes:
        sink: the sink.
        losses: counts of its records.
        waiting_bytes: bytes of events that wait or that the sink holds, as counted for
            the cap.
        cpu_s: CPU seconds of the writes that have ended.
    """

    def __init__(
        self, sink: Sink, *, max_bytes: int = 8 * 2**20, hang_s: float = 30.0
    ) -> None:
        """Start the thread: while Python 3.12 and later exit, none can be started.

        Args:
            sink: the sink.
            max_bytes: cap of the queue in bytes; > 0.
            hang_s: seconds after which a sink whose write has not ended is dropped;
                > 0.

        Raises:
            RuntimeError: there can be no more threads.
            ValueError: a number is out of its range.
        """
        for name, value in (("max_bytes", max_bytes), ("hang_s", hang_s)):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        self.sink = sink
        self._max_bytes = max_bytes
        self._hang_s = hang_s
        self._numbers = itertools.count()
        self._empty()
        # One condition guards all that follows; it is never held during a call of the
        # sink.
        self._changed = threading.Condition()
        self._is_dropped = False
        self._failures = 0
        self._last_error = ""
        self.cpu_s = 0.0
        self._is_closing = False
        self._is_shut = False  # no event is accepted any more
        self._sink_closed = False  # the sink's own `close` has returned
        self._closed_cleanly = False
        abandon_in_children(self)
        threading.Thread(
            target=self._work, name=f"frugax sink {sink.name}", daemon=True
        ).start()

    def abandon(self) -> None:
        """Take and write nothing more in a forked child: the sink is its parent's."""
        self._changed = threading.Condition()
        self._empty()
        self._is_shut = self._closed_cleanly = True

    def _empty(self) -> None:
        self.losses = Losses()
        self.waiting_bytes = 0
        # By class, in the order of their numbers.
        self._queue: dict[Kind, deque[tuple[int, Event]]] = {k: deque() for k in KINDS}
        self._taken: list[Event] = []  # that the sink is writing
        self._call_began: float | None = None  # None while the sink is not called

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
                    self._add(event)
            self._drop_if_hung()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all queued events are written or lost.

        Returns:
            Whether nothing waits any more; False if the sink hangs, or after the
            timeout.
        """
        is_empty = lambda: not (self._has_events or self._taken)
        with self._changed:
            return self._wait_until(is_empty, time.monotonic() + timeout_s)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, then close the sink. Events that still wait count as lost.

        Returns:
            Whether no event waited and the sink closed without an error. A second call
            changes nothing and gives the same answer.
        """
        deadline = time.monotonic() + timeout_s
        if self._is_shut:
            return self._closed_cleanly
        is_flushed = self.flush(timeout_s)
        with self._changed:
            self._is_shut = self._is_closing = True
            self._drop_all(why="closed")
            self._wait_until(lambda: not self._is_closing, deadline)
            self._closed_cleanly = is_flushed and self._sink_closed
            return self._closed_cleanly

    def report(self) -> SinkReport:
        """Report the state and the counts so far."""
        with self._changed:
            self._drop_if_hung()
            return SinkReport(
                name=self.sink.name,
                state="dropped" if self._is_dropped else "working",
                tallies=self.losses.tallies,
                failures=self._failures,
                last_error=self._last_error,
            )

    @property
    def _has_events(self) -> bool:
        return any(self._queue.values())

    def _add(self, event: Event) -> None:
        """Queue an event; without room the oldest of the least important class goes."""
        charge = charge_bytes(event)
        if charge > self._max_bytes:
            self.losses.drop(event.kind, why="too large")
            return
        self._queue[event.kind].append((next(self._numbers), event))
        self.waiting_bytes += charge
        for kind in reversed(KINDS):
            while self.waiting_bytes > self._max_bytes and self._queue[kind]:
                self._drop_oldest(kind, why="queue full")

    def _take(self) -> list[Event]:
        """Take the oldest events, of a quarter of the cap unless one is larger.

        They count for the cap until they are written: a sink that hangs holds them.
        """
        room = self._max_bytes // 4
        waiting = heapq.merge(*self._queue.values())
        for _, event in itertools.islice(waiting, _MAX_EVENTS):
            room -= charge_bytes(event)
            if self._taken and room < 0:
                break
            self._taken.append(event)
        for event in self._taken:
            self._queue[event.kind].popleft()
        return self._taken

    def _drop_oldest(self, kind: Kind, *, why: Why) -> None:
        _, event = self._queue[kind].popleft()
        self.waiting_bytes -= charge_bytes(event)
        self.losses.drop(kind, why=why)

    def _drop_all(self, *, why: Why) -> None:
        for kind in KINDS:
            while self._queue[kind]:
                self._drop_oldest(kind, why=why)

    def _wait_until(self, is_done: Callable[[], bool], deadline: float) -> bool:
        """Wait while the thread works, with the condition held."""
        while not is_done():
            self._drop_if_hung()
            if self._is_dropped:
                return False
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            self._changed.notify_all()
            self._changed.wait(min(left_s, _POLL_S))
        return True

    def _drop_if_hung(self) -> None:
        """Give the sink up if its call takes too long."""
        if self._is_dropped or self._call_began is None:
            return
        if time.monotonic() - self._call_began <= self._hang_s:
            return
        self._is_dropped = True
        self._drop_all(why="sink hung")
        write_message(
            f"the sink {self.sink.name!r} is dropped: a write did not end within "
            f"{self._hang_s:g} s. The run goes on."
        )

    def _work(self) -> None:
        """Serve the sink until it is closed or dropped."""
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Write waiting events, or close the sink; False if this thread should end.

        An event that fails may not cost the others their place: each summary is tried
        again alone. A scalar or a frame is soon replaced by the next.
        """
        with self._changed:
            while not (self._has_events or self._is_closing or self._is_dropped):
                self._changed.wait()
            if self._is_dropped:
                return False
            taken = self._take()
        if not taken:
            is_closed = self._call(self.sink.close)
            with self._changed:
                self._is_closing, self._sink_closed = False, is_closed
                self._changed.notify_all()
            return False
        is_kept = self._call(functools.partial(self.sink.write, taken))
        for event in taken:
            is_written = is_kept
            if not is_kept and event.kind == "summary" and not self._is_dropped:
                is_written = self._call(functools.partial(self.sink.write, [event]))
            if is_written:
                self.losses.keep(event.kind)
            else:
                self.losses.drop(event.kind, why="sink failed")
        with self._changed:
            self.waiting_bytes -= sum(map(charge_bytes, taken))
            self._taken = []
            self._changed.notify_all()
        return True

    def _call(self, call: Callable[[], object]) -> bool:
        """Call the sink; returns whether it did not raise."""
        # The processor time of this thread, and not the clock's: a sink that waits for
        # a network takes nothing from the program.
        before = time.thread_time()
        self._call_began = time.monotonic()
        error = ""
        try:
            call()
        # Any exception of a sink, SystemExit too, is counted and shown in the receipt;
        # it must end neither this thread nor the program.
        except BaseException as e:
            error = error_text(e)
        with self._changed:
            self._call_began = None
            self.cpu_s += time.thread_time() - before
            if error:
                self._failures += 1
                self._last_error = error
        return not error
