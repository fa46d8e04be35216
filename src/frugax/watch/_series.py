"""`Series`: the calls of one function, or of `record` with the same names."""

import math
from collections import deque
from typing import Any

from ._rate import Rate

# A step of this length or longer is always kept: its record costs less than 1% of it.
# Of shorter steps as many are kept as there would be of this length.
LONG_STEP_S = 5e-3
# Shorter stretches are not measured: a queue of calls before the device hides them.
_WINDOW_S = 0.25
# A pause, for an evaluation for example, looks like long steps: so many windows in a
# row must show it before more steps are kept.
_WINDOWS = 3
_MAX_STRIDE = 2**14


class Series:
    """Calls of which every `stride`-th is kept, a power of two, by the time between.

    The time is that of calls that the device has finished, not of calls that were made:
    a loop may be tens of steps ahead of its device.

    Attributes:
        calls: calls so far.
        first_step: the step of the first call of a program.
        skipped: the newest call's value, if it was thinned out; else None.
        next_look: calls before this one only remember their arguments.
        placed: the step of the newest record among those of the run.
        found: the stride that the time between calls asks for.
        call_s: seconds between two calls; None until it has been measured.
    """

    def __init__(self, rate: Rate, first_step: int = 0) -> None:
        """Count calls from 0, and keep each at first."""
        self.calls = 0
        self.first_step = first_step
        self.skipped: Any = None
        self.next_look = 0
        self.placed = -(2**63)
        self._repeats = self._is_apart = False
        self.found = 1
        self.call_s: float | None = None
        rate.series.append(self)
        self._rate = rate
        self._mark: tuple[int, float] | None = None
        self._recent: deque[float] = deque(maxlen=_WINDOWS)

    @property
    def gap_s(self) -> float:
        """The least time between two kept calls, of short steps."""
        return 0.0

    @property
    def stride(self) -> int:
        """Every `stride`-th call is kept, and always the last."""
        return 1 if self._rate.keeps_all else self.found

    def place(self, step: int, *, is_behind: bool) -> bool:
        """Note the step of a record among those of the run.

        Returns:
            Whether its numbers go to streams of their names: those of the run have one
            row for each step. Calls that come several at a time while others move the
            run on, as for the batches of an evaluation, all do from the second time on.
        """
        is_repeated = step <= self.placed
        self._is_apart |= self._repeats and is_behind and not is_repeated
        self._repeats |= is_repeated
        self.placed = step
        return is_repeated or self._is_apart

    def begin(self, number: int, now: float) -> None:
        """Measure from this call on, the first that compiles nothing."""
        if self._mark is None:
            self._mark = number, now

    def is_early(self, now: float) -> bool:
        """Whether the first calls are so recent that nothing has been measured."""
        return self.call_s is None and (
            self._mark is None or now - self._mark[1] < _WINDOW_S
        )

    def measure(self, number: int, now: float) -> bool:
        """Adapt the stride to a call that is finished by now; says whether it moved."""
        if self._mark is None or now - self._mark[1] < _WINDOW_S:
            return False
        first, began = self._mark
        if number <= first:
            return False
        self.call_s = (now - began) / (number - first)
        self._recent.append(self.call_s)
        self._mark = number, now
        before = self.found
        shortest = min(self._recent)
        self.found = 1
        if shortest < LONG_STEP_S:
            calls = (
                max(LONG_STEP_S, self.gap_s) / max(shortest, 1e-9) * self._rate.factor
            )
            self.found = min(2 ** math.ceil(math.log2(calls)), _MAX_STRIDE)
        if self.found == before:
            return False
        self.next_look = 0
        return True


class MetricSeries(Series):
    """The calls of `Watcher.record` with the same names.

    Attributes:
        accounted: calls that were kept or refused, or are counted as left out.
        has_checked_names: whether a journal takes the names of the metrics.
    """

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self.accounted = 0
        self.has_checked_names = False

    def count(self, now: float) -> bool:
        """Count a call; returns whether it is thinned out."""
        number = self.calls
        self.begin(number, now)
        self.calls += 1
        stride = self.stride
        self.next_look = number - number % stride + stride
        return number % stride > 0
