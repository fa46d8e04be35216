"""The collector: a thread that fetches queued records from the device and writes them.

Everything that a program or a caller records is appended to one queue and returns at
once. The thread collects once or twice a second: the entries that the device has
finished are fetched together, become a few columns, and are written.
"""

import bisect
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
from ._entry_reader import Entry, EntryReader, ProgramRecords, StepMetrics
from ._flight_recorder import FlightRecorder
from ._rate import Rate
from ._row_batch import RowBatch
from ._thinning import Thinning

# Between two looks at the queue, and between two collections: each finds its code cold,
# and costs some hundred microseconds whatever it carries.
_TICK_S = 0.2
_MIN_GAP_S = 0.4
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
        added: entries that were added.
        forced: collections made because too many entries waited.
        cpu_s: processor time that collecting has taken.
        changed: called when a stride has changed.
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
        rate: Rate,
        max_entries: int,
        clock: Callable[[], float],
        flight: FlightRecorder | None,
        inspect: Callable[[int, Mapping[str, Any]], None],
    ) -> None:
        """Start no thread before the first entry."""
        self.latest_step: int | None = None
        self.added = self._passed_on = self.forced = 0
        self.cpu_s = 0.0
        self.changed: Callable[[], None] = lambda: None
        self.caller_s: Callable[[], float] = lambda: 0.0
        self._caller_seen_s = 0.0
        self.write_status: Callable[[], None] = lambda: None
        self.closed = self.has_started = False
        self.schedules: list[CallSchedule] = []
        self._dispatch = dispatch
        self._writer = dispatch.writer
        self._rate = rate
        self._max_entries = max_entries
        self._clock = clock
        self.reader = EntryReader(dispatch, flight=flight, inspect=inspect)
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        # Rows that are on the host but not in the journal: records of callbacks, and
        # all others where the disk is full.
        self._rows: deque[RowBatch] = deque()
        self._callback_steps: dict[str, int] = {}  # the last, by stream
        self._make_locks()
        self._last_tick = 0.0
        self._has_open_rows = False
        # The newest metrics of `Watcher.record` that were thinned out here.
        self._newest: dict[Thinning, StepMetrics] = {}

    def _make_locks(self) -> None:
        self._queue_lock = threading.Lock()
        # Reentrant: a sink or handler that runs in this thread may record as well.
        self._owner = threading.RLock()
        self._news = threading.Event()

    def abandon(self) -> None:
        """Leave all entries to the parent of a forked child."""
        self._make_locks()
        self._entries, self._rows, self._bytes = deque(), deque(), 0
        self._newest = {}
        self.closed = self.has_started = True

    def __len__(self) -> int:
        fresh = sum(len(schedule.fresh) for schedule in self.schedules)
        # Copied in one step: the other thread adds to it.
        queued = len(self._entries) + len(self._newest)
        return fresh + queued + sum(map(len, tuple(self._rows)))

    @property
    def waiting_rows(self) -> int:
        """Batches of rows that are on the host and wait for the journal."""
        return len(self._rows)

    @property
    def limit(self) -> float:
        """The budget, a share of the running time."""
        return self._rate.limit

    @property
    def written(self) -> int:
        """Entries that were passed on."""
        # Copied in one step, as above.
        return max(self._passed_on - sum(map(len, tuple(self._rows))), 0)

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
        gap_s = _MIN_GAP_S * min(self._rate.factor, _MAX_GAP_FACTOR)
        if now - self._last_tick < gap_s or not (len(self) or self._has_open_rows):
            return
        journal = self._dispatch.journal
        # Without a budget nothing is collected before the end.
        if not self._rate.limit or (journal is not None and journal.closed):
            return
        # First rows wait until the rate is known, so that a curve is even from its
        # beginning.
        if any(one.is_early(self._clock()) for one in self._waiting_thinnings()):
            return
        self._last_tick = now
        if self._owner.acquire(timeout=_TICK_S):
            try:
                self._collect(self._take_ready(), writes_open=True)
            except OutputError as e:
                self._writer.note_failure(e)
            finally:
                self._owner.release()

    def _waiting_thinnings(self) -> list[Thinning]:
        found = [schedule.thinning for schedule in self.schedules if schedule.fresh]
        entry = next(iter(tuple(self._entries)), None)
        if isinstance(entry, StepMetrics) and entry.thinning is not None:
            found.append(entry.thinning)
        return found

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
            taken = self._thin(taken)
            if not rest:
                last = max((e.step for e in taken), default=-(2**63))
                newest = sorted(self._newest.values(), key=lambda entry: entry.step)
                self._newest.clear()
                kept = [entry for entry in newest if entry.step >= last]
                self._leave_out(len(newest) - len(kept))
                taken += kept
            self._collect(taken, writes_open=not rest, wait=True)

    def keep_last(self) -> None:
        """Have the records of the last call of each function kept."""
        # The thread, which thins what it takes, waits.
        with self._owner:
            for schedule in self.schedules:
                schedule.keep_last()

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

    def add_from_callback(self, rows: RowBatch, *, may_wait: bool) -> None:
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
            self.added += 1
            self._passed_on += 1
        if not self.has_started:
            self.start()

    def write_rows(self, wait_s: float) -> None:
        """Write the rows that wait, unless another thread is collecting."""
        if not self._owner.acquire(timeout=wait_s):
            return
        before = time.thread_time()
        try:
            self._dispatch_rows()
        except (OutputError, ValueError) as e:
            self._writer.note_failure(e)
        finally:
            self.cpu_s += time.thread_time() - before
            self._owner.release()

    def shed(self) -> None:
        """Drop the oldest rows of programs that the journal cannot take."""
        with self._owner:
            while (
                self._rows and self.is_over_limit and self._rows[0].source != "caller"
            ):
                rows = self._pop_rows()
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
            if count:
                self._measure(schedule.thinning, schedule.fresh[count - 1][0], schedule)
            taken += [
                ProgramRecords(step, records.probes, records, wanted)
                for step, records, wanted in schedule.take(count)
            ]
        self.added += len(taken)
        return taken

    def _take_ready(self) -> list[Entry]:
        taken = self._take_fresh(ready_only=True)
        # In order: a record must not overtake an older one into the journal.
        with self._queue_lock:
            while self._entries and self._entries[0].is_ready():
                taken.append(self._entries.popleft())
        return self._thin(taken)

    def _measure(
        self, thinning: Thinning, number: int, schedule: CallSchedule | None = None
    ) -> None:
        gap_s = 0.0 if schedule is None else schedule.gap_s
        if thinning.measure(number, self._clock(), gap_s=gap_s):
            self.changed()

    def _thin(self, taken: list[Entry]) -> list[Entry]:
        """Leave out metrics of steps that the stride as it is now does not keep.

        The last of them stays aside, in case no further one comes.
        """
        last: dict[Thinning, StepMetrics] = {}
        for entry in taken:
            if isinstance(entry, StepMetrics) and entry.thinning is not None:
                last[entry.thinning] = entry
        for thinning, entry in last.items():
            self._measure(thinning, entry.number)
        metrics = [entry for entry in taken if isinstance(entry, StepMetrics)]
        # Numbers of an evaluation: those of its step must not be missing.
        whole = {
            e.step for e in metrics if e.thinning is None or e.thinning.stride == 1
        }
        out = {
            entry
            for entry in metrics
            if entry.thinning is not None
            and entry.number % entry.thinning.stride
            and entry.step not in whole
        }
        for thinning, entry in [*self._newest.items()]:
            if entry.step in whole:
                first = next(e for e in metrics if e.step == entry.step)
                taken.insert(taken.index(first), self._newest.pop(thinning))
        count = len(out) + len(self._newest.keys() & last.keys())
        for thinning, entry in last.items():
            self._newest.pop(thinning, None)
            if entry in out:
                self._newest[thinning] = entry
                count -= 1
        self._leave_out(count)
        return [entry for entry in taken if entry not in out]

    def _leave_out(self, count: int) -> None:
        if count:
            self._writer.leave_out("scalar", count)
            self.added -= count

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
        has_rows = bool(self._rows)
        self._dispatch_rows()
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

    def _dispatch_rows(self) -> None:
        while self._rows:
            unwritten = self._dispatch.dispatch_rows(self._rows[0])
            if unwritten is not None:
                self._rows[0] = unwritten
                failure = self._writer.failure
                if failure is not None:
                    raise failure
            else:
                self._pop_rows()

    def _pop_rows(self) -> RowBatch:
        rows = self._rows.popleft()
        if rows.source == "callback":
            with self._queue_lock:
                self._bytes -= rows.nbytes
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
