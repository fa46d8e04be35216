"""How far JAX may run ahead before the loop waits for it.

Waiting after every step would stall the device; never waiting would overrun the time
and find a NaN too late.
"""

import collections
import statistics

# Long enough to hide a wait of about 0.1 ms, short enough for Ctrl-C and for the last
# seconds of a budget.
_AHEAD_SECONDS = 0.25
# The slowest of so many waits is what a step may take next time.
_REMEMBERED = 5
# What a step took that began and ended between two ticks of the clock.
_TICK_S = 1e-9


class Pace:
    """Seconds per step, as found at the last few waits."""

    def __init__(self) -> None:
        self._seconds: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._last_steps = 0

    def record(self, *, steps: int, seconds: float) -> None:
        """So many steps took so many seconds, from one wait to the next."""
        self._seconds.append(max(seconds / steps, _TICK_S))
        self._last_steps = steps

    @property
    def usual_s(self) -> float | None:
        """The median; None before the third wait: the first steps are slow."""
        return statistics.median(self._seconds) if len(self._seconds) > 2 else None

    def steps_ahead(self, *, left_s: float | None) -> int:
        """Steps to take before the next wait; 0 if not one is expected to fit.

        Args:
            left_s: seconds left for steps; None for no limit.
        """
        if not self._seconds:
            return 0 if left_s is not None and left_s <= 0 else 1
        slowest = max(self._seconds)
        # At most twice as many as last time, so that one quick step decides little.
        ahead = min(2 * self._last_steps, max(1, int(_AHEAD_SECONDS / slowest)))
        if left_s is None:
            return ahead
        if left_s < slowest:
            return 0
        # Half of what fits: the nearer the end, the more often it is looked at.
        return min(ahead, max(1, int(left_s / slowest / 2)))
