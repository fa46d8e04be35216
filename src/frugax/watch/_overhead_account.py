"""`OverheadAccount`: the share of a run's time that its watcher has taken so far."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from frugax.budget import format_share

from ._call_schedule import CallSchedule
from ._collector import Collector
from ._dispatch import Dispatch
from .overhead import MIN_PAIRS, Estimate, combine

# Notes on a measurement, the share of time that was added, and its half-width.
_Described = tuple[list[str], float | None, float]


class OverheadAccount:
    """Sums the seconds of a watcher's own calls, and reads its experiments.

    Attributes:
        record_s: seconds spent in `Watcher.record`.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        limit: float,
        schedules: Sequence[CallSchedule],
        own_schedule: CallSchedule,
        collector: Collector,
        dispatch: Dispatch,
    ) -> None:
        """Count from the first `touch`.

        Args:
            clock: in seconds.
            limit: the budget, a share of the running time.
            schedules: the watched functions; may grow.
            own_schedule: the calls of `Watcher.record`.
            collector: tells the processor time of collecting.
            dispatch: tells the processor time of the sinks.
        """
        self.record_s = 0.0
        self._clock = clock
        self._limit = limit
        self._schedules = schedules
        self._own_schedule = own_schedule
        self._collector = collector
        self._dispatch = dispatch
        self._started: float | None = None
        self._last_call = 0.0
        self._inside_s = 0.0  # in `count_block`
        self._depth = 0  # nested blocks

    def touch(self, now: float) -> None:
        """Note a call of the watcher."""
        if self._started is None:
            self._started = now
        self._last_call = now

    @contextlib.contextmanager
    def count_block(self) -> Iterator[None]:
        """Count the time of a `with` block as time spent on watching."""
        entered = self._clock()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:  # the outermost block counts the whole time, once
                self.touch(entered)
                self._inside_s += self._clock() - entered

    def can_afford(self, seconds: float) -> bool:
        """Return whether these seconds can be spent now within the budget."""
        if self._started is None:
            return False
        inside_s = self._inside_s + self.record_s
        elapsed = self._clock() - self._started - inside_s
        return self._limit * elapsed >= inside_s + self._collector.cpu_s + seconds

    @property
    def estimate(self) -> Estimate:
        """The share of time that watching adds, from the experiment in the run."""
        schedules = [
            schedule
            for schedule in (*self._schedules, self._own_schedule)
            if schedule.seconds > 0
        ]
        total = max((schedule.seconds for schedule in schedules), default=0.0)
        if not total:
            return Estimate(-np.inf, np.nan, np.inf, 0)
        found = combine(
            [schedule.experiment.estimate for schedule in schedules],
            [schedule.seconds / total for schedule in schedules],
        )
        # In both kinds of units, so that their comparison does not show it.
        least, most = self._common_share()
        return dataclasses.replace(
            found,
            low=found.low + least,
            middle=found.middle + (least + most) / 2,
            high=found.high + most,
        )

    @property
    def collecting_share(self) -> float:
        """Processor time of collecting and of the sinks, per second of the run."""
        elapsed = self._elapsed_s()
        if elapsed <= 0:
            return 0.0
        return (self._collector.cpu_s + self._dispatch.cpu_s) / elapsed

    def describe(self, *, calls: int, records_all: bool) -> _Described:
        """Return notes on the measurement, the share and its half-width.

        `calls` are those of `Watcher.record`. With `records_all` no stretch is bare.
        """
        found = self.estimate
        counted = self._describe_count(found, calls)
        return counted or self._describe_estimate(found, records_all=records_all)

    def _describe_estimate(self, found: Estimate, *, records_all: bool) -> _Described:
        notes = [
            f"random bare stretches of the run beside watched ones, {found.pairs} pairs"
        ]
        if self._dispatch.has_sinks:
            notes.append("and CPU time of its sinks")
        notes.append(
            f"; collecting took {format_share(self.collecting_share)} of a processor."
        )
        if not found.pairs:
            reason = "No pair is complete yet."
            if records_all:
                reason = (
                    "Every step is recorded, so none is bare: `watch.prove` measures "
                    "the share."
                )
            return [*notes, reason], None, 0.0
        known = np.isfinite(found.low) and np.isfinite(found.high)
        if known:
            notes.append(
                f"95% interval {found.low:+.2%} to {found.high:+.2%} with a median of "
                f"{found.middle:+.2%}."
            )
        if not (known and self._is_decided(found)):
            more = found.more_calls(self._limit)
            if np.isfinite(more) and more < 1e12:
                notes.append(f"About {more:,.0f} more steps would tell.")
            else:
                notes.append("No number of steps would tell.")
        if not known:
            return notes, None, 0.0
        half = max(found.high - found.middle, found.middle - found.low)
        return notes, found.middle, half

    def _describe_count(self, found: Estimate, calls: int) -> _Described | None:
        """Describe the time that was counted; None if it does not bound the overhead.

        Where only `record` is used the program is the one that would run unwatched.
        Then only two things can delay it: the calls themselves, by their wall time, and
        the thread that collects, by at most the processor time that it takes. It does
        not apply with sinks, which have threads of their own.
        """
        if self._dispatch.has_sinks:
            return None
        least, _ = self._common_share()  # without watched functions there is no gate
        most = least + self.collecting_share
        # A comparison that excludes the count knows of something that is not in it.
        is_refuted = found.low > most
        if not calls or self._schedules or self._is_decided(found) or is_refuted:
            return None
        notes = [
            f"calls of the watcher took {format_share(least)} of the time, with the "
            f"processor time of collecting {format_share(most)}: the share is between, "
            "effects on caches aside"
        ]
        if found.pairs >= MIN_PAIRS:
            notes.append(
                f"; {found.pairs} pairs of stretches with and without collecting give "
                f"{found.low:+.1%} to {found.high:+.1%}."
            )
        return notes, (least + most) / 2, (most - least) / 2

    def _is_decided(self, found: Estimate) -> bool:
        return found.high <= self._limit or found.low > self._limit

    def _common_share(self) -> tuple[float, float]:
        """The share spent in bare units too: gates, `record` itself, counted blocks.

        Returns:
            The least and the most: nobody knows how much of a gate the caches hold.
        """
        elapsed = self._elapsed_s()
        if elapsed <= 0:
            return 0.0, 0.0
        inside_s = self._inside_s + self.record_s
        warm_s, cold_s = (
            sum(schedule.gate_s[i] * schedule.calls for schedule in self._schedules)
            for i in (0, 1)
        )
        return (warm_s + inside_s) / elapsed, (cold_s + inside_s) / elapsed

    def _elapsed_s(self) -> float:
        if self._started is None:
            return 0.0
        return self._last_call - self._started
