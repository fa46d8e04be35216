"""`Watcher`: accept records without waiting; collect them within an overhead budget."""

import functools
import os
import threading
import time
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from frugax.budget import OverheadBudget, Receipt, Spend, SpendName, check_budget
from frugax.errors import OutputError
from frugax.fileio import (
    abandon_in_children,
    call_before_sigterm,
    forget_before_sigterm,
)

from ._alerts import Alerts
from ._call_schedule import NEVER, CallSchedule
from ._current import announce_change, close_at_exit, enter, leave
from ._entries import ProgramRecords, StepMetrics
from ._event import Kind, Sink
from ._flight_recorder import FlightRecorder
from ._metrics import check_metric, is_fixed
from ._program_variants import ProgramVariants
from ._rate import Level, Rate
from ._recorder import Recorder
from ._series import MetricSeries
from ._watch_plan import WatchPlan
from .delivery import Losses, SinkWorker
from .journal import Journal, as_step, check_names
from .probes import PackedRecords

# Seconds for a sink to write its last events while the process is being ended.
_SINK_WAIT_S = 1.0
# Sets of names: a program may make up names without end.
_MAX_SERIES = 100


class Watcher(AbstractContextManager["Watcher"]):
    """Collects records, as often as the budget allows.

    Records wait on the device until a thread of the watcher collects them, within a
    second. Inside its `with` block the watcher is the current one, which `watch.jit`
    and `watch.record` find. Leaving the block closes it.
    """

    def __init__(
        self,
        journal: Journal | None,
        budget: OverheadBudget,
        *,
        plan: WatchPlan | None = None,
        clock: Callable[[], float] = time.perf_counter,
        max_pending: int = 4096,
        level: str = "standard",
        sinks: Sequence[Sink | SinkWorker] = (),
        flight: FlightRecorder | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        """Start watching; the time counts from the first record.

        Args:
            journal: where the records go; nobody else writes steps to it until
                `finish`, which flushes it and leaves it open. None for the sinks only.
            budget: share of the running time that watching may add.
            plan: a plan from `watch.plan`, by whose rates watched functions record: the
                receipt shows its prediction.
            clock: a monotonic clock in seconds, by which the run is measured. Calls of
                the watcher are measured in processor time, unless another clock than
                `time.perf_counter` is given.
            max_pending: most records that may wait; >= 1. Beyond it the caller waits.
            level: how many of the records of programs are kept. "off" keeps none,
                "minimal" summaries, "standard" also numbers, and frames of every 10th
                step at most, "verbose" of every 5th, 30 a second. Numbers are those of
                every step that takes 5 ms or more; shorter steps are thinned evenly,
                and the last is always kept. "full" keeps every step, with frames,
                whatever it costs.
            sinks: further consumers. Each has a thread of its own; pass a
                `delivery.SinkWorker` to choose its limits.
            flight: keeps the last records for when something goes wrong.
            alerts: bounds of numbers to watch for.

        Raises:
            TypeError: `budget` is not an OverheadBudget, `journal` is not a Journal, or
                `sinks` is not a list of sinks.
            ValueError: a number is out of its range, or the level is unknown.
        """
        check_budget(budget, OverheadBudget)
        _check_journal(journal)
        _check_sinks(sinks)
        if max_pending < 1:
            raise ValueError(f"max_pending must be >= 1, got {max_pending}.")
        self.clock = clock
        planned = None
        if plan is not None:
            planned = plan.every("numbers"), plan.every("frames")
        self.rate = Rate(
            budget.share,
            level,
            records_all=flight is not None,
            planned=planned,
            clock=clock,
        )
        self.compile_s = 0.0
        self._journal = journal
        self._first_step = self._step_after()
        self._flight = flight
        self._alerts = alerts
        self._plan = plan
        self.recorder = Recorder(
            journal,
            sinks,
            rate=self.rate,
            clock=clock,
            max_entries=max_pending,
            flight=flight,
            alerts=alerts,
        )
        self._account = self.recorder.account
        self._writer = self.recorder.writer
        self._last_recorded: int | None = None
        self._last_names: set[str] = set()  # of that step
        self._rewinds = 0 if journal is None else journal.rewinds  # noticed so far
        # By the names of the metrics: those of a validation come at their own rate.
        self._series: dict[tuple[str, ...], MetricSeries] = {}
        self._parent_id: int | None = None  # of a forked child
        self._is_ending = False  # by SIGTERM
        close_at_exit(self)
        abandon_in_children(self)

    def abandon(self) -> None:
        """Leave the run to the parent of a forked child, which may not record.

        A child that ends, even inside the `with` block, writes nothing and waits for
        nothing.
        """
        self._parent_id = os.getppid()
        self.rate.set_level("off")
        self._series.clear()
        self._journal = None
        self.recorder.abandon()

    @property
    def is_abandoned(self) -> bool:
        """Whether this process is a fork of the one that made the watcher."""
        return self._parent_id is not None

    @property
    def level(self) -> Level:
        """How many of the records of programs are kept; may be set at any time."""
        return self.rate.level

    @level.setter
    def level(self, level: str) -> None:
        self.rate.set_level(level)
        announce_change()

    @property
    def record_every(self) -> int:
        """Calls between two whose numbers are kept now, the most of all functions."""
        return self.rate.stride

    @property
    def latest(self) -> dict[str, float]:
        """The last numbers collected, by name; for a progress bar."""
        return {name: value.item() for name, value in self.recorder.latest.items()}

    @property
    def pending(self) -> int:
        """The number of records that wait to be collected."""
        return len(self.recorder)

    @property
    def losses(self) -> Losses:
        """Counts of the records by class: given, kept, left out and lost."""
        if self._writer.failure is not None and self._is_journal_closed:
            self.recorder.settle()
        return self._writer.losses

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of one step; returns at once.

        Steps of 5 ms or more are all kept. Of shorter ones every n-th is, and always
        the newest before `collect` and `finish`; level "full" keeps all.

        Args:
            step: the training step; not lower than the one before; one on the device is
                waited for. Other numbers of the same step, such as those of a
                validation, join its record. A program of the run that was called more
                often is at a higher step: then that is recorded.
            metrics: numbers by name: JAX arrays of shape `()` that are not donated to
                any later call, or plain numbers.

        Raises:
            OutputError: the journal could not be written since the last call. Nothing
                is lost: the watcher tries again.
            TypeError: JAX is tracing, `metrics` is not a mapping, a metric is not a
                real number, or the step is not an integer.
            ValueError: a metric is not a single number or does not fit in int64, a
                name is empty or too long, there are over 1000, the step is lower or has
                one of the metrics already, or the journal is closed. An integer on the
                device that does not fit in int64 is found only when it is read, perhaps
                calls later; only that record is refused.
        """
        if type(step) is not int:
            # One on the device, such as that of a `TrainState`, may be donated to the
            # next call. To wait for it is to wait for the program.
            step = as_step(step)
        if type(metrics) is dict:
            series = self._series.get(tuple(metrics))
            if series is not None and series.calls < series.next_look:
                # Most calls, where records are thinned: they take 0.2 us.
                series.calls += 1
                series.skipped = step, metrics.copy()
                return
        if self._parent_id is not None:
            raise ValueError(
                f"this watcher belongs to process {self._parent_id}, of which this one "
                "is a fork: begin a run of its own here, by watch.run."
            )
        entered = self._account.call_clock()
        self._check_open()
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"metrics must be numbers by name, such as {{'loss': loss}}, got "
                f"{metrics!r:.99}."
            )
        names = tuple(metrics)
        series = self._series.get(names)
        if series is None:
            series = self._series.setdefault(names, MetricSeries(self.rate))
            if len(self._series) > _MAX_SERIES:
                self._forget(next(iter(self._series)))
        now = self.clock()
        self._account.touch(now)
        is_thinned_out = series.count(now)
        may_change = not all(map(is_fixed, metrics.values()))
        if may_change:  # remembered as they are now, which the quick way does not do
            series.next_look = 0
        if is_thinned_out:
            kept = dict(metrics)
            if may_change:
                kept = {name: check_metric(name, value) for name, value in kept.items()}
            series.skipped = step, kept
        else:
            series.accounted += 1
            self._add(step, metrics, series, may_be_thinned=not self.rate.keeps_all)
            if series.stride == 1:
                # Numbers of an evaluation: those of its step must not be missing.
                self._keep_skipped(at=step)
        self._account.record_s += self._account.call_clock() - entered
        if is_thinned_out:
            return
        failure = self._writer.failure
        if self.recorder.is_over_limit:
            self.recorder.make_room()
        elif failure is not None:
            self._writer.failure = None
            self.recorder.wake()
            raise failure
        self.recorder.raise_refused()

    def _add(
        self,
        step: int,
        metrics: Mapping[str, Any],
        series: MetricSeries,
        *,
        may_be_thinned: bool,
    ) -> None:
        self._notice_rewind()
        names = {*metrics}
        if step == self._last_recorded:
            if repeated := self._last_names & names:
                raise ValueError(
                    f"step {step} has {min(repeated)!r} already: give a higher step, "
                    "or another name."
                )
            names |= self._last_names
            check_names(names)
        else:
            previous = self._previous_step()
            if previous is not None and step <= previous:
                raise ValueError(
                    f"step {step} comes after step {previous}, and steps must not go "
                    "back: threads that count for themselves need runs of their own, "
                    "and a run from a checkpoint needs Watcher.collect, then "
                    "Journal.rewind."
                )
        if not series.has_checked_names:
            check_names(names)
            series.has_checked_names = True
        # Checked here and not when it is collected, so that the error points at the
        # line that records the value.
        kept = {name: check_metric(name, value) for name, value in metrics.items()}
        self._last_recorded, self._last_names = step, names
        self._leave_out(series)
        number = series.calls - 1
        calls = (s.first_step + s.newest for s in self.recorder.schedules)
        place = max((step, *calls))
        is_apart = series.place(place, is_behind=place > step)
        is_pinned = not may_be_thinned
        entry = StepMetrics(step, kept, number, series, place, is_apart, is_pinned)
        self.recorder.add(entry)

    def _leave_out(self, series: MetricSeries) -> None:
        """Count the calls of `record` that did no more than remember."""
        series.skipped = None
        if left_out := series.calls - series.accounted:
            self._writer.leave_out("scalar", left_out)
            self._account.record_s += left_out * _skip_seconds()
            series.accounted += left_out

    def _forget(self, names: tuple[str, ...]) -> None:
        series = self._series.pop(names)
        self._leave_out(series)
        self.rate.series.remove(series)

    def _keep_skipped(self, *, at: int | None = None) -> None:
        """Keep the newest metrics, or those of a step, although they were thinned out.

        A checkpoint and the end of a run need the record of their own step.
        """
        found = [
            series
            for series in tuple(self._series.values())
            if series.skipped is not None and at in (None, series.skipped[0])
        ]
        for series in sorted(found, key=lambda series: series.skipped[0]):
            if at is None:
                series.next_look = 0
            entered = self._account.call_clock()
            last, (step, metrics) = self._last_recorded, series.skipped
            series.accounted += 1
            try:
                if last is not None and step < last:
                    series.accounted -= 1
                    self._leave_out(series)
                    continue
                self._add(as_step(step), metrics, series, may_be_thinned=False)
            # Nobody has looked at them before.
            except (TypeError, ValueError) as e:
                self._leave_out(series)
                self._writer.losses.give("scalar")
                self._writer.refuse("scalar", 1, e)
            self._account.record_s += self._account.call_clock() - entered

    def ingest(
        self, step: int, records: PackedRecords, schedule: CallSchedule | None = None
    ) -> None:
        """Accept the records of one call; returns at once.

        Never raises for bad records or for a journal that cannot be written: records
        that cannot be kept are counted, see `losses`.

        Args:
            step: the number of the call, increasing.
            records: the records, still on the device.
            schedule: the function that was called, whose rate may leave the records
                out; None to keep them.
        """
        if self._parent_id is not None:
            return
        if self._flight is not None:
            self._flight.keep(step, records)
        wanted = self.rate.wanted_kinds
        self._account.touch(self.clock())
        probes = records.probes.values()
        if not any(probe.kind in wanted for probe in probes):
            for probe in probes:
                assert probe.kind != "call"  # never an output
                self._writer.leave_out(probe.kind)
            return
        if schedule is None:
            entry = ProgramRecords(step, records, wanted, nbytes=records.nbytes)
            self.recorder.add(entry)
        else:
            schedule.keep(step, records, wanted)
        if self.recorder.is_over_limit:
            self.recorder.make_room_for_programs()

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
        if self._parent_id is not None:
            return
        is_wanted = kind in self.rate.wanted_kinds
        if is_wanted and kind == "frame":
            is_wanted = self.rate.wants_frames()
        if not is_wanted:
            self._writer.leave_out(kind)
            return
        self._account.touch(self.clock())
        self.recorder.add_from_callback(kind, stream, values)

    def schedule(
        self, gate_s: tuple[float, float], variants: ProgramVariants
    ) -> CallSchedule:
        """Return the bookkeeping of one watched function.

        Args:
            gate_s: seconds that the function spends at each call to find its
                program, with warm and with cold caches.
            variants: the programs of the function.
        """
        recorder = self.recorder
        # Lower where the journal was rewound since.
        self._first_step = min(self._first_step, self._step_after())
        schedule = CallSchedule(
            self.rate,
            gate_s,
            variants,
            recorder.add,
            self._first_step,
            recorder.schedules,
        )
        self._account.touch(self.clock())
        recorder.schedules.append(schedule)
        if not recorder.has_started:
            recorder.start()
        return schedule

    def can_afford(self, seconds: float) -> bool:
        """Return whether these seconds can be spent now within the budget."""
        return self._account.can_afford(seconds, self.rate.limit)

    def overhead(self) -> AbstractContextManager[None]:
        """Count the time of a `with` block as time spent on watching."""
        return self._account.count_block()

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
        if self._parent_id is not None:
            return
        self._collect_all()
        self.recorder.raise_refused()

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
        if self._parent_id is not None:
            return
        self._collect_all()
        with self.overhead():
            self._flush(timeout_s)
        self.recorder.raise_refused()

    def _flush(self, timeout_s: float) -> None:
        self.recorder.write_status(always=True)
        if self._journal is not None:
            self._journal.flush()
        for sink in self.recorder.sinks:
            sink.flush(timeout_s)

    def save_finished(self) -> None:
        """Write finished records of the device, from any thread.

        For a process that SIGTERM is about to end: its next `record` waits for that.

        Raises:
            OutputError: the journal cannot be written.
        """
        if self._parent_id is None and not self._is_journal_closed:
            self._is_ending = True
            self.recorder.collect_finished()
            self._flush(_SINK_WAIT_S)

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish, and close the sinks; the journal stays open. Twice is harmless.

        Raises:
            OutputError: the journal cannot be written.
            ValueError: the journal is closed and records wait for it.
        """
        try:
            if self.pending or not self._is_journal_closed:
                self.finish(timeout_s)
        finally:
            self.recorder.closed = True
            self.recorder.wake()
            for sink in self.recorder.sinks:
                sink.close(timeout_s)

    def __enter__(self) -> "Watcher":
        enter(self)
        call_before_sigterm(self.save_finished)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        error: BaseException | None = exc_info[1]
        if self._parent_id is not None:
            return
        try:
            self._leave(error)
        finally:
            forget_before_sigterm(self.save_finished)

    def _leave(self, error: BaseException | None) -> None:
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
        writer = self._writer
        note, measured, noise = self.recorder.describe_overhead()
        notes = [note]
        if self.compile_s:
            notes.append(
                f"Compiling the programs took {self.compile_s:.1f} s, once and not "
                "part of the share."
            )
        if (every := self.record_every) > 1:
            notes.append(f"Of steps shorter than 5 ms every {every}th is kept.")
        if self.recorder.forced:
            notes.append(f"{self.recorder.forced} collections were forced.")
        losses = self.losses
        notes.append(f"Records: {losses}.")
        if writer.last_error:
            notes.append(f"Refused last: {writer.last_error}")
        problems: list[str] = []
        if writer.failure is not None:
            missing = ""
            if not self._is_journal_closed:  # else they are lost
                missing = f", {self._outside():,} records are not in it"
            problems.append(
                f"The journal could not be written{missing}: {writer.failure}"
            )
        lost = sum(tally.lost for tally in losses.tallies.values())
        if lost:
            problems.append(f"{lost:,} records are lost: {losses}.")
        if self._alerts is not None:
            problems += self._alerts.messages
        reports = [sink.report() for sink in self.recorder.sinks]
        problems += [f"{report}." for report in reports if report.has_problems]
        notes += problems
        notes += [f"{report}." for report in reports if not report.has_problems]
        if called_back := self.recorder.callbacks:
            # The price of a callback that does nothing, measured on a busy machine.
            notes.append(
                f"Programs called back with {called_back:,} records: that costs each "
                "of their calls about 100 microseconds, and they are compiled anew in "
                "every process; watch.jit and watch.scan avoid both."
            )
        spend = Spend(
            name=SpendName.WATCHING,
            unit="share",
            limit=self.rate.limit,
            predicted=None if self._plan is None else self._plan.predicted,
            measured=measured,
            noise=noise,
            source=" ".join(notes),
            problems=" ".join(problems),
        )
        return Receipt((spend,))

    def _collect_all(self) -> None:
        self._check_open()
        self._keep_skipped()
        for schedule in self.recorder.schedules:
            schedule.keep_last()
        # Not inside `overhead`: the program needs that time with or without a watcher.
        self.recorder.wait_for_device()
        with self.overhead():
            self._writer.failure = None
            self.recorder.collect()

    @property
    def _is_journal_closed(self) -> bool:
        return self._journal is not None and self._journal.closed

    def _check_open(self) -> None:
        if self._is_ending:
            threading.Event().wait()
        if not self._is_journal_closed:
            return
        failure = self._writer.failure
        if failure is not None:
            raise OutputError(
                f"{failure.args[0]} The journal has been closed since, with "
                f"{self._outside()} record(s) not written."
            ) from failure
        raise ValueError(
            f"the journal is closed, with {self.pending} record(s) not written: "
            "record and finish before `Journal.close`."
        )

    def _step_after(self) -> int:
        """The step after those of the journal, where programs of a run go on."""
        last = None if self._journal is None else self._journal.last_step
        return 0 if last is None else last + 1

    def _outside(self) -> int:
        """Count the records that are in no file, in the journal's memory as well."""
        unwritten = {} if self._journal is None else self._journal.unwritten
        return self.pending + sum(unwritten.values())

    def _notice_rewind(self) -> None:
        """Go on from where the caller has rewound the journal to, if so."""
        if self._journal is not None and self._journal.rewinds > self._rewinds:
            self._rewinds = self._journal.rewinds
            self._last_recorded = self._writer.last_step = self._journal.last_step
            self._last_names = set()
            for series in self._series.values():
                series.placed = self._step_after() - 1

    def _previous_step(self) -> int | None:
        """Return the step that the step of the next `record` must exceed."""
        in_journal = None if self._journal is None else self._journal.last_step
        if self._last_recorded is not None or (in_journal == self._writer.last_step):
            # Written here for a program that counts its own calls: not a reason to
            # refuse a lower step of the caller.
            in_journal = None
        known = [s for s in (self._last_recorded, in_journal) if s is not None]
        return max(known, default=None)


@functools.cache
def _skip_seconds() -> float:
    """Measure the time of a call of `record` that is thinned out."""
    watcher = object.__new__(Watcher)
    watcher._series = {("loss",): MetricSeries(Rate(1.0))}
    watcher._series["loss",].next_look = NEVER
    metrics: dict[str, Any] = {"loss": 0.0}
    return min(timeit.repeat(lambda: watcher.record(0, metrics), number=200)) / 200


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
