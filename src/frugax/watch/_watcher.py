"""Collecting the metrics of a running program, when the budget can pay for it.

The program puts its metrics out as arrays; `Watcher.record` keeps references to them
and returns. A token bucket fills with the budget's share of the time that passes
outside the watcher. When it holds the price of a drain, the records that the device
has finished are fetched and written to the journal, at most one block at a time, so
that a drain which turns out dearer than the last one cannot overdraw by much.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from frugax.budget import OverheadBudget, Receipt, Spend, check_budget

from ._blocks import RECORDS_PER_BLOCK
from ._journal import Journal, as_number, as_step, check_names, is_real
from ._plan import WatchPlan

# Assumed until the first drain is timed, on the dear side: one block of records of four
# metrics takes 0.7 ms of a CPU core (benchmarks/test_watch.py).
_FIRST_PRICE_S = 1e-3


class Watcher:
    """Collects every record, no more often than the budget allows.

    No record is dropped: one that is not yet affordable waits on the device. At most
    `most_pending` wait; beyond that they are collected whatever it costs, and the
    receipt says so.

    Attributes:
        latest_step: the step of the last record collected; None before the first.
        recorded: how many records were given.
        written: how many of them are in the journal.
        forced: how many drains were made only because too many records waited.
    """

    def __init__(
        self,
        journal: Journal,
        budget: OverheadBudget,
        *,
        plan: WatchPlan | None = None,
        clock: Callable[[], float] = time.perf_counter,
        most_pending: int = 4096,
    ) -> None:
        """Start watching; the time counts from the first record.

        Args:
            journal: where the records go; written by nobody else until `finish`,
                which flushes it and leaves it open.
            budget: share of the running time that watching may add.
            plan: if given, drains wait for `plan.every` records, and the receipt
                shows its prediction.
            clock: seconds, rising.
            most_pending: how many records may wait; >= 1.

        Raises:
            TypeError: `budget` is none, but text or a number.
            ValueError: `most_pending` is below 1.
        """
        check_budget(budget, OverheadBudget)
        if most_pending < 1:
            raise ValueError(f"most_pending must be >= 1, got {most_pending}.")
        self.latest_step: int | None = None
        self.recorded = 0
        self.written = 0
        self.forced = 0
        self._journal = journal
        self._budget = budget
        self._plan = plan
        self._clock = clock
        self._most_pending = most_pending
        self._pending: deque[tuple[int, dict[str, Any]]] = deque()
        self._start: float | None = None  # when the first record came
        self._now = 0.0  # end of the last call
        self._inside = 0.0  # seconds in the watcher since `_start`
        self._price = _FIRST_PRICE_S
        self._latest: dict[str, np.ndarray] = {}

    @property
    def latest(self) -> dict[str, float]:
        """The last record collected, by name; for a progress bar."""
        return {name: value.item() for name, value in self._latest.items()}

    @property
    def pending(self) -> int:
        """How many records wait to be collected."""
        return len(self._pending)

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
        last = self._pending[-1][0] if self._pending else self._journal.last_step
        step = as_step(step, after=last)
        check_names(metrics)
        kept = {name: _checked(name, value) for name, value in metrics.items()}
        self._pending.append((step, kept))
        self.recorded += 1
        try:
            self._drain_while_affordable(entered)
            if len(self._pending) > self._most_pending:
                self.forced += 1
                # Half: the newest may not be computed yet, and waiting stalls.
                self._drain_all_but(self._most_pending // 2)
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
        jax.block_until_ready([metrics for _, metrics in self._pending])
        entered = self._clock()
        try:
            self._drain_all_but(0)
        finally:
            self._leave(entered)

    def finish(self) -> None:
        """Collect all that waits and flush the journal.

        Raises:
            OutputError: the journal cannot be written; `finish` may be called again.
            ValueError: the journal is closed.
        """
        self.collect()
        entered = self._clock()
        try:
            self._journal.flush()
        finally:
            self._leave(entered)

    def report(self) -> Receipt:
        """What watching has cost up to the last call, beside the budget."""
        outside = self._outside(self._now)
        forced = f" {self.forced} drains were forced." if self.forced else ""
        spend = Spend(
            name="time spent watching",
            unit="share",
            limit=self._budget.share,
            predicted=None if self._plan is None else self._plan.predicted,
            measured=self._inside / outside if outside > 0 else None,
            source=(
                "self-measured: time inside the watcher's calls over time outside, "
                "from the first record on. It cannot see how watching slows what runs "
                f"outside; an A/B run would prove that, this is none.{forced}"
            ),
        )
        return Receipt((spend,))

    def _refuse_closed(self) -> None:
        if self._journal.closed:
            raise ValueError(
                f"the journal is closed, with {self.pending} record(s) not written: "
                "record and finish before `Journal.close`."
            )

    def _outside(self, now: float) -> float:
        return 0.0 if self._start is None else now - self._start - self._inside

    def _leave(self, entered: float) -> None:
        self._now = self._clock()
        if self._start is None:
            self._start = entered
        self._inside += self._now - entered

    def _drain_while_affordable(self, now: float) -> None:
        every = 1 if self._plan is None else self._plan.every
        if len(self._pending) < min(every, self._most_pending):
            return
        earned = self._budget.share * self._outside(now)
        # Twice: the price of one drain is kept back for `finish`.
        while earned - self._inside - (self._clock() - now) >= 2 * self._price:
            ready = 0
            for _, metrics in itertools.islice(self._pending, RECORDS_PER_BLOCK):
                if not all(_is_ready(value) for value in metrics.values()):
                    break
                ready += 1
            if not ready:
                return
            self._drain(ready)

    def _drain_all_but(self, rest: int) -> None:
        while len(self._pending) > rest:
            self._drain(min(len(self._pending) - rest, RECORDS_PER_BLOCK))

    def _drain(self, count: int) -> None:
        """Fetch the oldest `count` records and write them.

        Raises:
            OutputError: the journal cannot be written; the rest still waits.
            ValueError: the journal refuses one of them, which is dropped.
        """
        entered = self._clock()
        oldest = list(itertools.islice(self._pending, count))
        if jax.default_backend() != "cpu":  # so that the transfers overlap
            for value in jax.tree.leaves([metrics for _, metrics in oldest]):
                if isinstance(value, jax.Array):
                    value.copy_to_host_async()
        for step, metrics in oldest:
            # Not jax.device_get: for a ready CPU array it takes six times as long
            # (benchmarks/test_watch.py).
            values = {name: np.asarray(value) for name, value in metrics.items()}
            try:
                self._journal.write(step, values)
            except ValueError:
                self._pending.popleft()  # or it would block all that wait behind it
                self.recorded -= 1
                raise
            self._pending.popleft()
            self.written += 1
            self.latest_step = step
            self._latest = values
        self._price = self._clock() - entered


def _checked(name: str, value: Any) -> Any:
    """A metric that can be kept until it is read: numbers as they are now.

    Raises:
        TypeError: it is no real number, or is being traced.
        ValueError: it is no single number.
    """
    if isinstance(value, Tracer):
        raise TypeError(
            f"{name!r} is being traced: return it from the jitted function "
            "and record it outside."
        )
    if getattr(value, "shape", ()) != ():
        raise ValueError(f"{name!r} must have shape (), got {value.shape}.")
    if not hasattr(value, "is_ready"):
        return as_number(name, value)
    if not is_real(value.dtype):
        raise TypeError(f"{name!r} must be a real number, got {value.dtype}.")
    return value  # on the device: to read it now would wait for it


def _is_ready(value: Any) -> bool:
    ready = getattr(value, "is_ready", None)  # absent from plain numbers
    return ready is None or ready()
