"""Measure the wall time of a run by parts."""

import contextlib
import time
from collections.abc import Callable, Iterator


class Stopwatch:
    """Runs from its creation; the time of earlier parts of a run can be added.

    Attributes:
        spent: seconds by part.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        """Start the stopwatch."""
        self._clock = clock
        # The default clock is monotonic, so setting the system's time spends no budget.
        self._start = clock()
        self.spent: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the start, earlier parts included."""
        return self._clock() - self._start

    def add_elapsed(self, seconds: float) -> None:
        """Add the time that the run took before it was resumed."""
        # With an earlier start, `total` and every budget of time count those parts,
        # too.
        self._start -= seconds
        self.spent["before the resume"] = seconds

    def add(self, part: str, seconds: float) -> None:
        """Attribute seconds that were measured elsewhere to `part`."""
        self.spent[part] = self.spent.get(part, 0.0) + seconds

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Attribute the time of a block to `part`."""
        started = self._clock()
        try:
            yield
        finally:
            self.add(part, self._clock() - started)
