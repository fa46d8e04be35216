"""The recorder: a thread that fetches queued records from the device and writes them.

Everything that a program or a caller records is appended to one queue and returns at
once. The thread collects once or twice a second: the entries that the device has
finished are fetched together, become a few columns, and go to the journal and to the
queue of each sink.
"""

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from frugax.errors import OutputError

from ._alerts import Alerts
from ._call_schedule import CallSchedule
from ._current import announce_change
from ._entries import (
    Entry,
    ProgramRecords,
    StepMetrics,
    is_kept,
    read_entries,
    split_entries,
)
from ._event import STATUS_STREAM, Kind, Sink
from ._flight_recorder import FlightRecorder
from ._journal_writer import JournalWriter
from ._overhead_account import OverheadAccount
from ._rate import Rate
from ._rows import Rows, merge_steps
from .delivery import SinkWorker
from .journal import RECORDS_PER_BLOCK, Journal

# Between two looks at the queue, and between two collections: each finds its code cold,
# and costs some hundred microseconds whatever it carries.
_TICK_S = 0.2
MIN_GAP_S = 0.4
_MAX_GAP_FACTOR = 2
# How long a step waits for more numbers of the same step.
_MIN_STEP_AGE_S = 0.1
# Seconds that a callback with a summary may wait for room.
_SUMMARY_WAIT_S = 1.0
# Memory that records of programs may hold while they wait. Without a cap in
# bytes, 4096 waiting frames could fill an accelerator.
_MAX_PENDING_BYTES = 256 * 2**20
# A loop of 10,000 rounds must not become 10,000 events: each sink gets at most this
# many rows of one batch. The journal gets all of them.
_MAX_EVENTS_PER_BATCH = 64
# Between two status rows, for a page that a person follows.
_STATUS_INTERVAL_S = 1.0


class Recorder:
    """Owns the queue of records, the thread that empties it, and where they go.

    `add` and `add_from_callback` are for any thread.

    Attributes:
        rate: chooses the records to make.
        account: sums what watching takes.
        writer: writes to the journal, and counts.
        sinks: the sinks, each with a queue and a thread.
        schedules: the watched functions.
        latest: the last numbers read, by name.
        forced: collections made because too many entries waited.
        closed: set to end the thread.
        has_started: whether there is a thread.
    """

    def __init__(
        self,
        journal: Journal | None,
        sinks: Sequence[Sink | SinkWorker] = (),
        *,
        rate: Rate,
        clock: Callable[[], float] = time.perf_counter,
        max_entries: int = 4096,
        flight: FlightRecorder | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        """Start no thread before the first entry; the arguments are `Watcher`'s."""
        self.rate = rate
        self.account = OverheadAccount(clock)
        self.writer = JournalWriter(journal)
        self.sinks = [
            sink if isinstance(sink, SinkWorker) else SinkWorker(sink) for sink in sinks
        ]
        self.schedules: list[CallSchedule] = []
        self.latest: dict[str, np.ndarray] = {}
        self.forced = 0
        self.closed = self.has_started = False
        self._journal = journal
        self._flight = flight
        self._alerts = alerts
        self._max_entries = max_entries
        self._clock = clock
        self._entries: deque[Entry] = deque()
        # Entries that were taken, and those of them that are about to be read. What an
        # interrupt leaves there comes first the next time.
        self._taken: list[Entry] = []
        self._units: deque[list[Any]] = deque()
        # On the host and not yet handed on; callbacks of any thread append.
        self._read: deque[Rows] = deque()
        self._newest: Rows | None = None  # of training steps; it may get more numbers
        self._newest_since = 0.0
        self._callback_steps: dict[str, int] = {}  # the last, by stream
        self._bytes = 0  # of the entries
        self._refusal: ValueError | None = None
        self._caller_seen_s = 0.0
        self._latest_step: int | None = None  # of the last entry collected
        self._status: tuple[int, float] | None = None  # step and time of the last
        self._last_tick = 0.0
        self._has_open_rows = False
        self._make_locks()

    def _make_locks(self) -> None:
        self._queue_lock = threading.Lock()
        # Reentrant: a collection writes the status as well.
        self._owner = threading.RLock()
        self._news = threading.Event()

    def abandon(self) -> None:
        """Leave all entries to the parent of a forked child."""
        self._make_locks()
        self._journal = None
        self._entries, self._read, self._bytes = deque(), deque(), 0
        self._taken = []
        self._units.clear()
        self.closed = self.has_started = True

    def __len__(self) -> int:
        waiting = self._entries, self._taken, *tuple(self._units)
        return sum(map(len, (*waiting, *self._waiting_rows())))

    def _waiting_rows(self) -> list[Rows]:
        # Each is copied in one step: other threads add to them.
        return [*self._read, *self.writer.waiting]

    @property
    def is_over_limit(self) -> bool:
        """Whether more entries or bytes wait than allowed."""
        nbytes = self._bytes
        for rows in self._waiting_rows():
            nbytes += rows.nbytes
        return nbytes > _MAX_PENDING_BYTES or len(self) > self._max_entries

    def add(self, entry: Entry) -> None:
        """Append an entry; returns at once."""
        with self._queue_lock:
            self._entries.append(entry)
            self._bytes += entry.nbytes
        if not self.has_started:
            self.start()

    def start(self) -> None:
        """Start the thread; without one, collecting is left to `collect`."""
        self.has_started = True
        # Weak, so that a watcher that nobody uses any more is freed with its arrays.
        args = weakref.ref(self), self._news
        thread = threading.Thread(
            target=_collect_regularly, args=args, name="frugax watch", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is exiting
            return

    def wake(self) -> None:
        """Have the thread look at once."""
        self._news.set()

    def tick(self) -> None:
        """Collect entries that the device has finished."""
        now = time.monotonic()
        gap_s = MIN_GAP_S * min(self.rate.factor, _MAX_GAP_FACTOR)
        if now - self._last_tick < gap_s or not (len(self) or self._has_open_rows):
            return
        # Without a budget nothing is collected before the end.
        if not self.rate.limit or (self._journal is not None and self._journal.closed):
            return
        # First rows wait until the rate is known, so that a curve is even from its
        # beginning.
        waiting = {entry.series for entry in tuple(self._entries)}
        if any(s is not None and s.is_early(self._clock()) for s in waiting):
            return
        self._last_tick = now
        if self._owner.acquire(timeout=_TICK_S):
            try:
                self._collect_finished(open_age_s=_MIN_STEP_AGE_S)
            except OutputError:
                pass  # noted: the next call of `record` raises it
            finally:
                self._owner.release()

    def collect_finished(self) -> None:
        """Collect finished records of the device, also while the program goes on.

        Raises:
            OutputError: the journal cannot be written; nothing is lost.
        """
        with self._owner:
            self._collect_finished(open_age_s=0.0)

    def _collect_finished(self, *, open_age_s: float) -> None:
        # In order: a record must not overtake an older one into the journal.
        while self._entries and self._entries[0].is_ready():
            self._taken.append(self._entries.popleft())
        self._thin()
        self._collect(open_age_s=open_age_s)

    def collect(self, *, rest: int = 0) -> None:
        """Collect all entries but the newest `rest`, waiting for the device.

        Raises:
            OutputError: the journal cannot be written; nothing is lost.
        """
        with self._owner:
            for _ in range(len(self._entries) - rest):
                self._taken.append(self._entries.popleft())
            self._thin(is_last=not rest)
            self._collect(open_age_s=None if rest else 0.0)

    def make_room(self) -> None:
        """Collect half of the entries, because too many wait."""
        self.forced += 1
        # Half: the newest may not be computed yet, and waiting for them stalls.
        with self.account.count_block():
            self.collect(rest=min(len(self._entries), self._max_entries) // 2)

    def make_room_for_programs(self) -> None:
        """Collect, or lose the oldest rows of programs if the journal takes none."""
        try:
            self.make_room()
        except OutputError:
            with self._owner:
                waiting = self.writer.waiting
                while waiting and self.is_over_limit and not waiting[0].is_callers:
                    self.writer.drop_first()

    def settle(self) -> None:
        """Count as lost what waits for a journal that is closed."""
        with self._owner:
            newest = [] if self._newest is None else [self._newest]
            self.writer.waiting.extend((*newest, *self._read))
            self._newest = None
            self._read.clear()
            self.writer.settle()

    def raise_refused(self) -> None:
        """Raise the first refusal of a step's metrics, once."""
        refused, self._refusal = self._refusal, None
        if refused is not None:
            raise refused

    def add_from_callback(
        self, kind: Kind, stream: str, values: Mapping[str, np.ndarray]
    ) -> None:
        """Accept a record that a program called back with.

        Where there is no room it is written here, or lost: the thread that collects may
        itself be blocked on the program whose callback waits.
        """
        with self._queue_lock:
            step = self._callback_steps.get(stream, -1) + 1
            self._callback_steps[stream] = step
        rows = Rows.single(kind, stream, step, values)
        self.writer.losses.give(kind)
        if self.is_over_limit:
            # No summary may be lost, as long as the disk takes it.
            self.write_called_back(_SUMMARY_WAIT_S if kind == "summary" else 0.0)
            if self.is_over_limit:
                self.writer.lose(kind, 1)
                return
        self._read.append(rows)
        if not self.has_started:
            self.start()
        # The thread collects about twice a second, which is too rarely for a program
        # that calls back in every round of a loop.
        if len(self._read) >= RECORDS_PER_BLOCK:
            self.write_called_back()

    def write_called_back(self, wait_s: float = 0.0) -> None:
        """Write these rows, unless another thread is collecting for that long."""
        if not self._owner.acquire(timeout=wait_s):
            return
        try:
            with self.account.count_collecting():
                self._hand_on()
        except OutputError:
            pass  # noted
        finally:
            self._owner.release()

    def wait_for_device(self) -> None:
        """Wait until the device has finished all entries."""
        for entry in tuple(self._entries):
            try:
                jax.block_until_ready(entry.arrays())
            # A failed program raises whatever its backend or a callback in it raises.
            # It is counted when it is read.
            except Exception:
                continue

    def _thin(self, *, is_last: bool = False) -> None:
        """Leave out entries that the strides as they are now do not keep.

        The newest of each series waits on, in case no further one comes; at last it is
        taken, unless newer metrics have been.
        """
        taken = self._taken
        newest = {e.series: e for e in taken if e.series is not None}
        now = self._clock()
        if any([series.measure(e.number, now) for series, e in newest.items()]):
            announce_change()
        # Numbers of an evaluation: those of its step must not be missing.
        whole = {
            e.step
            for e in taken
            if isinstance(e, StepMetrics)
            and (e.is_pinned or e.series is None or e.series.stride == 1)
        }
        is_whole = lambda e: isinstance(e, StepMetrics) and e.step in whole
        kept = [e for e in taken if is_kept(e) or is_whole(e)]
        late = [e for e in newest.values() if not (is_kept(e) or is_whole(e))]
        left_out = {*taken} - {*kept}
        self._taken = kept
        if is_last:
            last = max((entry.step for entry in kept), default=-(2**63))
            late.sort(key=lambda entry: entry.step)
            kept += [e for e in late if isinstance(e, ProgramRecords) or e.step >= last]
        else:
            self._entries.extendleft(reversed(late))
            left_out -= {*late}
        count = sum(isinstance(entry, StepMetrics) for entry in left_out - {*kept})
        if count:
            self.writer.leave_out("scalar", count)

    def _collect(self, *, open_age_s: float | None) -> None:
        """Read taken records, hand their rows on, and write open rows of this age."""
        newest = self._taken[-1].step if self._taken else None
        spent = -self.account.collecting_s
        try:
            with self.account.count_collecting():
                self._fetch()
                has_rows = self._hand_on()
                if open_age_s is not None:
                    self._write_open_rows(open_age_s)
                self._has_open_rows = has_rows or open_age_s is None
        except OutputError as e:
            self.writer.note_failure(e)
            raise
        if newest is not None:
            spent += self.account.collecting_s
            caller_s, self._caller_seen_s = self._caller_seen_s, self.account.record_s
            self.rate.collected(spent + self._caller_seen_s - caller_s, self._clock())
            self.write_status()
            self._latest_step = newest

    def _fetch(self) -> None:
        self._units.extend(split_entries(self._taken))
        self._taken = []
        while self._units:
            try:
                rows, refusal = read_entries(self._units[0], self.writer)
            # Whatever it is, those behind it must not wait for good.
            except Exception as e:
                rows, refusal = [], None
                self.writer.losses.give("scalar", len(self._units[0]))
                self.writer.refuse("scalar", len(self._units[0]), e)
            entries = self._units.popleft()
            self._read += rows
            self._refusal = self._refusal or refusal
            with self._queue_lock:
                self._bytes -= sum(entry.nbytes for entry in entries)
            for one in rows:
                if one.kind == "scalar" and len(one):
                    self._look_at(one)

    def _look_at(self, rows: Rows) -> None:
        """Show numbers to those who wait for them: a bar, alerts, a flight recorder."""
        if rows.stream == "":
            # A new one each time: other threads look at it.
            newest = {name: column[-1] for name, column in rows.columns.items()}
            self.latest = {**self.latest, **newest}
        if self._alerts is not None:
            self._alerts.inspect(rows.steps, rows.columns)
        if self._flight is None or self._journal is None:
            return
        for i, step in enumerate(rows.steps):
            values = {name: column[i] for name, column in rows.columns.items()}
            self._flight.inspect(int(step), values, self._journal)

    def _hand_on(self) -> bool:
        """Pass on the records on the host; returns whether there were any.

        The newest training step waits for more numbers of the same.

        Raises:
            OutputError: the journal cannot be written; the other records wait.
        """
        batches = list(self._read)
        numbers = [r for r in batches if r.kind == "scalar" and not r.stream]
        passed = [r for r in batches if r.kind != "scalar" or r.stream]
        if numbers:
            whole, self._newest = merge_steps(self._newest, numbers)
            self._newest_since = time.monotonic()
            passed = [*whole, *passed]
        for _ in batches:
            self._read.popleft()
        self._pass_on(passed)
        return bool(batches)

    def _pass_on(self, batches: list[Rows]) -> None:
        batches = [rows for rows in batches if len(rows)]
        self.writer.waiting.extend(rows for rows in batches if rows.kind is not None)
        for rows in batches:
            self._feed(rows)
        self.writer.write()

    def _feed(self, rows: Rows) -> None:
        """Pass rows to the sinks; those on watching itself are summaries to them."""
        if not self.sinks:
            return
        # No summary and no number of a training step may be lost.
        if rows.kind in ("scalar", "frame") and rows.stream:
            rows = rows.thin(_MAX_EVENTS_PER_BATCH)
        events = rows.to_events(rows.kind or "summary")
        for sink in self.sinks:
            sink.put(events)

    def _write_open_rows(self, min_age_s: float) -> None:
        """Write the rows in memory, so that a crash loses little."""
        newest, age_s = self._newest, time.monotonic() - self._newest_since
        if newest is not None and age_s >= min_age_s:
            self._newest = None
            self._pass_on([newest])
        if self._journal is not None and not self._journal.closed:
            self._journal.write_open_blocks()

    @property
    def callbacks(self) -> int:
        """How many records programs have called back with."""
        return sum((*self._callback_steps.values(), len(self._callback_steps)))

    def describe_overhead(self) -> tuple[str, float | None, float]:
        """Describe what watching takes; see `OverheadAccount.describe`."""
        sinks_s = sum(sink.cpu_s for sink in self.sinks)
        return self.account.describe(self.schedules, sinks_s)

    def write_status(self, *, always: bool = False) -> None:
        """Write the overhead and the losses so far, now and then or always."""
        # The thread may be writing rows.
        with self._owner:
            now, step = time.monotonic(), self._latest_step
            if step is None:
                return
            values: dict[str, float] = {}
            if self._status is not None:
                last_step, last = self._status
                is_early = now - last < _STATUS_INTERVAL_S and not always
                if step == last_step or is_early:
                    return
                if step > last_step:
                    values["seconds per step"] = (now - last) / (step - last_step)
            self._status = step, now
            row = Rows.single(None, STATUS_STREAM, step, values | self._state())
            self.writer.write([row])
            self._feed(row)

    def _state(self) -> dict[str, float]:
        # The share that the receipt would state now; left out while it is unknown.
        _, share, noise = self.describe_overhead()
        values: dict[str, float] = {}
        if share is not None:
            values["overhead"] = share
            values |= {"overhead_low": share - noise, "overhead_high": share + noise}
        values |= {
            "budget": self.rate.limit,
            "stride": float(self.rate.stride),
            # By it a page can place steps on the clock.
            "time": time.time(),
        }
        # In every status, zeros included, so that the live page can tell "nothing lost"
        # from "not known".
        for kind, tally in self.writer.losses.tallies.items():
            values[f"kept_{kind}"] = tally.kept
            values[f"dropped_{kind}"] = tally.lost
        return values


def _collect_regularly(owner: "weakref.ref[Recorder]", news: threading.Event) -> None:
    while True:
        news.wait(_TICK_S)
        news.clear()
        recorder = owner()
        if recorder is None or recorder.closed:
            return
        try:
            recorder.tick()
        # Whatever a broken array raises, records go on.
        except Exception as e:
            recorder.writer.note_failure(e)
        del recorder
