"""The way to one sink: a queue, a worker thread, and what happens when it fails.

`put` never waits and never raises for anything the sink does. A write that takes too
long is given up: its thread is left to itself, its records count as lost and, while
the thread holds them, against the cap. There is no thread that keeps watch: `put`,
`flush`, `close` and `report` look at the clock. Where no thread can be had, as while
Python 3.12 and later are ending, `flush` and `close` write in the caller's.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Mapping

from ..sinks import Event, Kind, Sink
from ._circuit_breaker import CircuitBreaker, State
from ._losses import Losses, Tally
from ._queue import EventQueue, Waiting
from ._runner import error_text

# Between two looks at the clock while `flush` waits for a write to end.
_LOOK_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class OutletReport:
    """How a sink has done.

    Attributes:
        name: of the sink.
        state: whether it works, rests after failures, or is on trial after a rest.
        tallies: what became of its records, by class.
        failures: how many writes raised.
        hung: how many writes were given up, those that ended later included.
        rested: how often it was left alone for a while.
        last_error: what the last failure said; empty if there was none.
        cpu_s: seconds of a CPU core that its writes took, those that ended.
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
    def went_wrong(self) -> bool:
        """Whether a write failed or hung, or a record was lost."""
        lost = any(tally.lost for tally in self.tallies.values())
        return lost or bool(self.failures or self.hung)

    def __str__(self) -> str:
        lost = sum(tally.lost for tally in self.tallies.values())
        given = sum(tally.given for tally in self.tallies.values())
        text = f"{self.name}: {self.state}, {lost:,} of {given:,} records lost"
        if self.failures:
            text += f", {self.failures:,} writes failed (last: {self.last_error})"
        return f"{text}, {self.hung:,} hung" if self.hung else text


class _Worker:
    """One thread and what it does now."""

    def __init__(self, run: Callable[["_Worker"], None], name: str) -> None:
        self.taken: list[Waiting] = []
        self.since: float | None = None  # when the call of the sink began
        self.given_up = False
        self.thread = threading.Thread(
            target=run, args=(self,), name=f"frugax sink {name}", daemon=True
        )


class Outlet:
    """Hands records to a sink from a thread of its own.

    Waiting records take at most `most_bytes`, what the sink holds on to included. When
    that is full, frames go first, then scalars, then summaries, the oldest first. A
    summary whose write raised is tried again; scalars and frames are not.

    Attributes:
        sink: where they go.
        losses: what became of them.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        most_bytes: int = 8 * 2**20,
        most_events: int = 256,
        failures: int = 3,
        rest_s: float = 30.0,
        hang_s: float = 30.0,
        most_hung: int = 4,
    ) -> None:
        """Nothing runs before the first record.

        Args:
            sink: where they go.
            most_bytes: what may wait, in bytes; > 0.
            most_events: how many records one write is given at most; >= 1.
            failures: after so many in a row the sink rests; a summary is tried as
                often; >= 1.
            rest_s: how long it rests.
            hang_s: after so long a write is given up; > 0.
            most_hung: with so many writes given up and not yet ended, nothing more is
                tried; >= 1.

        Raises:
            ValueError: a number is out of its range.
        """
        for name, value in (
            ("most_bytes", most_bytes),
            ("most_events", most_events),
            ("hang_s", hang_s),
            ("most_hung", most_hung),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        self.sink = sink
        self.losses = Losses()
        self._breaker = CircuitBreaker(failures=failures, rest_s=rest_s)
        self._queue = EventQueue(most_bytes, self.losses)
        self._most_events = most_events
        self._most_tries = failures
        self._hang_s = hang_s
        self._most_hung = most_hung
        self._changed = threading.Condition()
        self._worker: _Worker | None = None
        self._is_alone = False  # the last thread that was wanted could not be had
        self._given_up: list[_Worker] = []
        self._hung = 0
        self._failures = 0
        self._last_error = ""
        self._cpu_s = 0.0
        self._is_torn = False
        self._closing = False
        self._shut = False  # nothing is taken any more
        self._let_go = False  # the sink's own `close` has ended well
        self._went_well = False

    @property
    def waiting_bytes(self) -> int:
        """What waits and what the sink holds on to, as counted against the cap."""
        with self._changed:
            return self._queue.bytes

    @property
    def cpu_s(self) -> float:
        """Seconds of a CPU core that its writes took, those that ended."""
        return self._cpu_s

    def put(self, events: Iterable[Event]) -> None:
        """Leave some records to be written. Returns at once, whatever the sink does.

        Args:
            events: in the order in which they were made; not changed afterwards.
        """
        with self._changed:
            # An interrupt (Ctrl-C) can end this method anywhere. What it left half
            # done is put right by the next call.
            if self._is_torn:
                self._queue.recount()
            self._is_torn = True
            for event in events:
                self.losses.give(event.kind)
                if self._shut:
                    self.losses.drop(event.kind, why="closed")
                else:
                    self._queue.add(event)
            self._is_torn = False
            self._look()
            self._ensure_worker()
            self._changed.notify_all()

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that waits was written.

        A sink that rests is tried once at once.

        Returns:
            Whether nothing waits any more; False if the sink hangs, fails again, or
            the time was up.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._breaker.wake()
            while len(self._queue) or (self._worker and self._worker.taken):
                self._look()
                has_worker = self._ensure_worker()
                if self._breaker.wait_s > 0:
                    return False
                if not has_worker:
                    if not self._is_alone:
                        return False
                    self._work_here()
                    continue
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.notify_all()
                self._changed.wait(min(left, _LOOK_S))
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Flush, then close the sink. What could not be written is counted as lost.

        Returns:
            Whether all was written and the sink closed without an error. A second
            call changes nothing and gives the same answer.
        """
        deadline = time.monotonic() + timeout_s
        if self._shut:
            return self._went_well
        written = self.flush(timeout_s)
        with self._changed:
            self._shut = True
            for item in self._queue.clear():
                self.losses.drop(item.event.kind, why="closed")
            self._closing = True
            while self._closing:
                self._look()
                left = deadline - time.monotonic()
                if not self._ensure_worker():
                    if self._is_alone:
                        self._work_here()
                    break
                if left <= 0:
                    break
                self._changed.notify_all()
                self._changed.wait(min(left, _LOOK_S))
            self._went_well = written and self._let_go
            return self._went_well

    def report(self) -> OutletReport:
        """How the sink has done so far."""
        with self._changed:
            self._look()
            return OutletReport(
                name=self.sink.name,
                state=self._breaker.state,
                tallies=self.losses.tallies,
                failures=self._failures,
                hung=self._hung,
                rested=self._breaker.rested,
                last_error=self._last_error,
                cpu_s=self._cpu_s,
            )

    def _look(self) -> None:
        """Give up the write that takes too long, if there is one."""
        worker = self._worker
        if worker is None or worker.since is None:
            return
        if time.monotonic() - worker.since <= self._hang_s:
            return
        worker.given_up = True
        self._worker = None
        self._given_up.append(worker)
        self._hung += 1
        self._closing = False  # if it was `close` that hung, it is not tried again
        for item in worker.taken:
            self.losses.drop(item.event.kind, why="sink hung")
        self._breaker.rest()

    def _ensure_worker(self) -> bool:
        """Have a thread if there is work. False if there can be none."""
        if self._worker is not None and self._worker.thread.is_alive():
            return True
        if not len(self._queue) and not self._closing:
            return True
        if len(self._given_up) >= self._most_hung:
            return False
        # Known before it starts: an interrupt inside `start` must not leave a thread
        # that works beside the next one (see `_begin`).
        self._worker = _Worker(self._work, self.sink.name)
        try:
            self._worker.thread.start()
        except RuntimeError as e:  # no more threads, or the interpreter is ending
            # What the sink itself has said tells more.
            self._last_error = self._last_error or error_text(e)
            self._worker = None
            self._is_alone = True
            return False
        self._is_alone = False
        return True

    def _work(self, me: _Worker) -> None:
        """What the thread does until it is given up or the outlet is closed."""
        while self._begin(me):
            closing = not me.taken
            self._call(me)
            if me.given_up or closing:
                return

    def _work_here(self) -> None:
        """One call of the sink in this thread; something is there to be done."""
        me = self._worker = _Worker(self._work, self.sink.name)
        if self._begin(me):
            self._call(me)
        self._worker = None

    def _call(self, me: _Worker) -> None:
        """Write what was taken, or close the sink if nothing was, and book it."""
        closing = not me.taken
        error: str | None = None
        before = time.thread_time()
        try:
            if closing:
                self.sink.close()
            else:
                self.sink.write([item.event for item in me.taken])
        # Whatever a sink raises, SystemExit too, is its own affair: it is booked and
        # said in the receipt, and must end neither this thread nor the program.
        except BaseException as e:
            error = error_text(e)
        cpu_s = time.thread_time() - before
        with self._changed:
            self._cpu_s += cpu_s
            self._end(me, error, closing=closing)
            self._changed.notify_all()

    def _begin(self, me: _Worker) -> bool:
        """Wait for something to do. False if this thread is not needed any more."""
        with self._changed:
            while self._worker is me:
                if self._closing:
                    me.since = time.monotonic()
                    return True
                wait_s = self._breaker.wait_s
                if len(self._queue) and wait_s <= 0:
                    self._breaker.begin()
                    # After a failure one at a time, so that one record which the
                    # sink cannot take does not cost the others their place.
                    one = self._breaker.state == "on trial" or self._breaker.in_a_row
                    me.taken = self._queue.take(1 if one else self._most_events)
                    me.since = time.monotonic()
                    return True
                self._changed.wait(wait_s if len(self._queue) else None)
            return False

    def _end(self, me: _Worker, error: str | None, *, closing: bool) -> None:
        """Book what a call of the sink has come to."""
        taken, me.taken, me.since = me.taken, [], None
        if error is not None:
            self._failures += 1
            self._last_error = error
        if me.given_up:
            self._given_up.remove(me)
            self._queue.release(taken)
            if error is None:
                for item in taken:
                    self.losses.keep_late(item.event.kind, why="sink hung")
                self._let_go |= closing
        elif closing:
            self._closing = False
            self._worker = None
            self._let_go = error is None
        elif error is None:
            self._breaker.succeed()
            self._queue.release(taken)
            for item in taken:
                self.losses.keep(item.event.kind)
        else:
            self._breaker.fail()
            self._book_failed(taken)

    def _book_failed(self, taken: list[Waiting]) -> None:
        again: list[Waiting] = []
        lost: list[Waiting] = []
        for item in taken:
            item.tries += 1
            trying = item.event.kind == "summary" and item.tries < self._most_tries
            (again if trying else lost).append(item)
        for item in lost:
            self.losses.drop(item.event.kind, why="sink failed")
        self._queue.release(lost)
        self._queue.put_back(again)
