"""Collecting what a running program records, when the budget can pay for it.

The program puts its records out as arrays; `Watcher.record` and `Watcher.take` keep
references to them (`_waiting.py`) and return. A bucket fills with the budget's share of
the time that passes outside the watcher (`_account.py`). When it holds the price of a
drain, the records that the device has finished are fetched (`_draining.py`,
`_collecting.py`) and handed on (`_handing_on.py`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import numpy as np

from frugax.budget import OverheadBudget, Receipt, check_budget
from frugax.errors import OutputError

from ._account import Account
from ._asleep import wake_all
from ._collecting import Collecting
from ._current import at_exit, enter, leave
from ._draining import Draining
from ._flight import FlightRecorder
from ._frame_pace import FramePace
from ._given import check_journal, checked_sinks
from ._handing_on import HandingOn
from ._levels import Level, LevelDial
from ._pending import Taken, checked_metric, class_of
from ._plan import WatchPlan
from ._receipt import receipt
from ._waiting import Waiting
from .delivery import Losses
from .journal import RECORDS_PER_BLOCK, Journal, as_step, check_names
from .probes import Probe
from .sinks import Kind, Sink

# For so long a callback waits to write its summaries where room for them is short.
_HURRY_S = 1.0


class Watcher:
    """Collects every record, no more often than the budget allows.

    No record that the level asks for is dropped: one that is not yet affordable waits
    on the device. At most `most_pending` wait; beyond that they are collected whatever
    it costs, and the receipt says so. Used as a context, it is what `watch.jit`,
    `jax_log_grid` and the others find; leaving it finishes it.
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
            TypeError: `budget` is none, but text or a number; `journal` is none, but a
                path; or `sinks` are no list of sinks.
            ValueError: a number is out of its range, or there is no such level.
        """
        check_budget(budget, OverheadBudget)
        check_journal(journal)
        sinks = checked_sinks(sinks)
        self._flight = flight
        self._journal = journal
        self._plan = plan
        self._monitor = monitor
        self._last_record: int | None = None
        self._dial = LevelDial(level)
        self._waiting = Waiting(most_pending)
        self._handing = HandingOn(
            journal, sinks, asynchronous=asynchronous, most_bytes=most_queue_bytes
        )
        self._account = Account(
            budget.share, clock, elsewhere=lambda: self._handing.cpu_s
        )
        self._frames = FramePace(self._account, frames_per_s=frames_per_s)
        self._collecting = Collecting(
            self._waiting,
            self._handing,
            journal,
            dial=self._dial,
            account=self._account,
            frames=self._frames,
            flight=flight,
        )
        self._draining = Draining(
            self._waiting,
            self._collecting,
            self._handing,
            account=self._account,
            every=1 if plan is None else plan.every,
        )
        self._taking = threading.RLock()
        at_exit(self)

    @property
    def level(self) -> Level:
        """How much of what programs record is kept; may be set at any time."""
        return self._dial.level

    @level.setter
    def level(self, level: str) -> None:
        self._dial.turn(level)
        wake_all()

    @property
    def stride(self) -> int:
        """Of frames inside a loop every so manyth is worth its price now."""
        return self._frames.stride

    @property
    def latest(self) -> dict[str, float]:
        """The last numbers collected, by name; for a progress bar."""
        return {name: value.item() for name, value in self._collecting.latest.items()}

    @property
    def latest_step(self) -> int | None:
        """The step of the last record collected; None before the first."""
        return self._collecting.latest_step

    @property
    def recorded(self) -> int:
        """How many records were given and not refused."""
        return self._waiting.added - self._collecting.refused

    @property
    def written(self) -> int:
        """How many of them are in the journal."""
        return self._collecting.written

    @property
    def pending(self) -> int:
        """How many records wait to be collected."""
        return len(self._waiting)

    @property
    def forced(self) -> int:
        """How many drains were made only because too many records waited."""
        return self._draining.forced

    @property
    def flight(self) -> FlightRecorder | None:
        """The recorder of the last records, if there is one."""
        return self._flight

    @property
    def losses(self) -> Losses:
        """What became of the records, by class."""
        self._collecting.book()
        return self._handing.books.losses

    def record(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Take the metrics of one step; fetch and write what the budget can pay for.

        Args:
            step: the training step; higher than the one before.
            metrics: numbers by name, as JAX arrays of shape `()`, not donated to
                any later call, or as plain numbers.

        Raises:
            OutputError: the journal cannot be written. Nothing is lost: the next
                call tries again.
            TypeError: called while JAX traces a function, `metrics` is no mapping, a
                metric is no real number, or the step no whole one.
            ValueError: a metric is no single number, or a whole one beyond int64, a
                name is empty or too long, there are over 1000, the step is not higher,
                or the journal is closed. A whole number on the device that is beyond
                int64 is found only when it is read, perhaps calls later; that record is
                refused, no other.
        """
        entered = self._account.clock()
        self._refuse_closed()
        step = as_step(step, after=self._last_step())
        if not isinstance(metrics, Mapping):
            raise TypeError(
                f"metrics must be numbers by name, such as {{'loss': loss}}, got "
                f"{metrics!r:.99}."
            )
        check_names(metrics)
        kept = {name: checked_metric(name, value) for name, value in metrics.items()}
        self._waiting.add((step, kept))
        self._last_record = step
        self._account.enter()
        try:
            self._draining.if_due(entered)
        except OutputError as e:
            self._handing.books.note_failure(e)
            raise
        finally:
            self._account.leave(entered)

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
        entered = self._account.clock()
        if self._flight is not None:
            self._flight.keep(step, records)
        wanted = self._dial.wanted(step)
        # A function of the user's is no question of how much is watched.
        if not any(
            probe.kind in wanted or probe.kind == "call" for probe in probes.values()
        ):
            for probe in probes.values():
                self._handing.books.leave_out(class_of(probe))
            return
        if any(probe.kind == "frame" for probe in probes.values()):
            self._frames.take(entered)
        nbytes = getattr(records, "nbytes", 0)
        self._waiting.add(Taken(step, probes, records, nbytes, deque(), wanted))
        # Of threads that call at once one collects for all; the others go on, unless
        # too much waits.
        if not self._taking.acquire(blocking=self._waiting.is_over):
            return
        self._account.enter()
        try:
            self._draining.if_due(entered)
            self._draining.shed()
        except (OutputError, ValueError) as e:  # of what `record` was given earlier
            self._handing.books.note_failure(e)
        finally:
            self._account.leave(entered)
            self._taking.release()

    def note(self, kind: Kind, stream: str, values: Mapping[str, np.ndarray]) -> None:
        """Take what a program handed over from inside, by a callback.

        May be called by any thread, also while the program runs.

        Args:
            kind: its class.
            stream: what it belongs to; its steps are counted here.
            values: by name; not changed afterwards.
        """
        step = self._handing.notes.count(stream)
        if not self._dial.wants(kind, step):
            self._handing.books.leave_out(kind)
            return
        if kind == "frame" and self._dial.level != "full":
            now = self._account.clock()
            if not self._frames.wants(now):
                self._handing.books.leave_out(kind)
                return
            self._frames.take(now)
        self._account.begin()
        self._handing.note(kind, stream, step, values)
        # Whoever only calls back from inside never comes by to collect.
        if len(self._handing.notes) >= RECORDS_PER_BLOCK:
            # Not for long, and only if summaries would be lost.
            hurry = kind == "summary" and self._handing.notes.is_half_full
            self._draining.notes(_HURRY_S if hurry else 0.0)

    def due(self, step: int) -> int:
        """What a program should give at this step.

        Returns:
            0 nothing, 1 records without frames, 2 also frames.
        """
        every = self._dial.every
        if every and not step % every:
            return 2 if self.wants_frames() else 1
        return 0 if self._flight is None else 1

    def idle(self, step: int) -> int | None:
        """For how many calls after a step at which nothing was due nothing will be.

        Returns:
            None: until the level changes.
        """
        if self._flight is not None:
            return 0
        every = self._dial.every
        return every - step % every - 1 if every else None

    def wants_frames(self) -> bool:
        """Whether the level asks for frames and the budget can pay for one now."""
        if not self._dial.every:
            return False
        return self._dial.level == "full" or self._frames.wants(self._account.clock())

    def affords(self, seconds: float) -> bool:
        """Whether so much time can be spent now without passing the budget.

        The price of a drain and of `finish` is kept back.
        """
        return self._account.affords(seconds, self._account.clock())

    def spending(self) -> AbstractContextManager[None]:
        """In this block something is done for watching: it counts as overhead."""
        return self._account.spending()

    def collect(self) -> None:
        """Bring all that waits to the journal, whatever it costs; it is not flushed.

        For a checkpoint, which must not be ahead of the journal: collect, then
        `Journal.flush`. First waits for the device; that time is the program's, not
        the watcher's.

        Raises:
            OutputError: the journal cannot be written; may be called again.
            ValueError: the journal is closed, or metrics of a step were refused; all
                others are written.
        """
        self._collect()
        self._draining.say_refused()

    def finish(self, timeout_s: float = 5.0) -> None:
        """Collect all that waits, flush the journal, and wait for the sinks.

        Args:
            timeout_s: how long to wait for each sink; what it does not take in that
                time still waits.

        Raises:
            OutputError: the journal cannot be written; `finish` may be called again.
            ValueError: the journal is closed, or metrics of a step were refused; all
                others are written.
        """
        self._collect()
        with self.spending():
            self._draining.flush(self._journal)
            self._handing.flush(timeout_s)
        self._draining.say_refused()

    def _collect(self) -> None:
        self._refuse_closed()
        self._draining.wait_for_device()
        with self.spending():
            self._handing.books.failure = None
            try:
                self._draining.all_but(0)
                self._draining.rest()
            except OutputError as e:
                self._handing.books.note_failure(e)
                raise
            if self._handing.books.failure is not None and self._waiting:
                raise self._handing.books.failure

    def close(self, timeout_s: float = 5.0) -> None:
        """Finish, and close the sinks; the journal stays open. Twice is harmless.

        Raises:
            OutputError: the journal cannot be written.
            ValueError: the journal is closed and something waits for it.
        """
        try:
            if self._journal is None or not self._journal.closed or self._waiting:
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
            if self._flight is not None and self._journal is not None:
                self._flight.write(self._journal, f"{type(error).__name__} was raised")
            self.close()
        # Nothing narrower: sinks and failed programs raise what they like, and none of
        # it may hide `error`.
        except Exception as again:
            error.add_note(f"and what was watched could not all be kept: {again}")

    def report(self) -> Receipt:
        """What watching has cost up to the last call, beside the budget."""
        self._collecting.book()
        return receipt(
            self._account,
            self._handing,
            predicted=None if self._plan is None else self._plan.predicted,
            forced=self.forced,
            monitor=self._monitor,
        )

    def _refuse_closed(self) -> None:
        if self._journal is not None and self._journal.closed:
            if (failure := self._handing.books.failure) is not None:
                raise OutputError(
                    f"{failure.args[0]} The journal is closed since, with "
                    f"{self.pending} record(s) not written."
                ) from failure
            raise ValueError(
                f"the journal is closed, with {self.pending} record(s) not written: "
                "record and finish before `Journal.close`."
            )

    def _last_step(self) -> int | None:
        """What the step of the next `record` must be above."""
        journal = None if self._journal is None else self._journal.last_step
        if journal == self._handing.books.last_step:
            journal = None  # a program's steps are no reason to refuse the caller's
        known = [step for step in (self._last_record, journal) if step is not None]
        return max(known, default=None)


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
