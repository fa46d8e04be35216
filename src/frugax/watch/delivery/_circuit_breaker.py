"""A circuit breaker: stop trying a sink that keeps failing, and try again later."""

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

State: TypeAlias = Literal["working", "resting", "on trial"]


class CircuitBreaker:
    """Decides whether a sink may be tried (Nygard, Release It!, 2007).

    After `failures` in a row the sink rests. After `rest_s` one trial decides whether
    it works again. In the pattern's words, "working" is closed, "resting" is open and
    "on trial" is half-open.

    Attributes:
        state: the current state.
        rested: how often a rest has begun.
        in_a_row: failures since the last success.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        rest_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start in the state "working"."""
        if failures < 1:
            raise ValueError(f"failures must be >= 1, got {failures}.")
        if not rest_s >= 0:
            raise ValueError(f"rest_s must be >= 0, got {rest_s}.")
        self.state: State = "working"
        self.rested = 0
        self.in_a_row = 0
        self._failures = failures
        self._rest_s = rest_s
        self._clock = clock
        self._rests_until = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the sink may be tried; 0 if it may be tried now."""
        if self.state != "resting":
            return 0.0
        return max(0.0, self._rests_until - self._clock())

    def begin(self) -> None:
        """Record that a try begins; after a rest it is the trial."""
        if self.state == "resting":
            self.state = "on trial"

    def succeed(self) -> None:
        """Record that a try succeeded."""
        self.state = "working"
        self.in_a_row = 0

    def fail(self) -> None:
        """Record that a try failed."""
        self.in_a_row += 1
        # One failure is enough on trial: the sink has not recovered.
        if self.state == "on trial" or self.in_a_row >= self._failures:
            self.state = "resting"
            self.rested += 1
            # Monotonic: a corrected wall clock could extend a rest by hours.
            self._rests_until = self._clock() + self._rest_s

    def wake(self) -> None:
        """End a rest early, so that one trial is allowed now."""
        self._rests_until = self._clock()
