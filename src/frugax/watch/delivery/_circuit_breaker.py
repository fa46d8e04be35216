"""Leaving a sink that fails alone for a while."""

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

State: TypeAlias = Literal["working", "resting", "on trial"]


class CircuitBreaker:
    """Says whether a sink may be tried.

    After `failures` in a row it rests; after `rest_s` one try is made, which decides.
    Known as a circuit breaker: working is closed, resting open, on trial half-open.

    Attributes:
        state: what it is now.
        rested: how often it began to rest.
        in_a_row: how many tries have failed since the last that went well.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        rest_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Say how patient it is.

        Raises:
            ValueError: `failures` is below 1, or `rest_s` below 0.
        """
        if failures < 1:
            raise ValueError(f"failures must be >= 1, got {failures}.")
        if not rest_s >= 0:
            raise ValueError(f"rest_s must be >= 0, got {rest_s}.")
        self.state: State = "working"
        self.rested = 0
        self._failures = failures
        self._rest_s = rest_s
        self._clock = clock
        self.in_a_row = 0
        self._until = 0.0

    @property
    def wait_s(self) -> float:
        """Seconds until the sink may be tried; 0 if it may now."""
        if self.state != "resting":
            return 0.0
        return max(0.0, self._until - self._clock())

    def begin(self) -> None:
        """A try begins."""
        if self.state == "resting":
            self.state = "on trial"

    def succeed(self) -> None:
        """The try went well."""
        self.state = "working"
        self.in_a_row = 0

    def fail(self) -> None:
        """The try failed."""
        self.in_a_row += 1
        if self.state == "on trial" or self.in_a_row >= self._failures:
            self.rest()

    def rest(self) -> None:
        """Rest at once, as after a try that never ended."""
        self.state = "resting"
        self.rested += 1
        self._until = self._clock() + self._rest_s

    def wake(self) -> None:
        """Allow one try now."""
        self._until = self._clock()
