"""The collector: a thread that fetches queued records from the device and writes them.

Everything that a program or a caller records is appended to one queue and returns at
once. The thread collects once or twice a second: the entries that the device has
finished are fetched together, become a few columns, and are written.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

import jax

from frugax.errors import OutputError

from ._alerts import Alerts
from ._dispatch import Dispatch
from ._entries import Entry, ProgramRecords, StepMetrics, stride_of
from ._entry_reader import EntryReader
from ._flight_recorder import FlightRecorder
from ._rate import Rate
from ._rows import Rows
from ._series import Series

# Between two looks at the queue, and between two collections: each finds its code cold,
# and costs some hundred microseconds whatever it carries.
_TICK_S = 0.2
MIN_GAP_S = 0.4
_MAX_GAP_FACTOR = 2
# How long a step waits for more numbers of the same step.
_MIN_STEP_AGE_S = 0.1
# Seconds that a callback may wait for room.
_MAX_CALLBACK_WAIT_S = 1.0
# Memory that records of programs may hold while they wait. Without a cap in
# bytes, 4096 waiting frames could fill an accelerator.
_MAX_PENDING_BYTES = 256 * 2**20


class Collector:
    """Owns the queue of records and the thread that empties it.

    `add` is for any thread and returns at once.

    Attributes:
        reader: reads the entries from the device.
        latest_step: step of the last entry collected; None before the first.
        forced: collections made because too many entries waited.
        cpu_s: processor time that collecting has taken.
        changed: called when a stride has changed.
        caller_s: returns the seconds that callers have spent on handing over records.
        write_status: called after each collection.
        closed: set to end the thread.
        has_started: whether there is a thread.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        rate: Rate,
        max_entries: int,
        clock: Callable[[], float],
        flight: FlightRecorder | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        """Start no thread before the first entry."""
        self.latest_step: int | None = None
        self.forced = 0
        self.cpu_s = 0.0
        self.changed: Callable[[], None] = lambda: None
        self.caller_s: Callable[[], float] = lambda: 0.0
        self._caller_seen_s = 0.0
        self.write_status: Callable[[], None] = lambda: None
        self.closed = self.has_started = False
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._rate = rate
        self._max_entries = max_entries
        self._clock = clock
        self.reader = EntryReader(dispatch, flight=flight, alerts=alerts)
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._rows: deque[Rows] = deque()  # records of callbacks
        self._callback_steps: dict[str, int] = {}  # the last, by stream
        self._make_locks()
        self._last_tick = 0.0
        self._has_open_rows = False
        # The newest entry of each series, if it was thinned out while it waited.
        self._late: dict[Series | None, Entry] = {}

    def _make_locks(self) -> None:
        self._queue_lock = threading.Lock()
        # Reentrant: a sink or handler that runs in this thread may record as well.
        self._owner = threading.RLock()
        self._news = threading.Event()

    def abandon(self) -> None:
        """Leave all entries to the parent of a forked child."""
        self._make_locks()
        self._entries, self._rows, self._bytes = deque(), deque(), 0
        self._late = {}
        self.closed = self.has_started = True

    def __len__(self) -> int:
        return len(self._entries) + len(self._late) + self._count_rows()

    def _count_rows(self) -> int:
        # Copied in one step: other threads add to them.
        return sum(map(len, (*tuple(self._rows), *tuple(self._writer.waiting))))

    @property
    def waiting_rows(self) -> int:
        """Batches of rows that are on the host and wait for the journal."""
        return len(self._rows)

    @property
    def limit(self) -> float:
        """The budget, a share of the running time."""
        return self._rate.limit

    @property
    def is_over_limit(self) -> bool:
        """Whether more entries or bytes wait than allowed."""
        unwritten_bytes = sum(rows.nbytes for rows in tuple(self._writer.waiting))
        waiting_bytes = self._bytes + unwritten_bytes
        return len(self) > self._max_entries or waiting_bytes > _MAX_PENDING_BYTES

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        with self._queue_lock:
            self._entries.append(entry)
            self._bytes += entry.nbytes
        if not self.has_started:
            self.start()

    def start(self) -> None:
        """Start the thread; without one, collecting is left to `collect`."""
        self.has_started = True
        # Weak, so that a watcher that nobody uses any more is freed with its arrays.
        _start_thread(_collect_regularly, (weakref.ref(self), self._news))

    def wake(self) -> None:
        """Have the thread look at once."""
        self._news.set()

    def tick(self) -> None:
        """Collect entries that the device has finished."""
        now = time.monotonic()
        gap_s = MIN_GAP_S * min(self._rate.factor, _MAX_GAP_FACTOR)
        if now - self._last_tick < gap_s or not (len(self) or self._has_open_rows):
            return
        journal = self._dispatch.journal
        # Without a budget nothing is collected before the end.
        if not self._rate.limit or (journal is not None and journal.closed):
            return
        # First rows wait until the rate is known, so that a curve is even from its
        # beginning.
        waiting = {entry.series for entry in tuple(self._entries)}
        if any(s is not None and s.is_early(self._clock()) for s in waiting):
            return
        self._last_tick = now
        if self._owner.acquire(timeout=_TICK_S):
            try:
                self._collect(self._take_ready(), writes_open=True)
            except OutputError as e:
                self._writer.note_failure(e)
            finally:
                self._owner.release()

    def collect(self, *, rest: int = 0) -> None:
        """Collect all entries but the newest `rest`, waiting for the device.

        Raises:
            OutputError: the journal cannot be written; nothing is lost.
        """
        with self._owner:
            count = max(len(self._entries) - rest, 0)
            taken = self._thin([self._entries.popleft() for _ in range(count)])
            if not rest:
                taken += self._take_late(taken)
            self._collect(taken, writes_open=not rest, wait=True)

    def make_room(self) -> None:
        """Collect half of the entries, because too many wait."""
        self.forced += 1
        # Half: the newest may not be computed yet, and waiting for them stalls.
        self.collect(rest=min(len(self._entries), self._max_entries) // 2)

    def next_callback_step(self, stream: str) -> int:
        """Return the step of the next record of a callback: 0, 1, 2 and so on."""
        with self._queue_lock:
            step = self._callback_steps.get(stream, -1) + 1
            self._callback_steps[stream] = step
        return step

    def add_from_callback(self, rows: Rows, *, may_wait: bool) -> None:
        """Accept a record that a program called back with; for any thread.

        Where there is no room it is written here, or lost: the thread that collects may
        itself be blocked on the program whose callback waits.

        Args:
            rows: the record.
            may_wait: whether to wait for that thread, for a second at most.
        """
        kind = rows.kind or "summary"
        self._writer.losses.give(kind)
        if self.is_over_limit:
            self.write_rows(_MAX_CALLBACK_WAIT_S if may_wait else 0.0)
            if self.is_over_limit:
                self._writer.lose(kind, 1)
                return
        with self._queue_lock:
            self._rows.append(rows)
            self._bytes += rows.nbytes
        if not self.has_started:
            self.start()

    def write_rows(self, wait_s: float) -> None:
        """Write the rows that wait, unless another thread is collecting."""
        if not self._owner.acquire(timeout=wait_s):
            return
        before = time.thread_time()
        try:
            self._dispatch.dispatch(self._take_rows())
        except (OutputError, ValueError) as e:
            self._writer.note_failure(e)
        finally:
            self.cpu_s += time.thread_time() - before
            self._owner.release()

    def shed(self) -> None:
        """Drop the oldest rows of programs that the journal cannot take."""
        with self._owner:
            waiting = self._writer.waiting
            while waiting and self.is_over_limit and waiting[0].source != "caller":
                self._writer.drop_first()

    def wait_for_device(self) -> None:
        """Wait until the device has finished all entries."""
        for entry in tuple(self._entries):
            try:
                jax.block_until_ready(entry.arrays())
            # A failed program raises whatever its backend or a callback in it raises.
            # It is counted when it is read.
            except Exception:
                continue

    def _take_ready(self) -> list[Entry]:
        taken: list[Entry] = []
        # In order: a record must not overtake an older one into the journal.
        while self._entries and self._entries[0].is_ready():
            taken.append(self._entries.popleft())
        return self._thin(taken)

    def _thin(self, taken: list[Entry]) -> list[Entry]:
        """Leave out entries that the strides as they are now do not keep.

        The last of each series stays aside, in case no further one comes.
        """
        newest = {e.series: e.number for e in taken if e.series is not None}
        moved = [
            series.measure(number, self._clock()) for series, number in newest.items()
        ]
        if any(moved):
            self.changed()
        # Numbers of an evaluation: those of its step must not be missing.
        whole = {
            e.step for e in taken if isinstance(e, StepMetrics) and stride_of(e) == 1
        }
        waiting = [*self._late.values(), *taken]
        kept: list[Entry] = []
        self._late = {}
        for entry in waiting:
            is_whole = isinstance(entry, StepMetrics) and entry.step in whole
            self._late.pop(entry.series, None)
            if is_whole or not entry.number % stride_of(entry):
                kept.append(entry)
            else:
                self._late[entry.series] = entry
        self._leave_out({*waiting} - {*kept} - {*self._late.values()})
        return kept

    def _take_late(self, taken: list[Entry]) -> list[Entry]:
        """Take the entries that stayed aside, unless newer metrics have been taken."""
        last = max((entry.step for entry in taken), default=-(2**63))
        late = sorted(self._late.values(), key=lambda entry: entry.step)
        self._late = {}
        kept = [e for e in late if isinstance(e, ProgramRecords) or e.step >= last]
        self._leave_out({*late} - {*kept})
        return kept

    def _leave_out(self, entries: Collection[Entry]) -> None:
        if count := sum(isinstance(entry, StepMetrics) for entry in entries):
            self._writer.leave_out("scalar", count)

    def _collect(
        self, taken: list[Entry], *, writes_open: bool, wait: bool = False
    ) -> None:
        """Pass entries on; rows that cannot be written stay in `_rows`."""
        before = time.thread_time()
        try:
            rows = self.reader.read(taken)
        finally:
            with self._queue_lock:
                self._bytes -= sum(entry.nbytes for entry in taken)
        has_rows = bool(rows or self._rows)
        self._dispatch.dispatch([*rows, *self._take_rows()])
        if writes_open:
            self._dispatch.write_open_rows(0.0 if wait else _MIN_STEP_AGE_S)
        self._has_open_rows = has_rows or not writes_open
        spent = time.thread_time() - before
        self.cpu_s += spent
        if taken:
            self.write_status()
            caller_s = self.caller_s()
            spent += caller_s - self._caller_seen_s
            self._caller_seen_s = caller_s
            self._rate.collected(spent, self._clock())
            self.latest_step = taken[-1].step

    def _take_rows(self) -> list[Rows]:
        """Take the records of callbacks."""
        rows = [self._rows.popleft() for _ in range(len(self._rows))]
        with self._queue_lock:
            self._bytes -= sum(one.nbytes for one in rows)
        return rows


def _start_thread(target: Callable[..., None], args: tuple[Any, ...]) -> bool:
    thread = threading.Thread(
        target=target, args=args, name="frugax watch", daemon=True
    )
    try:
        thread.start()
    except RuntimeError:  # no more threads, or the interpreter is exiting
        return False
    return True


def _collect_regularly(owner: "weakref.ref[Collector]", news: threading.Event) -> None:
    while True:
        news.wait(_TICK_S)
        news.clear()
        collector = owner()
        if collector is None or collector.closed:
            return
        try:
            collector.tick()
        # Whatever a user's handler or a broken array raises, records go on.
        except Exception as e:
            collector._writer.note_failure(e)
        del collector
