"""Run the guide's callbacks on the host; their failures never stop the program.

A program that nobody collects from calls back from inside. An exception there would
end it, a function that waits would stop it, and an array that is kept would hold device
memory. So the function runs in a thread of its own on copies, is abandoned after an
agreed time, and its errors are counted.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from frugax.watch import current
from frugax.watch.delivery import (
    CircuitBreaker,
    Outcome,
    Runner,
    callback_stats,
    run_inline,
)
from frugax.watch.sinks import Kind

# A program may make up a new name at every call: the oldest pace is forgotten then.
_MAX_PACES = 1000
# The gate never gets rarer than this, so that it notices when the price has fallen.
_MAX_STRIDE = 1024
# Long for a callback that works, and short for a person whose program hangs.
_WAIT_S = 10.0
_REST_S = 30.0  # after a call that did not end

# One for the process: the limit on hanging calls must hold for all callbacks together.
runner = Runner()


class Gate:
    """Lets every `stride`-th call through, so that a call costs `max_s` on average.

    A call that cost more than `stride` calls may cost doubles the stride; one that cost
    less than a quarter of that halves it. In between the stride stays.

    Attributes:
        stride: calls between two that are let through.
    """

    def __init__(self, max_s: float) -> None:
        """Set the average price of a call, including calls that are turned away.

        Raises:
            ValueError: `max_s` is not positive.
        """
        if not max_s > 0:
            raise ValueError(f"max_s must be > 0, got {max_s}.")
        self.stride = 1
        self._max_s = max_s
        self._turn_away = 0  # how many of the next calls are turned away
        self._lock = threading.Lock()

    def is_due(self) -> bool:
        """Return whether this call is let through."""
        with self._lock:
            if self._turn_away > 0:
                self._turn_away -= 1
                return False
            self._turn_away = self.stride - 1
            return True

    def end(self, seconds: float) -> None:
        """Record the duration of a call that was let through."""
        with self._lock:
            # The factor of four between the two limits keeps the stride from
            # alternating between two values when the price is constant.
            if seconds > self.stride * self._max_s:
                # Doubling finds a stride of 1024 in ten calls that are let through.
                self.stride = min(2 * self.stride, _MAX_STRIDE)
            elif seconds < self.stride * self._max_s / 4:
                self.stride = max(self.stride // 2, 1)
            self._turn_away = self.stride - 1


class Pace:
    """Decides when a callback may run: not too often, and not while it hangs."""

    def __init__(self, max_avg_s: float | None, *, rest_s: float = _REST_S) -> None:
        self.gate = None if max_avg_s is None else Gate(max_avg_s)
        # One call that hangs is enough: each costs the program the whole wait.
        self._breaker = CircuitBreaker(failures=1, rest_s=rest_s)

    def is_due(self) -> bool:
        """Return whether this call may run."""
        if self._breaker.wait_s > 0:
            return False
        return self.gate is None or self.gate.is_due()

    def end(self, outcome: Outcome) -> None:
        """Record how a call that was allowed to run has ended."""
        if outcome.ended == "not started":
            return
        if self.gate is not None:
            self.gate.end(outcome.seconds)
        if outcome.ended == "hung":
            self._breaker.rest()
        else:
            self._breaker.succeed()


class Paces:
    """One `Pace` per name and limit, shared by all programs that use the name."""

    def __init__(self, *, rest_s: float = _REST_S) -> None:
        self._rest_s = rest_s
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, float | None], Pace] = OrderedDict()

    def of(self, name: str, max_avg_s: float | None) -> Pace:
        """Return the pace of a name; a new one for a new name."""
        with self._lock:
            # Made before it is known to be needed: `setdefault` keeps the first of two
            # threads.
            new = Pace(max_avg_s, rest_s=self._rest_s)
            pace = self._known.setdefault((name, max_avg_s), new)
            self._known.move_to_end((name, max_avg_s))
            if len(self._known) > _MAX_PACES:
                self._known.popitem(last=False)
            return pace


paces = Paces()


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HostCall:
    """Handle a probe's values on the host; a `frugax.watch.delivery.HostHandler`.

    Attributes:
        name: name in the statistics.
        act: the function that gets the values, as NumPy copies of its own.
        pace: decides whether a call may run.
        wait_s: seconds that the program waits for the function.
        monitor: whether durations are recorded; errors always are.
        kind: class of the record that it shows; None for a user's function.
        stream: stream under which a watcher files the record.
        fields: names of the values.
        is_display: whether it only shows values that a watcher's journal and sinks
            would show too.
    """

    name: str
    act: Callable[[Sequence[np.ndarray]], object]
    pace: Pace
    wait_s: float = _WAIT_S
    monitor: bool = True
    kind: Kind | None = None
    stream: str = ""
    fields: tuple[str, ...] = ()
    is_display: bool = False

    def handle_callback(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values inside a callback; the program waits until this returns."""
        watcher = current()
        # Only displays obey the level; a user's own function was asked for.
        off = self.is_display and watcher is not None and watcher.level == "off"
        if off or not self.pace.is_due():
            callback_stats.record_skip(self.name)
            return
        if watcher is not None and self.kind is not None:
            watcher.ingest_callback(
                self.kind, self.stream, dict(zip(self.fields, arrays, strict=False))
            )
            if self.is_display:
                self._record(Outcome("done", 0.0))
                return
        values = arrays[: len(self.fields)]
        self._record(runner.run(lambda: self.act(values), wait_s=self.wait_s))

    def handle_output(self, arrays: Sequence[np.ndarray]) -> None:
        """Handle values that have left the program as outputs, in this thread.

        Args:
            arrays: in the order of `fields`, followed by a mark of the lanes that
                recorded, where there is one.
        """
        if not self.pace.is_due():
            callback_stats.record_skip(self.name)
            return
        values = arrays[: len(self.fields)]
        # In this thread: the values have left the program, so nothing waits for the
        # function except its own worker, which is abandoned if it hangs.
        self._record(run_inline(lambda: self.act(values)))

    def __call__(self, *arrays: np.ndarray) -> None:
        """Handle values as `handle_output` does."""
        self.handle_output(arrays)

    def _record(self, outcome: Outcome) -> None:
        self.pace.end(outcome)
        if outcome.ended == "not started":
            callback_stats.record_skip(self.name)
        elif outcome.ended == "hung":
            callback_stats.record_hang(self.name, outcome.seconds)
        elif self.monitor or outcome.error:
            callback_stats.record(self.name, outcome.seconds, error=outcome.error)
