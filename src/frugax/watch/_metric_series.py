"""`MetricSeries`: the calls of `Watcher.record` that have the same names."""

from collections.abc import Mapping
from typing import Any

from ._rate import Rate
from ._thinning import Thinning


class MetricSeries:
    """Counts calls, and remembers the newest that was thinned out.

    Attributes:
        thinning: which calls are kept.
        calls: calls so far.
        next_look: calls before this one only remember their metrics.
        counted: calls so far whose cost and thinning have been counted.
        skipped: step and metrics of the newest call, if it was thinned out.
        skips: calls that were thinned out since the last record.
    """

    __slots__ = ("calls", "counted", "next_look", "skipped", "skips", "thinning")

    def __init__(self, rate: Rate) -> None:
        """Count from 0."""
        self.thinning = Thinning(rate)
        self.calls = self.next_look = self.counted = self.skips = 0
        self.skipped: tuple[int, Mapping[str, Any]] | None = None

    def count(self, now: float) -> bool:
        """Count a call; returns whether it is thinned out."""
        number = self.calls
        self.thinning.begin(number, now)
        self.calls = self.counted = number + 1
        stride = self.thinning.stride
        self.next_look = number - number % stride + stride
        return number % stride > 0
