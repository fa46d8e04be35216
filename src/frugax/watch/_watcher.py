"""The watcher: accept records at once, and collect them when the budget can pay.

A program returns its records as arrays. `Watcher.record` and `Watcher.ingest` keep
references to them and return. A token bucket fills with the budget's share of the time
that passes outside of the watcher. When it holds the price of a drain, the records that
the device has finished are fetched and dispatched to the journal and the sinks.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from frugax.budget import OverheadBudget, Receipt, Spend, check_budget
from frugax.errors import OutputError

from ._collector import Collector
from ._current import close_at_exit, enter, leave
from ._dispatch import Dispatch
from ._flight_recorder import FlightRecorder
from ._idle_registry import wake_all
from ._levels import Level, LevelDial
from ._pending import PendingQueue, ProgramRecords, check_metric, class_of
from ._plan import WatchPlan
from ._token_bucket import FramePacer, TokenBucket
from .delivery import Losses, SinkWorker, callback_stats
from .journal import RECORDS_PER_BLOCK, Journal, as_step, check_names
from .probes import Probe
from .sinks import Kind, Sink

# Seconds that a callback may block to write summaries when their buffer is half full.
# Other records are written only if nobody else is writing.
_MAX_SUMMARY_WAIT_S = 1.0


class Watcher(AbstractContextManager["Watcher"]):
    """Collects every record, as often as the budget allows.

    No record that the level asks for is dropped: a record that is not affordable yet
    waits on the device. At most `max_pending` records wait; beyond that they are
    collected whatever it costs, and the receipt says so. Inside its `with` block the
    watcher is the current one, which `watch.jit` and `watch.record` find. Leaving the
    block closes it.
    """

    def __init__(
        self,
        journal: Journal | None,
        budget: OverheadBudget,
        *,
        plan: WatchPlan | None = None,
        interval: int = 1,
        clock: Callable[[], float] = time.perf_counter,
        max_pending: int = 4096,
        level: str = "standard",
        sinks: Sequence[Sink | SinkWorker] = (),
        max_frames_per_s: float = 30.0,
        max_queue_bytes: int = 8 * 2**20,
        flight: FlightRecorder | None = None,
        asynchronous: bool = True,
        monitor: bool = True,
    ) -> None:
        """Start watching; the time counts from the first record.

        Args:
            journal: where the records go; nobody else writes to it until `finish`,
                which flushes it and leaves it open. None for the sinks only.
            budget: share of the running time that watching may add.
            plan: a plan from `watch.plan`: drains wait for `plan.interval` calls, and
                the receipt shows its prediction.
            interval: without a plan, records that must wait before a drain; >= 1. See
                `collection_interval`.
            clock: a monotonic clock in seconds.
            max_pending: most records that may wait; >= 1.
            level: how many of the records of programs are kept. "off" keeps none,
                "minimal" summaries, "standard" also frames and the numbers of every
                10th step, "verbose" of every 5th, "full" of every step, with frames
                whatever they cost. `record` keeps every step at any level.
            sinks: further consumers. Each has a thread of its own; pass a
                `delivery.SinkWorker` to choose its limits.
            max_frames_per_s: most frames per second below "full"; > 0.
            max_queue_bytes: cap of the queue of one sink in bytes; > 0.
            flight: keeps the last records for when something goes wrong.
            asynchronous: False to wait after each record until the sinks have it.
            monitor: whether the receipt shows the cost of callbacks and sinks.

        Raises:
            TypeError: `budget` is not an OverheadBudget, `journal` is not a Journal, or
                `sinks` is not a list of sinks.
            ValueError: a number is out of its range, or the level is unknown.
        """
        check_budget(budget, OverheadBudget)
        _check_journal(journal)
        _check_sinks(sinks)
        if interval < 1:
            raise ValueError(f"interval must be >= 1, got {interval}.")
        self._flight = flight
        self._journal = journal
        self._plan = plan
        self._monitor = monitor
        self._last_recorded: int | None = None
        self._dial = LevelDial(level)
        self._pending = PendingQueue(max_pending)
        self._dispatch = Dispatch(
            journal, sinks, asynchronous=asynchronous, max_bytes=max_queue_bytes
        )
        self._bucket = TokenBucket(
            budget.share, clock, background_s=lambda: self._dispatch.cpu_s
        )
        self._frame_pacer = FramePacer(self._bucket, max_frames_per_s=max_frames_per_s)
        self._collector = Collector(
            self._pending,
            self._dispatch,
            journal,
            dial=self._dial,
            bucket=self._bucket,
            frame_pacer=self._frame_pacer,
            flight=flight,
            interval=interval if plan is None else plan.interval,
        )
        # One thread at a time collects; the others only add to the queue. Reentrant: a
        # sink or handler that runs in this thread may record as well.
        self._ingest_lock = threading.RLock()
        close_at_exit(self)

    @property
    def level(self) -> Level:
        """How many of the records of programs are kept; may be set at any time."""
        return self._dial.level

    @level.setter
    def level(self, level: str) -> None:
        self._dial.set(level)
        wake_all()

    @property
    def stride(self) -> int:
        """Current frame stride: record every n-th frame of a loop."""
        return self._frame_pacer.stride

    @property
    def latest(self) -> dict[str, float]:
        """The last numbers collected, by name; for a progress bar."""
        return {name: value.item() for name, value in self._collector.latest.items()}

    @property
    def latest_step(self) -> int | None:
        """The step of the last record collected; None before the first."""
        return self._collector.latest_step

    @property
    def recorded(self) -> int:
        """The number of records that came and were not refused."""
        return self._pending.added - self._collector.refused

    @property
    def written(self) -> int:
        """The number of records that have been collected."""
        return self._collector.written

    @property
    def pending(self) -> int:
        """The number of records that wait to be collected."""
        return len(self._pending)

    @property
    def forced(self) -> int:
        """The number of drains made only because too many records waited."""
        return self._collector.forced_drains

    @property
    def flight(self) -> FlightRecorder | None:
        """The flight recorder, if there is one."""
        return self._flight

    @property
    def losses(self) -> Losses:
        """Counts of the records by class: given, kept, left out and lost."""
        self._collector.update_ledger()
        return self._dispatch.writer.losses

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of one step, and collect the records that are affordable.

        Args:
            step: the training step; higher than the one before.
            metrics: numbers by name: JAX arrays of shape `()` that are not donated to
                any later call, or plain numbers.

        Raises:
            OutputError: the journal cannot be written. Nothing is lost: the next
                call tries again.
            TypeError: JAX is tracing, `metrics` is not a mapping, a metric is not a
                real number, or the step is not an integer.
            ValueError: a metric is not a single number or does not fit in int64, a
                name is empty or too long, there are over 1000, the step is not higher,
                or the journal is closed. An integer on the device that does not fit in
                int64 is found only when it is read, perhaps calls later; only that
                record is refused.
        """
        entered = self._bucket.clock()
        self._check_open()
        step = as_step(step, after=self._previous_step())
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"metrics must be numbers by name, such as {{'loss': loss}}, got "
                f"{metrics!r:.99}."
            )
        check_names(metrics)
        # Checked here and not when it is collected, so that the error points at the
        # line that records the value.
        kept = {name: check_metric(name, value) for name, value in metrics.items()}
        self._pending.add((step, kept))
        self._last_recorded = step
        self._bucket.enter()
        try:
            self._collector.collect_if_due(entered)
        except OutputError as e:
            self._dispatch.writer.note_failure(e)
            raise
        finally:
            self._bucket.leave(entered)

    def ingest(self, step: int, probes: Mapping[str, Probe], records: Any) -> None:
        """Accept the records of one call, and collect the records that are affordable.

        Never raises for bad records or for a journal that cannot be written: records
        that cannot be kept are counted, see `losses`.

        Args:
            step: the number of the call, increasing.
            probes: the probes by the names of the records.
            records: a mapping of the records, still on the device. It may have
                `is_ready()`, which returns whether reading would not wait, `fetch()`,
                which returns NumPy arrays, and `axes`, the meaning of the leading axes
                of each record, such as "steps" of a loop.
        """
        entered = self._bucket.clock()
        if self._flight is not None:
            self._flight.keep(step, records)
        wanted = self._dial.wanted_kinds(step)
        # User callbacks run regardless of the level.
        if not any(
            probe.kind in wanted or probe.kind == "call" for probe in probes.values()
        ):
            for probe in probes.values():
                self._dispatch.writer.leave_out(class_of(probe))
            return
        if any(probe.kind == "frame" for probe in probes.values()):
            self._frame_pacer.accept(entered)
        nbytes = getattr(records, "nbytes", 0)
        self._pending.add(
            ProgramRecords(step, probes, records, nbytes, deque(), wanted)
        )
        # When several threads call at once, one collects for all of them. The others go
        # on, unless too many records wait: then they must wait too, or memory grows.
        if not self._ingest_lock.acquire(blocking=self._pending.is_over_limit):
            return
        self._bucket.enter()
        try:
            self._collector.collect_if_due(entered)
            self._collector.shed()
        # A ValueError concerns metrics that `record` accepted earlier.
        except (OutputError, ValueError) as e:
            self._dispatch.writer.note_failure(e)
        finally:
            self._bucket.leave(entered)
            self._ingest_lock.release()

    def ingest_callback(
        self, kind: Kind, stream: str, values: Mapping[str, np.ndarray]
    ) -> None:
        """Accept a record that a program handed over through a callback.

        May be called by any thread, also while the program runs.

        Args:
            kind: its class.
            stream: its stream, whose steps are counted here.
            values: arrays by name; not changed afterwards.
        """
        buffer = self._dispatch.callback_buffer
        step = buffer.next_step(stream)
        is_wanted = kind in self._dial.wanted_kinds(step)
        if is_wanted and kind == "frame" and self._dial.level != "full":
            now = self._bucket.clock()
            is_wanted = self._frame_pacer.is_due(now)
            if is_wanted:
                self._frame_pacer.accept(now)
        if not is_wanted:
            self._dispatch.writer.leave_out(kind)
            return
        self._bucket.start()
        self._dispatch.add_callback_record(kind, stream, step, values)
        # A program that only calls back never comes by to collect.
        if len(buffer) >= RECORDS_PER_BLOCK:
            wait_s = 0.0
            if kind == "summary" and buffer.is_half_full:
                wait_s = _MAX_SUMMARY_WAIT_S
            self._collector.write_callback_records(wait_s)

    def due(self, step: int) -> int:
        """Return which records a program should make at this step.

        Returns:
            0 nothing, 1 records without frames, 2 also frames.
        """
        every = self._dial.every
        if every and not step % every:
            return 1 + self.wants_frames()
        # A flight recorder wants every step, whatever the level is.
        return int(self._flight is not None)

    def idle(self, step: int) -> int | None:
        """Return for how many calls after a step nothing will be due.

        Returns:
            None for "until the level changes".
        """
        if self._flight is not None:
            return 0
        every = self._dial.every
        if not every:
            return None
        return every - step % every - 1

    def wants_frames(self) -> bool:
        """Return whether the level asks for frames and one is affordable now."""
        if not self._dial.every:
            return False
        if self._dial.level == "full":
            return True
        return self._frame_pacer.is_due(self._bucket.clock())

    def can_afford(self, seconds: float) -> bool:
        """Return whether these seconds can be spent now within the budget.

        The price of a drain and of `finish` is kept in reserve.
        """
        return self._bucket.can_afford(seconds, self._bucket.clock())

    def overhead(self) -> AbstractContextManager[None]:
        """Count the time of a `with` block as time spent on watching."""
        return self._bucket.overhead()

    def collect(self) -> None:
        """Collect all pending records into the journal, which is not flushed.

        For a checkpoint, which must not be ahead of the journal: collect, then
        `Journal.flush`. Waits for the device first; that time is the program's and not
        the watcher's.

        Raises:
            OutputError: the journal cannot be written; may be called again.
            ValueError: the journal is closed, or it refused metrics of a step; all
                others are written.
        """
        self._collect_all()
        self._collector.raise_refused()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Collect all pending records, flush the journal, and wait for the sinks.

        Args:
            timeout_s: longest wait for each sink; events that it has not taken by then
                still wait.

        Raises:
            OutputError: the journal cannot be written; `finish` may be called again.
            ValueError: the journal is closed, or it refused metrics of a step; all
                others are written.
        """
        self._collect_all()
        with self.overhead():
            self._collector.flush()
            self._dispatch.flush(timeout_s)
        self._collector.raise_refused()

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish, and close the sinks; the journal stays open. Twice is harmless.

        Raises:
            OutputError: the journal cannot be written.
            ValueError: the journal is closed and records wait for it.
        """
        try:
            if self._journal is None or not self._journal.closed or self._pending:
                self.finish(timeout_s)
        finally:
            self._dispatch.close(timeout_s)

    def __enter__(self) -> "Watcher":
        enter(self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        error: BaseException | None = exc_info[1]
        # Before closing: a record that a sink makes while it closes must not come back
        # to this watcher.
        leave(self)
        if error is None:
            self.close()
            return
        try:
            if self._flight is not None and self._journal is not None:
                self._flight.write(self._journal, f"{type(error).__name__} was raised")
            self.close()
        # Sinks and failed programs raise anything, and none of it may hide the error
        # that ended the program: it is added as a note.
        except Exception as e:
            error.add_note(f"and some records could not be kept: {e}")

    def report(self) -> Receipt:
        """Report the cost of watching up to the last call, beside the budget."""
        self._collector.update_ledger()
        writer = self._dispatch.writer
        # The source says how the number was measured, and then every loss and problem:
        # a receipt that only says "0.4%" would hide that half of the records are gone.
        notes = ["self-measured: time inside the watcher's calls"]
        if self._dispatch.has_sinks:
            notes.append("and CPU time of its sinks")
        notes.append(
            "over time outside, from the first record on. It cannot see how watching "
            "slows the program itself; `watch.prove` measures that."
        )
        if self.forced:
            notes.append(f"{self.forced} drains were forced.")
        notes.append(f"Records: {writer.losses}.")
        if writer.last_error:
            notes.append(f"Refused last: {writer.last_error}")
        problems: list[str] = []
        if writer.failure is not None:
            problems.append(f"The journal could not be written: {writer.failure}")
        reports = self._dispatch.reports()
        # Problems are shown whatever `monitor` is.
        problems += [f"{report}." for report in reports if report.has_problems]
        notes += problems
        if self._monitor:
            notes += [f"{report}." for report in reports if not report.has_problems]
            if entries := callback_stats.describe_entries():
                notes.append(entries)
        spend = Spend(
            name="time spent watching",
            unit="share",
            limit=self._bucket.share,
            predicted=None if self._plan is None else self._plan.predicted,
            measured=self._bucket.spent_share(),
            source=" ".join(notes),
            problems=" ".join(problems),
        )
        return Receipt((spend,))

    def _collect_all(self) -> None:
        self._check_open()
        # Not inside `overhead`: the program needs that time with or without a watcher.
        self._collector.wait_for_device()
        writer = self._dispatch.writer
        with self.overhead():
            writer.failure = None
            try:
                self._collector.collect_all_but(0)
                self._collector.write_buffered()
            except OutputError as e:
                writer.note_failure(e)
                raise
            if writer.failure is not None and self._pending:
                raise writer.failure

    def _check_open(self) -> None:
        if self._journal is None or not self._journal.closed:
            return
        failure = self._dispatch.writer.failure
        if failure is not None:
            raise OutputError(
                f"{failure.args[0]} The journal has been closed since, with "
                f"{self.pending} record(s) not written."
            ) from failure
        raise ValueError(
            f"the journal is closed, with {self.pending} record(s) not written: "
            "record and finish before `Journal.close`."
        )

    def _previous_step(self) -> int | None:
        """Return the step that the step of the next `record` must exceed."""
        in_journal = None if self._journal is None else self._journal.last_step
        if in_journal == self._dispatch.writer.last_step:
            # Written here for a program that counts its own calls: not a reason to
            # refuse a lower step of the caller.
            in_journal = None
        known = [s for s in (self._last_recorded, in_journal) if s is not None]
        return max(known, default=None)


def _check_journal(journal: object) -> None:
    if journal is None or isinstance(journal, Journal):
        return
    hint = ""
    if isinstance(journal, str | os.PathLike):
        hint = f" Write Journal.create({str(journal)!r}, {{}})."
    raise TypeError(f"journal must be a Journal or None, got {journal!r:.99}.{hint}")


def _check_sinks(sinks: Any) -> None:
    if isinstance(sinks, Sink | SinkWorker) or not isinstance(sinks, Sequence):
        raise TypeError(
            f"sinks must be a list of sinks, such as [Terminal()], got {sinks!r:.99}."
        )
    for sink in sinks:
        is_sink = isinstance(sink, Sink | SinkWorker)
        if not is_sink or isinstance(sink, type):
            raise TypeError(
                f"a sink needs name, write(events) and close(), {sink!r:.99} lacks "
                "one; a class must be called first."
            )
