"""End a process whose peers hang, for nobody else notices.

A peer that was killed shows as an error in the next collective operation. A peer that
hangs in Python shows as nothing at all: its heartbeat comes from a thread of C++. So
the progress of training itself is watched.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator

from ._leaving import is_peer_lost, leave, why_lost

_REMEMBERED = 500
# A watching thread that slept this much longer than it meant to was itself stopped.
_STALL_S = 5.0
_watching: list["Watchdog"] = []


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """In this block a step is compiled: no watchdog of this process minds."""
    with contextlib.ExitStack() as stack:
        for dog in _watching:
            stack.enter_context(dog.during("compilation"))
        yield


class Watchdog:
    """Ends the process, with exit code 75, when training makes no progress.

    `fit` has one of its own in runs of several processes. In a loop of your own, use
    it as a context and call `beat` after each step that was waited for.

    Attributes:
        least_s: never sooner than after so many seconds.
        factor: else after so many times the slowest usual step (99th percentile).
        first_s: for a compilation and the step after it, in which the others may still
            be compiling, and for the first evaluation and checkpoint.

    Example:
        >>> with Watchdog(least_s=60) as dog:
        ...     for _ in range(3):
        ...         dog.beat()
        >>> dog.patience_s
        60
    """

    def __init__(
        self, *, least_s: float = 25.0, factor: float = 10.0, first_s: float = 1800.0
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
        self._took: dict[str, deque[float]] = {}
        self._doing = "step"
        self._since = time.monotonic()
        self._compiled = True
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """A step is done."""
        self._note()
        self._compiled = False

    @contextlib.contextmanager
    def during(self, kind: str) -> Iterator[None]:
        """In this block something else than a step is done.

        It has a patience of its own, as an evaluation may take longer than a step.

        Args:
            kind: its name.
        """
        before, self._doing = self._doing, kind
        self._since = time.monotonic()
        self._compiled |= kind == "compilation"
        yield
        self._note()
        self._doing = before

    def _note(self) -> None:
        now = time.monotonic()
        took = self._took.setdefault(self._doing, deque(maxlen=_REMEMBERED))
        took.append(now - self._since)
        self._since = now

    @property
    def patience_s(self) -> float:
        """Seconds that what is being done now may take."""
        took = sorted(self._took.get(self._doing, ()))
        # How long this compilation takes the earlier ones do not say.
        if not took or (self._compiled and self._doing in ("compilation", "step")):
            return self.first_s
        slowest = took[min(len(took) - 1, int(0.99 * len(took)))]
        return max(self.least_s, self.factor * slowest)

    def __enter__(self) -> "Watchdog":
        if self._thread is not None:
            raise RuntimeError(
                "this watchdog is watching already: give it to fit, or use it in a "
                "with-block, not both."
            )
        self._took.clear()
        self._doing, self._since, self._compiled = "step", time.monotonic(), True
        self._done.clear()
        self._thread = threading.Thread(
            target=self._watch, name="frugax watchdog", daemon=True
        )
        self._thread.start()
        _watching.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._done.set()
        self._thread = None
        _watching.remove(self)
        if error is not None and is_peer_lost(error):
            leave(why_lost(error))

    def _watch(self) -> None:
        while True:
            nap_s = min(1.0, self.patience_s / 10)
            before = time.monotonic()
            if self._done.wait(nap_s):
                return
            now = time.monotonic()
            if now - before > nap_s + _STALL_S:
                # This process was stopped and goes on: the others may be well.
                self._since += now - before
            silent, patience_s = now - self._since, self.patience_s
            if silent > patience_s:
                leave(
                    f"no {self._doing} was done for {silent:.0f} s, and at most "
                    f"{patience_s:.0f} s is usual: a process of this run hangs",
                    stacks=True,
                )
