"""Decide when watching is affordable: a token bucket, and the pace of frames.

While the program runs, the budget's share of the time is earned. While the watcher
works, time is spent.
"""

import contextlib
from collections.abc import Callable, Iterator

# Price of a drain before the first one is timed, on the expensive side: a block of
# records of four metrics takes 0.7 ms of a CPU core (benchmarks/test_watch.py).
_INITIAL_PRICE_S = 1e-3
# A loop of frames is never thinned further, so that a price that falls is noticed.
_MAX_FRAME_STRIDE = 1024


class TokenBucket:
    """Seconds that the budget has earned and watching has spent.

    The time counts from the first call that has ended. `enter` and `leave` belong to
    one thread; `charge` may be called by another.

    Attributes:
        share: seconds earned per second outside of the watcher.
        clock: a monotonic clock in seconds.
        drain_price_s: seconds that the last drain took.
    """

    def __init__(
        self,
        share: float,
        clock: Callable[[], float],
        *,
        background_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start empty.

        Args:
            share: share of the time outside that may be spent; in [0, 1].
            clock: a monotonic clock in seconds.
            background_s: returns the seconds that other threads have spent so far.
        """
        self.share = share
        self.clock = clock
        self.drain_price_s = _INITIAL_PRICE_S
        self._background_s = background_s
        self._started: float | None = None
        self._last_exit = 0.0
        self._inside_s = 0.0
        self._depth = 0  # nested `enter` calls, such as a record inside `overhead`

    @property
    def spent_s(self) -> float:
        """Seconds spent so far, by other threads too."""
        return self._inside_s + self._background_s()

    def outside_s(self, now: float) -> float:
        """Return the seconds that had passed outside of the watcher at `now`."""
        if self._started is None:
            return 0.0
        return now - self._started - self._inside_s

    def balance_s(self, now: float) -> float:
        """Return the seconds earned and not spent at `now`; negative if overdrawn."""
        return self.share * self.outside_s(now) - self.spent_s

    def can_afford(self, seconds: float, now: float) -> bool:
        """Return whether these seconds can be spent beside the reserve.

        The reserve is the price of two drains: the next one, and the one at the end of
        the run, which happens whatever the balance is.
        """
        return self.balance_s(now) >= seconds + 2 * self.drain_price_s

    def spent_share(self, now: float | None = None) -> float | None:
        """Return the spent time as a share of the time outside.

        Args:
            now: end of the period; None for the end of the last call.

        Returns:
            The share; None before any time has passed.
        """
        outside_s = self.outside_s(self._last_exit if now is None else now)
        if outside_s <= 0:
            return None
        return self.spent_s / outside_s

    def start(self) -> None:
        """Start counting now, unless counting has started already."""
        if self._started is None:
            self._started = self.clock()

    def enter(self) -> None:
        """Mark the begin of work for watching; calls may nest."""
        self._depth += 1

    def leave(self, entered: float) -> None:
        """Mark the end of work that began at the time `entered`."""
        self._depth -= 1
        if self._depth:  # the outermost call counts the whole time, once
            return
        self._last_exit = self.clock()
        if self._started is None:
            self._started = entered
        self._inside_s += self._last_exit - entered

    def charge(self, seconds: float) -> None:
        """Count seconds that another thread has spent."""
        # Outside of `enter` and `leave`, whose depth belongs to one thread.
        self._inside_s += seconds

    @contextlib.contextmanager
    def overhead(self) -> Iterator[None]:
        """Count the time of this block as spent."""
        entered = self.clock()
        self.enter()
        try:
            yield
        finally:
            self.leave(entered)


class FramePacer:
    """Decides when a frame is due and affordable, from the prices of earlier frames.

    Attributes:
        stride: record every `stride`-th frame of a loop.
    """

    def __init__(self, bucket: TokenBucket, *, max_frames_per_s: float) -> None:
        """Start with every frame.

        Args:
            bucket: pays for the frames.
            max_frames_per_s: most frames per second; > 0.

        Raises:
            ValueError: `max_frames_per_s` is not positive.
        """
        if not max_frames_per_s > 0:
            raise ValueError(f"max_frames_per_s must be > 0, got {max_frames_per_s}.")
        self.stride = 1
        self._bucket = bucket
        self._min_gap_s = 1.0 / max_frames_per_s
        self._next_due = 0.0
        self._last_delivery = 0.0
        self._price_s = _INITIAL_PRICE_S

    def is_due(self, now: float) -> bool:
        """Return whether a frame is due and affordable."""
        return now >= self._next_due and self._bucket.can_afford(self._price_s, now)

    def accept(self, now: float) -> None:
        """Record that a frame has come, so that the next is not due at once."""
        self._next_due = now + self._min_gap_s

    def learn(self, frames: int, seconds: float, *, thin: bool) -> None:
        """Adapt to the price of frames that were delivered.

        Args:
            frames: how many were delivered.
            seconds: their price.
            thin: whether frames of a loop may be skipped.
        """
        now = self._bucket.clock()
        earned_s = self._bucket.share * (now - self._last_delivery)
        self._last_delivery = now
        # The last price, as for drains: a mean would follow a slower disk too late.
        self._price_s = seconds
        if frames > 1 and thin:
            # A gap of four between doubling and halving keeps a constant price from
            # flipping the stride at every delivery.
            if seconds > earned_s:
                self.stride = min(2 * self.stride, _MAX_FRAME_STRIDE)
            elif seconds < earned_s / 4:
                self.stride = max(self.stride // 2, 1)
