"""Collecting what a running program records, when the budget can pay for it.

The program puts its records out as arrays; `Watcher.record` and `Watcher.take` keep
references to them and return. A token bucket fills with the budget's share of the time
that passes outside the watcher. When it holds the price of a drain, the records that
the device has finished are fetched and handed on (`_handing_on.py`), at most one block
at a time, so that a drain which turns out dearer than the last one cannot overdraw by
much.
"""

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np

from frugax.budget import OverheadBudget, Receipt, Spend, check_budget
from frugax.errors import OutputError

from ._asleep import wake_all
from ._entered import at_exit, enter, leave
from ._flight import FlightRecorder
from ._handing_on import HandingOn
from ._levels import Level, check_level, every_of, is_asked_for
from ._pending import (
    Entry,
    Taken,
    arrays_of,
    begin_copy,
    checked_metric,
    class_of,
    is_ready,
)
from ._plan import WatchPlan
from ._rows import Rows
from ._stats import STATS, callbacks_note
from .delivery import Losses, error_text
from .journal import (
    RECORDS_PER_BLOCK,
    Journal,
    as_step,
    check_names,
)
from .probes import Probe
from .sinks import Kind, Sink

# Assumed until the first drain is timed, on the dear side: one block of records of four
# metrics takes 0.7 ms of a CPU core (benchmarks/test_watch.py).
_FIRST_PRICE_S = 1e-3
# Between two rows that say how watching goes.
_STATUS_S = 1.0
# What programs give may hold so much memory while it waits.
_MOST_PENDING_BYTES = 256 * 2**20
_MOST_STRIDE = 1024
# For so long a callback waits to write its summaries where room for them is short.
_HURRY_S = 1.0


class Watcher:
    """Collects every record, no more often than the budget allows.

    No record that the level asks for is dropped: one that is not yet affordable waits
    on the device. At most `most_pending` wait; beyond that they are collected whatever
    it costs, and the receipt says so. Used as a context, it is what `watch.jit`,
    `jax_log_grid` and the others find; leaving it finishes it.

    Attributes:
        level: how much of what programs record is kept; may be set at any time.
        stride: of frames inside a loop every so manyth is worth its price now; 0: none.
        latest_step: the step of the last record collected; None before the first.
        recorded: how many records were given.
        written: how many of them are in the journal.
        forced: how many drains were made only because too many records waited.
        flight: the recorder of the last records, if there is one.
    """

    def __init__(
        self,
        journal: Journal | None,
        budget: OverheadBudget,
        *,
        plan: WatchPlan | None = None,
        clock: Callable[[], float] = time.perf_counter,
        most_pending: int = 4096,
        level: str = "standard",
        sinks: Sequence[Sink] = (),
        frames_per_s: float = 30.0,
        most_queue_bytes: int = 8 * 2**20,
        flight: FlightRecorder | None = None,
        asynchronous: bool = True,
        monitor: bool = True,
    ) -> None:
        """Start watching; the time counts from the first record.

        Args:
            journal: where the records go; written by nobody else until `finish`,
                which flushes it and leaves it open. None: only to the sinks.
            budget: share of the running time that watching may add.
            plan: if given, drains wait for `plan.every` records, and the receipt
                shows its prediction.
            clock: seconds, rising.
            most_pending: how many records may wait; >= 1.
            level: how much of what programs record is kept. "off" is nothing,
                "minimal" summaries, "standard" also numbers of every tenth step and
                frames, "verbose" of every fifth, "full" of every step, with frames
                whatever they cost. `record` keeps every step at any level.
            sinks: where records go besides; each has a thread of its own.
            frames_per_s: most frames a second, below "full"; > 0.
            most_queue_bytes: what may wait for one sink, in bytes; > 0.
            flight: keeps the last records, for when something goes wrong.
            asynchronous: False: each record waits until the sinks have it.
            monitor: whether the receipt says what callbacks and sinks have cost.

        Raises:
            TypeError: `budget` is none, but text or a number.
            ValueError: a number is out of its range, or there is no such level.
        """
        check_budget(budget, OverheadBudget)
        if most_pending < 1:
            raise ValueError(f"most_pending must be >= 1, got {most_pending}.")
        if not frames_per_s > 0:
            raise ValueError(f"frames_per_s must be > 0, got {frames_per_s}.")
        self.stride = 1
        self.latest_step: int | None = None
        self.recorded = 0
        self.written = 0
        self.forced = 0
        self.flight = flight
        self._journal = journal
        self._budget = budget
        self._plan = plan
        self._clock = clock
        self._most_pending = most_pending
        self._frame_s = 1.0 / frames_per_s
        self._monitor = monitor
        self._handing = HandingOn(
            journal, sinks, asynchronous=asynchronous, most_bytes=most_queue_bytes
        )
        self.level = level
        self._pending: deque[Entry] = deque()
        self._pending_bytes = 0
        self._last_frame = 0.0  # when frames were last handed on
        self._status_step: int | None = None
        self._last_record: int | None = None
        self._start: float | None = None  # when the first record came
        self._now = 0.0  # end of the last call
        self._inside = 0.0  # seconds in the watcher since `_start`
        self._depth = 0
        self._price = _FIRST_PRICE_S
        self._frame_price = _FIRST_PRICE_S
        self._next_frame = 0.0
        self._next_status = 0.0
        self._steps_given = 0  # to `record`
        self._steps_kept = 0
        self._booked = 0, 0  # of these two, what the ledger has
        self._latest: dict[str, np.ndarray] = {}
        # Only one thread writes the journal at a time; `note` never waits for it.
        self._writing = threading.Lock()
        at_exit(self)

    @property
    def level(self) -> Level:
        """How much of what programs record is kept."""
        return self._level

    @level.setter
    def level(self, level: str) -> None:
        self._level: Level = check_level(level)
        self._every = every_of(self._level)
        wake_all()

    @property
    def latest(self) -> dict[str, float]:
        """The last numbers collected, by name; for a progress bar."""
        return {name: value.item() for name, value in self._latest.items()}

    @property
    def pending(self) -> int:
        """How many records wait to be collected."""
        return len(self._pending)

    @property
    def losses(self) -> Losses:
        """What became of the records, by class."""
        self._book()
        return self._handing.losses

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one step; fetch and write what the budget can pay for.

        Args:
            step: the training step; higher than the one before.
            metrics: numbers by name, as JAX arrays of shape `()`, not donated to
                any later call, or as plain numbers.

        Raises:
            OutputError: the journal cannot be written. Nothing is lost: the next
                call tries again.
            TypeError: called while JAX traces a function, a metric is no real number,
                or the step no whole one.
            ValueError: a metric is no single number, a name is empty or too long, there
                are over 1000, the step is not higher, or the journal is closed. A whole
                number on the device that is beyond int64 is found only when it is read,
                perhaps calls later; that record is refused, no other.
        """
        entered = self._clock()
        self._refuse_closed()
        step = as_step(step, after=self._last_step())
        check_names(metrics)
        kept = {name: checked_metric(name, value) for name, value in metrics.items()}
        self._pending.append((step, kept))
        self._last_record = step
        self.recorded += 1
        self._steps_given += 1
        self._depth += 1
        try:
            self._drain_if_due(entered)
        finally:
            self._leave(entered)

    def take(self, step: int, probes: Mapping[str, Probe], records: Any) -> None:
        """Take what one call of a program recorded; fetch what the budget can pay for.

        Never raises for what is in the records or for a journal that cannot be written:
        what cannot be kept is counted, see `losses`.

        Args:
            step: the number of the call, rising.
            probes: by the names of the records.
            records: a mapping of them, left on the device. If it has them, `is_ready()`
                says whether they can be had without waiting, `fetch()` gives them as
                NumPy arrays, and `axes` says what the first axes of each are, such as
                "steps" of a loop.
        """
        entered = self._clock()
        self._depth += 1
        try:
            if self.flight is not None:
                self.flight.keep(step, records)
            if not any(self._wants(probe, step) for probe in probes.values()):
                for probe in probes.values():
                    self._handing.leave_out(class_of(probe))
                return
            if any(probe.kind == "frame" for probe in probes.values()):
                self._next_frame = entered + self._frame_s
            taken = Taken(step, probes, records, getattr(records, "nbytes", 0), deque())
            self._pending.append(taken)
            self._pending_bytes += taken.nbytes
            self.recorded += 1
            self._drain_if_due(entered)
            self._shed()
        except (OutputError, ValueError) as e:  # of what `record` was given earlier
            self._handing.note_failure(e)
        finally:
            self._leave(entered)

    def note(self, kind: Kind, stream: str, values: Mapping[str, np.ndarray]) -> None:
        """Take what a program handed over from inside, by a callback.

        May be called by any thread, also while the program runs.

        Args:
            kind: its class.
            stream: what it belongs to; its steps are counted here.
            values: by name; not changed afterwards.
        """
        step = self._handing.count(stream)
        if not is_asked_for(self._level, kind, step):
            self._handing.leave_out(kind)
            return
        if kind == "frame" and self._level != "full":
            now = self._clock()
            if not self._wants_frame(now):
                self._handing.leave_out(kind)
                return
            self._next_frame = now + self._frame_s
        if self._start is None:
            self._start = self._clock()
        self._handing.note(kind, stream, step, values)
        # Whoever only calls back from inside never comes by to collect.
        if self._handing.notes < RECORDS_PER_BLOCK:
            return
        # Whoever writes may itself wait for the program that waits here: so only if
        # summaries would be lost, and not for long.
        hurry = kind == "summary" and self._handing.is_half_full
        if self._writing.acquire(timeout=_HURRY_S if hurry else 0.0):
            entered = self._clock()
            try:
                self._handing.write_notes()
            except (OutputError, ValueError) as e:
                self._handing.note_failure(e)
            finally:
                self._inside += self._clock() - entered
                self._writing.release()

    def due(self, step: int) -> int:
        """What a program should give at this step.

        Returns:
            0 nothing, 1 records without frames, 2 also frames.
        """
        if self._every and not step % self._every:
            return 2 if self.wants_frames() else 1
        return 0 if self.flight is None else 1

    def idle(self, step: int) -> int | None:
        """For how many calls after a step at which nothing was due nothing will be.

        Returns:
            None: until the level changes.
        """
        if self.flight is not None:
            return 0
        return self._every - step % self._every - 1 if self._every else None

    def wants_frames(self) -> bool:
        """Whether the level asks for frames and the budget can pay for one now."""
        if not self._every:
            return False
        return self._level == "full" or self._wants_frame(self._clock())

    def affords(self, seconds: float) -> bool:
        """Whether so much time can be spent now without passing the budget.

        The price of a drain and of `finish` is kept back.
        """
        earned = self._budget.share * self._outside(self._clock())
        return earned - self._spent >= seconds + 2 * self._price

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """In this block something is done for watching: it counts as overhead."""
        entered = self._clock()
        self._depth += 1
        try:
            yield
        finally:
            self._leave(entered)

    def collect(self) -> None:
        """Bring all that waits to the journal, whatever it costs; it is not flushed.

        For a checkpoint, which must not be ahead of the journal: collect, then
        `Journal.flush`. First waits for the device; that time is the program's, not
        the watcher's.

        Raises:
            OutputError: the journal cannot be written; may be called again.
            ValueError: the journal is closed.
        """
        self._refuse_closed()
        for entry in self._pending:
            try:
                jax.block_until_ready(arrays_of(entry))
            except Exception:
                # A program failed. What `record` was given is its caller's affair,
                # what `take` was given is counted when it is read.
                if not isinstance(entry, Taken):
                    raise
        with self.spending():
            self._handing.failure = None
            self._drain_all_but(0)
            with self._writing:
                self._handing.write_notes()
                self._handing.let_go()
            if self._handing.failure is not None and self._pending:
                raise self._handing.failure

    def finish(self, timeout_s: float = 5.0) -> None:
        """Collect all that waits, flush the journal, and wait for the sinks.

        Args:
            timeout_s: how long to wait for each sink; what it does not take in that
                time still waits.

        Raises:
            OutputError: the journal cannot be written; `finish` may be called again.
            ValueError: the journal is closed.
        """
        self.collect()
        with self.spending():
            with self._writing:
                self._say_status(always=True)
                if self._journal is not None:
                    self._journal.flush()
            self._handing.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish, and close the sinks; the journal stays open. Twice is harmless.

        Raises:
            OutputError: the journal cannot be written.
            ValueError: the journal is closed and something waits for it.
        """
        try:
            if self._journal is None or not self._journal.closed or self._pending:
                self.finish(timeout_s)
        finally:
            self._handing.close(timeout_s)

    def __enter__(self) -> "Watcher":
        enter(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave(self)
        if error is None:
            self.close()
            return
        # What ended the program is what must be seen; what goes wrong here is added.
        try:
            if self.flight is not None and self._journal is not None:
                self.flight.write(self._journal, f"{type(error).__name__} was raised")
            self.close()
        except Exception as again:
            error.add_note(f"and what was watched could not all be kept: {again}")

    def report(self) -> Receipt:
        """What watching has cost up to the last call, beside the budget."""
        outside = self._outside(self._now)
        spend = Spend(
            name="time spent watching",
            unit="share",
            limit=self._budget.share,
            predicted=None if self._plan is None else self._plan.predicted,
            measured=self._spent / outside if outside > 0 else None,
            source=" ".join(
                [
                    "self-measured: time inside the watcher's calls",
                    "and CPU time of its sinks" if self._handing.has_sinks else "",
                    "over time outside, from the first record on. It cannot see how "
                    "watching slows what runs outside; an A/B run would prove that, "
                    "this is none.",
                    *self._remarks(),
                ]
            ).replace("  ", " "),
        )
        return Receipt((spend,))

    @property
    def _spent(self) -> float:
        return self._inside + self._handing.cpu_s

    def _remarks(self) -> list[str]:
        said = [f"{self.forced} drains were forced."] if self.forced else []
        said.append(f"Records: {self.losses}.")
        if self._handing.last_error:
            said.append(f"Refused last: {self._handing.last_error}")
        if self._handing.failure is not None:
            said.append(f"The journal could not be written: {self._handing.failure}")
        if self._monitor:
            said += [f"{report}." for report in self._handing.reports()]
            said += [note] if (note := callbacks_note(STATS.get())) else []
        return said

    def _book(self) -> None:
        """Bring the ledger up to date with what `record` was given."""
        given, kept = self._booked
        self._handing.losses.give("scalar", self._steps_given - given)
        self._handing.losses.keep("scalar", self._steps_kept - kept)
        self._booked = self._steps_given, self._steps_kept

    def _refuse_closed(self) -> None:
        if self._journal is not None and self._journal.closed:
            raise ValueError(
                f"the journal is closed, with {self.pending} record(s) not written: "
                "record and finish before `Journal.close`."
            )

    def _last_step(self) -> int | None:
        """What the step of the next `record` must be above."""
        journal = None if self._journal is None else self._journal.last_step
        known = [step for step in (self._last_record, journal) if step is not None]
        return max(known, default=None)

    def _wants(self, probe: Probe, step: int) -> bool:
        # A function of the user's is no question of how much is watched.
        return probe.kind == "call" or is_asked_for(self._level, probe.kind, step)

    def _wants_frame(self, now: float) -> bool:
        if now < self._next_frame:
            return False
        earned = self._budget.share * self._outside(now)
        return earned - self._spent >= 2 * self._price + self._frame_price

    def _outside(self, now: float) -> float:
        return 0.0 if self._start is None else now - self._start - self._inside

    def _leave(self, entered: float) -> None:
        self._depth -= 1
        if self._depth:  # inside `spending`: its time is counted once
            return
        self._now = self._clock()
        if self._start is None:
            self._start = entered
        self._inside += self._now - entered

    def _drain_if_due(self, now: float) -> None:
        self._drain_while_affordable(now)
        too_much = self._pending_bytes > _MOST_PENDING_BYTES
        if too_much or len(self._pending) > self._most_pending:
            self.forced += 1
            # Half: the newest may not be computed yet, and waiting stalls.
            half = min(len(self._pending), self._most_pending) // 2
            self._drain_all_but(half)

    def _shed(self) -> None:
        """Let go of the oldest that the journal cannot take, beyond what may wait."""
        while self._pending and (
            len(self._pending) > self._most_pending
            or self._pending_bytes > _MOST_PENDING_BYTES
        ):
            oldest = self._pending[0]
            if not isinstance(oldest, Taken):
                return  # what `record` was given is for its caller to decide
            self._pending.popleft()
            self._pending_bytes -= oldest.nbytes
            if oldest.records is None:
                for rows in oldest.rows:
                    self._handing.lose(rows.kind or "scalar", len(rows), given=False)
            else:
                for probe in oldest.probes.values():
                    self._handing.lose(class_of(probe), 1, given=True)

    def _drain_while_affordable(self, now: float) -> None:
        every = 1 if self._plan is None else self._plan.every
        if len(self._pending) < min(every, self._most_pending):
            return
        earned = self._budget.share * self._outside(now)
        # Twice: the price of one drain is kept back for `finish`.
        while earned - self._spent - (self._clock() - now) >= 2 * self._price:
            ready = 0
            for entry in itertools.islice(self._pending, RECORDS_PER_BLOCK):
                if not is_ready(entry):
                    break
                ready += 1
            if not ready or not self._drain(ready):
                return

    def _drain_all_but(self, rest: int) -> None:
        while len(self._pending) > rest:
            if not self._drain(min(len(self._pending) - rest, RECORDS_PER_BLOCK)):
                return

    def _drain(self, count: int) -> bool:
        """Fetch the oldest `count` entries and hand them on.

        Returns:
            Whether the journal took them all; those of `record` raise if it did not.

        Raises:
            OutputError: the journal cannot be written; the rest still waits.
            ValueError: the journal refuses one of them, which is dropped.
        """
        with self._writing:
            return self._drain_alone(count)

    def _drain_alone(self, count: int) -> bool:
        entered = self._clock()
        oldest = list(itertools.islice(self._pending, count))
        if jax.default_backend() != "cpu":  # so that the transfers overlap
            for entry in oldest:
                begin_copy(entry)
        for entry in oldest:
            if isinstance(entry, Taken):
                if not self._hand_on(entry):
                    return False
                self._pending_bytes -= entry.nbytes
            else:
                self._write_step(*entry)
            self._pending.popleft()
        self._handing.write_notes()
        self._say_status()
        self._price = self._clock() - entered
        return True

    def _write_step(self, step: int, metrics: dict[str, Any]) -> None:
        # Not jax.device_get: for a ready CPU array it takes six times as long
        # (benchmarks/test_watch.py).
        values = {name: np.asarray(value) for name, value in metrics.items()}
        last = None if self._journal is None else self._journal.last_step
        # If Ctrl-C came between writing it and forgetting it, it is there already.
        if last is None or step > last:
            try:
                self._handing.step(step, values)
            except ValueError:
                self._pending.popleft()  # or it would block all that wait behind it
                self.recorded -= 1
                self._handing.losses.drop("scalar", why="refused")
                raise
        self.written += 1
        self._steps_kept += 1
        self.latest_step = step
        self._latest = values
        if self.flight is not None and self._journal is not None:
            self.flight.look_at(step, values, self._journal)

    def _hand_on(self, entry: Taken) -> bool:
        """Hand on what a program gave. False if the journal cannot be written now."""
        entered = self._clock()
        if entry.records is not None:
            entry.rows = self._fetched(entry)
        frames = 0
        while entry.rows:
            rows = entry.rows[0]
            rest = self._handing.rows(rows)
            if rest is not None:
                entry.rows[0] = rest
                return False
            frames += len(rows) if rows.kind == "frame" else 0
            entry.rows.popleft()
        self.written += 1
        self.latest_step = entry.step
        if frames:
            self._pace(frames, self._clock() - entered)
        return True

    def _fetched(self, entry: Taken) -> deque[Rows]:
        """The rows of an entry that the level asks for; the others are booked."""
        losses = self._handing.losses
        try:
            found = entry.fetch()
        except Exception as e:  # the program failed; its own caller is told so too
            self._handing.last_error = error_text(e)
            for probe in entry.probes.values():
                self._handing.lose(class_of(probe), 1, given=True, why="refused")
            return deque()
        wanted: deque[Rows] = deque()
        for rows in found:
            if rows.kind is not None:
                if not is_asked_for(self._level, rows.kind, entry.step):
                    self._handing.leave_out(rows.kind, len(rows))
                    continue
                losses.give(rows.kind, len(rows))
            if rows.stream == "" and rows.kind == "scalar":
                self._latest = {name: c[0] for name, c in rows.columns.items()}
            wanted.append(rows)
        if self.flight is not None and self._journal is not None:
            for rows in found:
                if rows.kind == "scalar":
                    self.flight.look_at(entry.step, rows.columns, self._journal)
        return wanted

    def _pace(self, frames: int, seconds: float) -> None:
        """Learn from what some frames have cost."""
        now = self._clock()
        earned = self._budget.share * (now - self._last_frame)
        self._last_frame = now
        self._frame_price = seconds
        if frames > 1 and self._level != "full":
            if seconds > earned:
                self.stride = min(2 * self.stride, _MOST_STRIDE)
            elif seconds < earned / 4:
                self.stride = max(self.stride // 2, 1)

    def _say_status(self, *, always: bool = False) -> None:
        """Say how watching goes, now and then, to the journal and the sinks."""
        now, step = self._clock(), self.latest_step
        if step is None or step == self._status_step:
            return
        if now < self._next_status and not always:
            return
        self._next_status, self._status_step = now + _STATUS_S, step
        self._book()
        outside = self._outside(now)
        share = self._spent / outside if outside > 0 else None
        self._handing.status(step, share=share, limit=self._budget.share)


_default: Watcher | None = None


def default() -> Watcher:
    """The watcher of this process where no other was entered.

    It has no journal: grids and episode summaries show in the terminal, functions on
    the host are called, and of numbers the last are in `latest`.
    """
    global _default
    if _default is None:
        _default = Watcher(None, OverheadBudget(share=0.01))
    return _default
