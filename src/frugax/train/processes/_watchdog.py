"""`Watchdog`: end a process when training makes no progress, because a peer hangs.

A peer that was killed shows as an error in the next collective operation. A peer that
hangs in Python does not show at all: its heartbeat comes from a C++ thread. So the
progress of training itself is watched.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from ._exit import exit_now, is_peer_lost

_NUM_REMEMBERED = 500
# If the watching thread slept this much longer than intended, the whole process was
# suspended, and its peers may be well.
_SUSPENDED_S = 5.0
_active: list["Watchdog"] = []


@contextlib.contextmanager
def pause_watchdogs() -> Iterator[None]:
    """Give every active watchdog the patience for a compilation in this block."""
    with contextlib.ExitStack() as stack:
        for watchdog in _active:
            stack.enter_context(watchdog.phase("compilation"))
        yield


class Watchdog:
    """Ends the process with exit code 75 when training makes no progress.

    `fit` makes one in runs of several processes. In a loop of your own, use it as a
    context manager and call `beat` after each step that was waited for.

    Attributes:
        min_s: the least patience in seconds.
        factor: patience as a multiple of the slowest usual step (99th percentile).
        first_s: patience for a compilation and the step after it, during which peers
            may still be compiling, and for the first evaluation and checkpoint.

    Example:
        >>> with Watchdog(min_s=60) as watchdog:
        ...     for _ in range(3):
        ...         watchdog.beat()
        >>> watchdog.patience_s
        60
    """

    def __init__(
        self,
        *,
        min_s: float = 25.0,
        factor: float = 10.0,
        first_s: float = 1800.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, value in (("min_s", min_s), ("factor", factor), ("first_s", first_s)):
            if not value > 0:
                raise ValueError(f"{name} must be > 0, got {value}.")
        self.min_s, self.factor, self.first_s = min_s, factor, first_s
        self._clock = clock
        self._durations: dict[str, deque[float]] = {}
        self._phase = "step"
        self._since = clock()
        self._has_just_compiled = True
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def beat(self) -> None:
        """Record that a step is done."""
        self._record()
        self._has_just_compiled = False

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Watch an activity other than a step in this block, with its own patience.

        Args:
            name: name of the activity, such as `"evaluation"`.
        """
        before, self._phase = self._phase, name
        self._since = self._clock()
        self._has_just_compiled |= name == "compilation"
        yield
        self._record()
        self._phase = before

    def _record(self) -> None:
        now = self._clock()
        durations = self._durations.setdefault(
            self._phase, deque(maxlen=_NUM_REMEMBERED)
        )
        durations.append(now - self._since)
        self._since = now

    @property
    def patience_s(self) -> float:
        """Seconds that the current activity may take."""
        durations = sorted(self._durations.get(self._phase, ()))
        # Earlier compilations do not predict the duration of this one.
        is_first = self._has_just_compiled and self._phase in ("compilation", "step")
        if not durations or is_first:
            return self.first_s
        # The 99th percentile: one step delayed by the machine must not double the
        # patience.
        slowest = durations[min(len(durations) - 1, int(0.99 * len(durations)))]
        return max(self.min_s, self.factor * slowest)

    def __enter__(self) -> "Watchdog":
        if self._thread is not None:
            raise RuntimeError(
                "this watchdog is watching already: give it to fit, or use it in a "
                "with-block, not both."
            )
        self._durations.clear()
        self._phase, self._since = "step", self._clock()
        self._has_just_compiled = True
        self._stopped.clear()
        self._thread = threading.Thread(
            target=self._watch, name="frugax watchdog", daemon=True
        )
        self._thread.start()
        _active.append(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._stopped.set()
        self._thread = None
        _active.remove(self)
        if error is not None and is_peer_lost(error):
            exit_now(f"another process is gone ({str(error).splitlines()[0]:.200})")

    def _watch(self) -> None:
        while True:
            # A hang is noticed at most a tenth of the patience too late.
            nap_s = min(1.0, self.patience_s / 10)
            before = self._clock()
            if self._stopped.wait(nap_s):
                return
            now = self._clock()
            if now - before > nap_s + _SUSPENDED_S:
                # SIGSTOP, or a laptop that slept: the time did not pass for the peers'
                # messages.
                self._since += now - before
            silent_s, patience_s = now - self._since, self.patience_s
            if silent_s > patience_s:
                exit_now(
                    f"no {self._phase} was done for {silent_s:.0f} s, and at most "
                    f"{patience_s:.0f} s is usual: a process of this run hangs",
                    stacks=True,
                )
