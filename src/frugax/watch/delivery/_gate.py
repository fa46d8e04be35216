"""How often something dear may be done, decided while the program runs."""

import threading

# At most so rare, so that it is noticed when the price has fallen.
_MOST_STRIDE = 1024


class Gate:
    """Lets one call in `stride` through, so that a call costs `most_s` on average.

    A call that was dearer than `stride` calls may cost doubles the stride; one that
    cost less than half of that halves it. Between the two it stays.

    Attributes:
        stride: one call in so many is let through.
    """

    def __init__(self, most_s: float) -> None:
        """Say what a call may cost on average, those not let through included.

        Raises:
            ValueError: `most_s` is not positive.
        """
        if not most_s > 0:
            raise ValueError(f"most_s must be > 0, got {most_s}.")
        self.stride = 1
        self._most_s = most_s
        self._left = 0  # calls that are still turned away
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Whether this call is let through."""
        with self._lock:
            if self._left > 0:
                self._left -= 1
                return False
            self._left = self.stride - 1
            return True

    def end(self, seconds: float) -> None:
        """A call that was let through took so long."""
        with self._lock:
            if seconds > self.stride * self._most_s:
                self.stride = min(2 * self.stride, _MOST_STRIDE)
            elif seconds < self.stride * self._most_s / 4:
                self.stride = max(self.stride // 2, 1)
            self._left = self.stride - 1
