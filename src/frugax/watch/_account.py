"""What watching has earned and spent: a share of the time that passes outside.

A token bucket, counted in seconds. While the program runs, the budget's share of that
time is earned; while the watcher works for it, time is spent.
"""

import contextlib
from collections.abc import Callable, Iterator

# Assumed until the first drain is timed, on the dear side: one block of records of four
# metrics takes 0.7 ms of a CPU core (benchmarks/test_watch.py).
FIRST_PRICE_S = 1e-3


class Account:
    """Time outside and inside of the watcher, and what the budget has left.

    Counts from the first call that was left. `enter` and `leave` are for one thread.

    Attributes:
        share: of the time outside that may be spent.
        clock: seconds, rising.
        price_s: what the last drain took. Twice that is always kept back, for the next
            one and for the one at the end.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float],
        *,
        elsewhere: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Begin with nothing earned.

        Args:
            share: of the time outside that may be spent; in [0, 1].
            clock: seconds, rising.
            elsewhere: seconds that were spent by other threads so far.
        """
        self.share = share
        self.clock = clock
        self.price_s = FIRST_PRICE_S
        self._elsewhere = elsewhere
        self._start: float | None = None  # when the first call came
        self._now = 0.0  # end of the last call
        self._inside = 0.0  # seconds in the watcher since `_start`
        self._depth = 0

    @property
    def spent(self) -> float:
        """Seconds spent so far, those of other threads too."""
        return self._inside + self._elsewhere()

    def outside(self, now: float) -> float:
        """Seconds that had passed outside by `now`."""
        return 0.0 if self._start is None else now - self._start - self._inside

    def left(self, now: float) -> float:
        """Seconds that had been earned by `now` and are not spent; < 0: overdrawn."""
        earned = self.share * self.outside(now)
        return earned - self.spent

    def affords(self, seconds: float, now: float) -> bool:
        """Whether so much can be spent, beside what is kept back."""
        return self.left(now) >= seconds + 2 * self.price_s

    def spent_share(self, now: float | None = None) -> float | None:
        """What was spent, as a share of the time outside.

        Args:
            now: until when; None: until the end of the last call.

        Returns:
            The share; None before any time has passed.
        """
        outside = self.outside(self._now if now is None else now)
        return self.spent / outside if outside > 0 else None

    def begin(self) -> None:
        """Count from now on, if nothing was counted yet."""
        if self._start is None:
            self._start = self.clock()

    def enter(self) -> None:
        """Something is done for watching from here to `leave`."""
        self._depth += 1

    def leave(self, entered: float) -> None:
        """It is done; it began at `entered`."""
        self._depth -= 1
        if self._depth:  # inside `spending`: its time is counted once
            return
        self._now = self.clock()
        if self._start is None:
            self._start = entered
        self._inside += self._now - entered

    def charge(self, seconds: float) -> None:
        """Another thread has spent so much."""
        self._inside += seconds

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """What is done in this block is done for watching."""
        entered = self.clock()
        self.enter()
        try:
            yield
        finally:
            self.leave(entered)
