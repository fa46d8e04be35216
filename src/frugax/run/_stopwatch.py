"""Wall time of a run by what it went to."""

import contextlib
import time
from collections.abc import Iterator


class Stopwatch:
    """Counts from its making; time of an earlier part of the run can be added.

    Attributes:
        spent: seconds by what they went to.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.spent: dict[str, float] = {}

    @property
    def total(self) -> float:
        """Seconds since the start, earlier parts included."""
        return time.perf_counter() - self._start

    def add_earlier(self, seconds: float) -> None:
        """Count time that an earlier part of this run took."""
        self._start -= seconds
        self.spent["before the resume"] = seconds

    def add(self, what: str, seconds: float) -> None:
        """Put seconds that were counted elsewhere down to `what`."""
        self.spent[what] = self.spent.get(what, 0.0) + seconds

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Put the time of a block down to `what`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(what, time.perf_counter() - begun)
