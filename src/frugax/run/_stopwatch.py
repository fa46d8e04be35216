"""Measure the wall time of a run by parts."""

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Runs from its creation; the time of earlier parts of a run can be added.

    Attributes:
        spent: seconds by part.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.spent: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the start, earlier parts included."""
        return time.perf_counter() - self._start

    def add_elapsed(self, seconds: float) -> None:
        """Add the time that the run took before it was resumed."""
        self._start -= seconds
        self.spent["before the resume"] = seconds

    def add(self, part: str, seconds: float) -> None:
        """Attribute seconds that were measured elsewhere to `part`."""
        self.spent[part] = self.spent.get(part, 0.0) + seconds

    @contextlib.contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Attribute the time of a block to `part`."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(part, time.perf_counter() - started)
