"""Run the guide's callbacks on the host; their failures never stop the program.

A program that nobody collects from calls back from inside. An exception there would
end it, a function that waits would stop it, and an array that is kept would hold device
memory. So the function runs in a thread of its own on copies, is abandoned after an
agreed time, and its errors are counted.
"""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from frugax.watch import current
from frugax.watch.delivery import Outcome, Runner, callback_stats, run_inline
from frugax.watch.sinks import Kind

# Long for a callback that works, and short for a person whose program hangs.
WAIT_S = 10.0
REST_S = 30.0  # after a call that did not end
# Calls never get rarer than this, so that a price that has fallen is noticed.
_MAX_STRIDE = 1024

# One for the process: the limit on hanging calls must hold for all callbacks together.
runner = Runner()


class Pace:
    """Decides when the calls of a name may run: not too often, not while one hangs.

    Of adaptive calls every `stride`-th may run. One that took longer than `stride`
    calls may take doubles the stride; one that took less than a quarter of that halves
    it. In between the stride stays.

    Attributes:
        stride: calls between two that may run.
    """

    def __init__(self) -> None:
        self.stride = 1
        self._turn_away = 0  # how many of the next calls may not run
        self._rests_until = 0.0
        self._lock = threading.Lock()

    def is_due(self, max_avg_s: float | None) -> bool:
        """Return whether this call may run.

        Args:
            max_avg_s: seconds that a call may take on average, calls that may not run
                included; None for a call that is not adaptive.
        """
        with self._lock:
            if time.monotonic() < self._rests_until:
                return False
            if max_avg_s is None:
                return True
            if self._turn_away > 0:
                self._turn_away -= 1
                return False
            self._turn_away = self.stride - 1
            return True

    def end(self, outcome: Outcome, max_avg_s: float | None) -> None:
        """Record how a call that was allowed to run has ended."""
        with self._lock:
            # One call that hangs is enough: each costs the program the whole wait.
            if outcome.ended == "hung":
                self._rests_until = time.monotonic() + REST_S
            if max_avg_s is None or outcome.ended == "not started":
                return
            # The factor of four between the two limits keeps the stride from
            # alternating between two values when the price is constant.
            if outcome.seconds > self.stride * max_avg_s:
                # Doubling finds a stride of 1024 in ten calls that run.
                self.stride = min(2 * self.stride, _MAX_STRIDE)
            elif outcome.seconds < self.stride * max_avg_s / 4:
                self.stride = max(self.stride // 2, 1)
            self._turn_away = self.stride - 1


# Limited, since a program may make up a new name at every call.
@functools.lru_cache(maxsize=1000)
def pace_of(name: str) -> Pace:
    """Return the pace of a name; a function that is traced again keeps what it had."""
    return Pace()


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HostCall:
    """Handle a probe's values on the host; a `frugax.watch.delivery.HostHandler`.

    Attributes:
        name: name in the statistics.
        act: the function that gets the values, as NumPy copies of its own.
        max_avg_s: seconds that a call may take on average; None for any.
        kind: class of the record that it shows; None for a user's function.
        stream: stream under which a watcher files the record.
        fields: names of the values.
    """

    name: str
    act: Callable[[Sequence[np.ndarray]], object]
    max_avg_s: float | None = None
    kind: Kind | None = None
    stream: str
    fields: tuple[str, ...]

    @property
    def is_display(self) -> bool:
        """Whether it only shows what a watcher's journal and sinks would show too."""
        return self.kind is not None

    def handle_callback(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values inside a callback; the program waits until this returns."""
        watcher = current()
        if self.kind is None or watcher is None:
            self._call(lambda call: runner.run(call, wait_s=WAIT_S), arrays)
        elif watcher.level == "off":
            callback_stats.record_skip(self.name)
        else:
            values = dict(zip(self.fields, arrays, strict=False))
            watcher.ingest_callback(self.kind, self.stream, values)
            callback_stats.record(self.name, 0.0)

    def handle_output(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values that have left the program as outputs, in this thread.

        Args:
            arrays: in the order of `fields`, followed by a mark of the lanes that
                recorded, where there is one.
        """
        # In this thread: nothing waits for the function except its own worker, which
        # is abandoned if it hangs.
        self._call(run_inline, arrays)

    def __call__(self, *arrays: np.ndarray) -> None:
        """Handle values as `handle_output` does."""
        self.handle_output(arrays)

    def _call(
        self,
        run: Callable[[Callable[[], object]], Outcome],
        arrays: Sequence[np.ndarray],
    ) -> None:
        pace = pace_of(self.name)
        outcome = Outcome("not started", 0.0)
        if pace.is_due(self.max_avg_s):
            values = arrays[: len(self.fields)]
            outcome = run(lambda: self.act(values))
            pace.end(outcome, self.max_avg_s)
        if outcome.ended == "not started":
            callback_stats.record_skip(self.name)
        elif outcome.ended == "hung":
            callback_stats.record_hang(self.name, outcome.seconds)
        else:
            callback_stats.record(self.name, outcome.seconds, error=outcome.error)
