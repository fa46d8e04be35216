"""End a process whose peers are gone, soon and with an exit code that says so.

A peer that was killed shows as an error in the next collective operation, and leaving
in the ordinary way then waits for that peer. A peer that hangs in Python shows as
nothing at all: its heartbeat comes from a thread of C++. So the step itself is watched.
"""

import faulthandler
import os
import sys
import threading
import time
from collections import deque

import jax

# EX_TEMPFAIL of sysexits.h: worth another try.
EXIT_PEER_LOST = 75

_REMEMBERED = 500


class Watchdog:
    """Ends the process when a step takes far longer than steps do.

    Use it round the training loop and call `beat` after each step that was waited for.

    Attributes:
        least_s: never sooner than after so many seconds.
        factor: else after so many times the slowest usual step (99th percentile).
        first_s: for the first step, which compiles.

    Example:
        >>> with Watchdog(least_s=60) as dog:
        ...     for _ in range(3):
        ...         dog.beat()
    """

    def __init__(
        self, *, least_s: float = 30.0, factor: float = 10.0, first_s: float = 1800.0
    ) -> None:
        """Say how patient it is.

        Raises:
            ValueError: a number is not positive.
        """
        for name, value in (
            ("least_s", least_s),
            ("factor", factor),
            ("first_s", first_s),
        ):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        self.least_s, self.factor, self.first_s = least_s, factor, first_s
        self._steps: deque[float] = deque(maxlen=_REMEMBERED)
        self._last = time.monotonic()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """A step is done."""
        now = time.monotonic()
        self._steps.append(now - self._last)
        self._last = now

    @property
    def patience_s(self) -> float:
        """Seconds without a beat after which the process is ended."""
        usual = sorted(list(self._steps)[1:])  # the first one compiled
        if not usual:
            return self.first_s
        slowest = usual[min(len(usual) - 1, int(0.99 * len(usual)))]
        return max(self.least_s, self.factor * slowest)

    def __enter__(self) -> "Watchdog":
        self._last = time.monotonic()
        self._done.clear()
        self._thread = threading.Thread(
            target=self._watch, name="frugax watchdog", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._done.set()
        if error is not None and is_peer_lost(error):
            leave(f"a collective operation failed: {str(error).splitlines()[0]:.200}")

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self.patience_s / 10)):
            silent = time.monotonic() - self._last
            if silent > self.patience_s:
                leave(
                    f"no step was done for {silent:.0f} s, and steps take "
                    f"{max(self._steps, default=0.0):.3g} s at most: another process "
                    "hangs or is gone",
                    stacks=True,
                )


def is_peer_lost(error: BaseException) -> bool:
    """Whether an error says that another process is gone."""
    if not isinstance(error, jax.errors.JaxRuntimeError):
        return False
    said = str(error).lower()
    return any(
        words in said
        for words in (
            "connection closed by peer",
            "connection reset by peer",
            "gloo",
            "collective operation failed",
            "heartbeat",
            "coordination service",
        )
    )


def leave(why: str, *, stacks: bool = False) -> None:
    """End this process now, without waiting for peers at the door."""
    print(f"frugax: {why}. Leaving with exit code {EXIT_PEER_LOST}.", file=sys.stderr)  # noqa: T201 - the last words
    if stacks:
        faulthandler.dump_traceback(file=sys.stderr)
    sys.stderr.flush()
    os._exit(EXIT_PEER_LOST)
