"""Run a callback as often as it stays cheap on average, decided at each call."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

from frugax.watch.delivery import CallSkipped

# More calls are never left out in a row, so that a price that has fallen is noticed.
_MOST_LEFT_OUT = 1023


class Pace:
    """Which calls of a name run.

    Attributes:
        left_out: how many of the next calls may not run.
    """

    left_out = 0


# Limited, since a program may make up a new name at every call.
@functools.lru_cache(maxsize=1000)
def pace_of(name: str) -> Pace:
    """Return the pace of a name; a function that is traced again keeps what it had."""
    return Pace()


def limit_pace(
    fn: Callable[..., object], name: str, max_avg_s: float
) -> Callable[..., None]:
    """Wrap a function so that it leaves out calls, by the pace of a name.

    After a call as many are left out as it takes for all of them together to have taken
    `max_avg_s` each.
    """

    def call(*args: Any, **kwargs: Any) -> None:
        pace = pace_of(name)
        if pace.left_out > 0:
            pace.left_out -= 1
            raise CallSkipped
        began = time.perf_counter()
        try:
            fn(*args, **kwargs)
        finally:
            calls = math.ceil((time.perf_counter() - began) / max_avg_s)
            pace.left_out = min(calls - 1, _MOST_LEFT_OUT)

    return call
