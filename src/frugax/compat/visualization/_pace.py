"""Run a callback as often as it stays cheap on average, decided at each call."""

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from frugax.watch.delivery import CallSkipped

# Calls never get rarer than this, so that a price that has fallen is noticed.
_MAX_STRIDE = 1024


class Pace:
    """Decides which calls of a name run.

    Every `stride`-th may run. One that took longer than `stride` calls may take doubles
    the stride; one that took less than a quarter of that halves it. In between the
    stride stays.

    Attributes:
        stride: calls between two that may run.
    """

    def __init__(self) -> None:
        self.stride = 1
        self._turn_away = 0  # how many of the next calls may not run
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Return whether this call may run."""
        with self._lock:
            if self._turn_away > 0:
                self._turn_away -= 1
                return False
            self._turn_away = self.stride - 1
            return True

    def end(self, seconds: float, max_avg_s: float) -> None:
        """Record how long a call took that was allowed to run.

        Args:
            seconds: its duration.
            max_avg_s: seconds that a call may take on average, skipped ones included.
        """
        with self._lock:
            # The factor of four between the two limits keeps the stride from
            # alternating between two values when the price is constant.
            if seconds > self.stride * max_avg_s:
                # Doubling finds a stride of 1024 in ten calls that run.
                self.stride = min(2 * self.stride, _MAX_STRIDE)
            elif seconds < self.stride * max_avg_s / 4:
                self.stride = max(self.stride // 2, 1)
            self._turn_away = self.stride - 1


# Limited, since a program may make up a new name at every call.
@functools.lru_cache(maxsize=1000)
def pace_of(name: str) -> Pace:
    """Return the pace of a name; a function that is traced again keeps what it had."""
    return Pace()


def limit_pace(
    fn: Callable[..., object], name: str, max_avg_s: float
) -> Callable[..., None]:
    """Wrap a function so that it leaves out calls, by the pace of a name."""

    def call(*args: Any) -> None:
        pace = pace_of(name)
        if not pace.is_due():
            raise CallSkipped
        began = time.perf_counter()
        try:
            fn(*args)
        finally:
            pace.end(time.perf_counter() - began, max_avg_s)

    return call
