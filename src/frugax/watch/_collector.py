"""The collector: a thread that fetches queued records from the device and writes them.

Everything that a program or a caller records is appended to one queue and returns at
once. The thread collects once or twice a second: the entries that the device has
finished are fetched together, become a few columns, and are written. A bare unit of the
experiment delays this by up to 0.8 s, so that the cost of collecting is measured too.
"""

import bisect
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax

from frugax.errors import OutputError

from ._call_schedule import CallSchedule
from ._dispatch import Dispatch
from ._entry_reader import Entry, EntryReader, ProgramRecords
from ._flight_recorder import FlightRecorder
from ._row_batch import RowBatch
from .overhead import Experiment, Pace, Unit

# Between two looks at the queue, and between two collections: each finds its code cold,
# and costs some hundred microseconds whatever it carries.
_TICK_S = 0.2
_MIN_GAP_S = 0.4
_MAX_GAP_FACTOR = 2
# A bare unit of a slow loop may last minutes: records do not wait longer than this.
_MAX_DEFERRAL_S = 0.8
# How long a step waits for more numbers of the same step.
_MIN_STEP_AGE_S = 0.1
# Device memory that records of programs may hold while they wait. Without a cap in
# bytes, 4096 waiting frames could fill an accelerator.
_MAX_PENDING_BYTES = 256 * 2**20


class Collector:
    """Owns the queue of records and the thread that empties it.

    `add` and `add_mark` are for any thread and return at once.

    Attributes:
        reader: reads the entries from the device.
        latest_step: step of the last entry collected; None before the first.
        added: entries that were added.
        forced: collections made because too many entries waited.
        cpu_s: processor time that collecting has taken.
        is_bare: whether a bare unit is running, in which nothing is collected.
        judge: called when a pair of units is complete.
        caller_s: returns the seconds that callers have spent on handing over records.
        write_status: called after each collection.
        closed: set to end the thread.
        has_started: whether there is a thread.
        schedules: the watched functions, which keep their newest records themselves.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        pace: Pace,
        max_entries: int,
        clock: Callable[[], float],
        flight: FlightRecorder | None,
        inspect: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        """Start no thread before the first entry."""
        self.latest_step: int | None = None
        self.added = self._passed_on = self.forced = 0
        self.cpu_s = 0.0
        self.is_bare: Callable[[], bool] = lambda: False
        self.judge: Callable[[Experiment], None] = lambda experiment: None
        self.caller_s: Callable[[], float] = lambda: 0.0
        self._caller_seen_s = 0.0
        self.write_status: Callable[[], None] = lambda: None
        self.closed = self.has_started = False
        self.schedules: list[CallSchedule] = []
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._pace = pace
        self._max_entries = max_entries
        self._clock = clock
        self.reader = EntryReader(dispatch, flight=flight, inspect=inspect)
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        # Rows that are on the host but not in the journal, such as on a full disk.
        self._rows: deque[RowBatch] = deque()
        self._make_locks()
        self._last_tick = 0.0
        self._has_open_rows = False
        self._marks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._timing = False

    def _make_locks(self) -> None:
        self._queue_lock = threading.Lock()
        # Reentrant: a sink or handler that runs in this thread may record as well.
        self._owner = threading.RLock()
        self._news = threading.Event()

    def abandon(self) -> None:
        """Leave all entries to the parent of a forked child."""
        self._make_locks()
        self._entries, self._rows, self._bytes = deque(), deque(), 0
        self.closed = self.has_started = True

    def __len__(self) -> int:
        fresh = sum(len(schedule.fresh) for schedule in self.schedules)
        # Copied in one step: the other thread adds to it.
        return fresh + len(self._entries) + sum(map(len, tuple(self._rows)))

    @property
    def written(self) -> int:
        """Entries that were passed on."""
        return max(self._passed_on - sum(map(len, self._rows)), 0)

    @property
    def is_over_limit(self) -> bool:
        """Whether more entries or bytes wait than allowed."""
        return len(self) > self._max_entries or self._bytes > _MAX_PENDING_BYTES

    def add(self, entry: Entry) -> None:
        """Append an entry."""
        with self._queue_lock:
            self._entries.append(entry)
            self._bytes += entry.nbytes
            self.added += 1
        if not self.has_started:
            self.start()

    def add_mark(self, experiment: Experiment, unit: Unit, token: Any) -> None:
        """Have the time taken at which the device finishes a unit."""
        if not self._timing:
            self._timing = _start_thread(_take_times, (self._marks, self._clock))
        self._marks.put((experiment, unit, token, weakref.ref(self)))

    def start(self) -> None:
        """Start the thread; without one, collecting is left to `collect`."""
        self.has_started = True
        # Weak, so that a watcher that nobody uses any more is freed with its arrays.
        _start_thread(_collect_regularly, (weakref.ref(self), self._news))

    def wake(self) -> None:
        """Have the thread look at once."""
        self._news.set()

    def tick(self) -> None:
        """Collect entries that the device has finished, unless a bare unit runs."""
        now = time.monotonic()
        gap_s = _MIN_GAP_S * min(self._pace.factor, _MAX_GAP_FACTOR)
        if self.is_bare():
            gap_s = max(gap_s, _MAX_DEFERRAL_S)
        if now - self._last_tick < gap_s or not (len(self) or self._has_open_rows):
            return
        journal = self._dispatch.journal
        # Without a budget nothing is collected before the end.
        if not self._pace.limit or (journal is not None and journal.closed):
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
            taken = self._take_fresh(ready_only=False)
            with self._queue_lock:
                count = max(len(self._entries) - rest, 0)
                taken += [self._entries.popleft() for _ in range(count)]
            self._collect(taken, writes_open=not rest, wait=True)

    def make_room(self) -> None:
        """Collect half of the entries, because too many wait."""
        self.forced += 1
        # Half: the newest may not be computed yet, and waiting for them stalls.
        self.collect(rest=min(len(self._entries), self._max_entries) // 2)

    def write_callback_records(self, wait_s: float) -> None:
        """Write the records of callbacks, unless another thread is collecting.

        That thread may itself be blocked on the program whose callback waits here,
        hence the limit of the wait.
        """
        if not self._owner.acquire(timeout=wait_s):
            return
        before = time.thread_time()
        try:
            self._dispatch.write_callback_records()
        except (OutputError, ValueError) as e:
            self._writer.note_failure(e)
        finally:
            self.cpu_s += time.thread_time() - before
            self._owner.release()

    def shed(self) -> None:
        """Drop the oldest rows of programs that the journal cannot take."""
        with self._owner:
            while self._rows and self.is_over_limit and self._rows[0].source is None:
                rows = self._rows.popleft()
                self._writer.lose(rows.kind or "scalar", len(rows))

    def wait_for_device(self) -> None:
        """Wait until the device has finished all entries."""
        with self._queue_lock:
            entries = list(self._entries)
        newest = [schedule.fresh[-1] for schedule in self.schedules if schedule.fresh]
        entries += [ProgramRecords(s, {}, r, w) for s, r, w in newest]
        for entry in entries:
            try:
                jax.block_until_ready(entry.arrays())
            # A failed program raises whatever its backend or a callback in it raises.
            # It is counted when it is read.
            except Exception:
                continue

    def _take_fresh(self, *, ready_only: bool) -> list[Entry]:
        """Take the records that the watched functions have kept."""
        taken: list[Entry] = []
        for schedule in self.schedules:
            count = len(schedule.fresh)
            if ready_only and count and not schedule.fresh[count - 1][1].is_ready():
                # A device works in order: bisect for the first that is not ready.
                count = bisect.bisect_left(
                    range(count),
                    True,
                    key=lambda i: not schedule.fresh[i][1].is_ready(),
                )
            for _ in range(count):
                step, records, wanted = schedule.fresh.popleft()
                taken.append(ProgramRecords(step, records.probes, records, wanted))
        self.added += len(taken)
        return taken

    def _take_ready(self) -> list[Entry]:
        taken = self._take_fresh(ready_only=True)
        # In order: a record must not overtake an older one into the journal.
        with self._queue_lock:
            while self._entries and self._entries[0].is_ready():
                taken.append(self._entries.popleft())
        return taken

    def _collect(
        self, taken: list[Entry], *, writes_open: bool, wait: bool = False
    ) -> None:
        """Pass entries on; rows that cannot be written stay in `_rows`."""
        before = time.thread_time()
        self._passed_on += len(taken)
        try:
            self.reader.read(taken)
        finally:
            with self._queue_lock:
                self._bytes -= sum(entry.nbytes for entry in taken)
        self._rows.extend(self.reader.take_rows())
        while self._rows:
            unwritten = self._dispatch.dispatch_rows(self._rows[0])
            if unwritten is not None:
                self._rows[0] = unwritten
                failure = self._writer.failure
                if failure is not None:
                    raise failure
            else:
                self._rows.popleft()
        self._dispatch.write_callback_records()
        if writes_open:
            self._dispatch.write_open_rows(0.0 if wait else _MIN_STEP_AGE_S)
        self._has_open_rows = bool(taken) or not writes_open
        spent = time.thread_time() - before
        self.cpu_s += spent
        if taken:
            self.write_status()
            caller_s = self.caller_s()
            spent += caller_s - self._caller_seen_s
            self._caller_seen_s = caller_s
            self._pace.collected(spent, self._clock())
            self.latest_step = taken[-1].step


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


def _take_times(marks: "queue.SimpleQueue[Any]", clock: Callable[[], float]) -> None:
    """Wait for the end of each unit and add its duration to its experiment."""
    ended: weakref.WeakKeyDictionary[Experiment, float]
    ended = weakref.WeakKeyDictionary()
    while True:
        mark = marks.get()
        if mark is None:
            return
        experiment, unit, token, owner = mark
        try:
            # Releases the lock of the interpreter while it waits.
            jax.block_until_ready(token)
        except Exception:  # the program failed: this unit and the next say nothing
            unit.spoilt = True
        now = clock()
        before = ended.get(experiment)
        ended[experiment] = now
        if before is not None:
            is_pair = experiment.add(unit, now - before)
            collector = owner()
            if collector is not None:
                if is_pair:
                    collector.judge(experiment)
                collector.wake()
                del collector
        del experiment, unit, token, mark
