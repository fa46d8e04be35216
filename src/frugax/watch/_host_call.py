"""The host's side of a callback: whatever it does, the program goes on.

A program that nobody collects from calls back from inside. An exception there would
end it, a function that waits would stop it, and a value kept would hold device memory.
So the function runs in a thread of its own on copies, is waited for no longer than
agreed, and what it raises is counted.
"""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ._entered import current
from ._rows import fields_of
from ._stats import STATS
from .delivery import Breaker, Gate, Interrupts, Outcome, Runner, error_text, outcome_of
from .probes import Probe, on_delivery
from .sinks import Kind

_RUNNER = Runner()
_INTERRUPTS = Interrupts()
# A name made anew in each call must not fill the memory.
_MOST_PACES = 1000
_WAIT_S = 10.0
_REST_S = 30.0  # after a call that did not end


class Pace:
    """When a callback may run: not too often for its price, not while it hangs."""

    def __init__(self, most_avg_s: float | None) -> None:
        self.gate = None if most_avg_s is None else Gate(most_avg_s)
        self._breaker = Breaker(failures=1, rest_s=_REST_S)

    def is_due(self) -> bool:
        """Whether this call may run."""
        if self._breaker.wait_s > 0:
            return False
        return self.gate is None or self.gate.is_due()

    def end(self, outcome: Outcome) -> None:
        """A call that was allowed has ended, or was given up."""
        if self.gate is not None and outcome.ended != "not started":
            self.gate.end(outcome.seconds)
        if outcome.ended == "hung":
            self._breaker.rest()
        elif outcome.ended != "not started":
            self._breaker.succeed()


class _Paces:
    """One `Pace` for a name and a limit, shared by all programs that use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, float | None], Pace] = OrderedDict()

    def of(self, name: str, most_avg_s: float | None) -> Pace:
        """The pace; a new one for a new name."""
        with self._lock:
            pace = self._known.setdefault((name, most_avg_s), Pace(most_avg_s))
            self._known.move_to_end((name, most_avg_s))
            if len(self._known) > _MOST_PACES:
                self._known.popitem(last=False)
            return pace


PACES = _Paces()


@dataclasses.dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class HostCall:
    """What is done on the host with the values of a probe.

    `answer` is for a program that calls back from inside, `act_on` for a watcher that
    collected the values. Two are equal only if they are the same.

    Attributes:
        name: in the statistics.
        act: is given the values, as own NumPy copies.
        pace: when it may run.
        wait_s: for how long the program waits for it.
        monitor: whether its times are kept; errors always are.
        kind: the class of what it shows, or None for a function of the user's.
        stream: where a watcher files what it shows.
        fields: the names of the values.
        is_display: it only shows what a watcher's journal and sinks would show too.
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

    def answer(self, arrays: Sequence[np.ndarray]) -> None:
        """A program called back from inside; it waits until this returns.

        Args:
            arrays: in the order of `fields`; the call's own.
        """
        watcher = current()
        off = self.is_display and watcher is not None and watcher.level == "off"
        if off or not self.pace.is_due():
            STATS.skip(self.name)
            return
        if watcher is not None and self.kind is not None:
            watcher.note(
                self.kind, self.stream, dict(zip(self.fields, arrays, strict=False))
            )
            if self.is_display:
                self._book(Outcome("done", 0.0))
                return
        given = arrays[: len(self.fields)]
        self._book(_RUNNER.run(lambda: self.act(given), wait_s=self.wait_s))

    def __call__(self, *arrays: np.ndarray) -> None:
        """As `act_on`."""
        self.act_on(arrays)

    def act_on(self, arrays: Sequence[np.ndarray]) -> None:
        """Do it with values that have left the program, in this thread.

        Args:
            arrays: in the order of `fields`, the call's own; after them, what says
                which of many lanes were made.
        """
        if not self.pace.is_due():
            STATS.skip(self.name)
            return
        given = arrays[: len(self.fields)]
        self._book(outcome_of(lambda: self.act(given)))

    def _book(self, outcome: Outcome) -> None:
        self.pace.end(outcome)
        if outcome.ended == "not started":
            STATS.skip(self.name)
        elif outcome.ended == "hung":
            STATS.hang(self.name, outcome.seconds)
        elif self.monitor or outcome.error:
            STATS.record(self.name, outcome.seconds, error=outcome.error)


def receive(probe: Probe, value: Any) -> None:
    """What a program that nobody collects from hands over, from inside.

    Nothing gets out but a second Ctrl-C.

    Args:
        probe: which.
        value: as `collect` gives records: NumPy arrays of its own.
    """
    call = probe.handler
    name = call.name if isinstance(call, HostCall) else probe.name
    with _INTERRUPTS:
        try:
            STATS.enter(name)
            values = fields_of(probe, value)
            if isinstance(call, HostCall):
                call.answer(list(values.values()))
            elif call is not None:
                outcome = _RUNNER.run(lambda: call(value), wait_s=_WAIT_S)
                STATS.record(name, outcome.seconds, error=outcome.error)
            elif probe.kind != "call" and (watcher := current()) is not None:
                watcher.note(probe.kind, probe.name, values)
        except Exception as e:  # it must not end the program, whatever it is
            STATS.record(name, 0.0, error=error_text(e))


on_delivery(receive)
