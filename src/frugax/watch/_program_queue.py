"""Dispatch the calls of a watched function to its programs with little Python per call.

A training step of 60 us leaves little of Python in the processor's caches, so each line
of Python around it is slow: a function that counts its calls and decides what to run
adds 3.8 us to a call of 65 us, and this queue 1.3 to 1.6 us (2026-11-23, two cores of
an AMD EPYC, turns of 20 ms in processor time). The interpreter itself takes the next
program and counts, because `__call__` is `property(next)`.
"""

import functools
import itertools
import operator
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ._current import changes, queues

# More than the caches of a core hold, in float64.
_EVICTING = 1 << 20
_TIMINGS = 64


class ProgramQueue:
    """A callable whose next calls run one program, and then `ask` at each call.

    Do not read `__call__` of an instance: that takes a program from the queue.
    """

    __slots__ = (
        "__dict__",
        "__next__",
        "__weakref__",
        "_ahead",
        "_ask",
        "_calls",
        "_length",
        "_lock",
    )

    __call__: Any = property(next)

    def __init__(self, fn: Callable[..., Any], ask: Callable[..., Any]) -> None:
        """Ask at each call until `run_until`."""
        self._ask = ask
        self._calls = self._length = 0
        self._ahead: Iterator[Any] = itertools.repeat(ask, 0)
        self._lock = threading.RLock()  # a handler of signals may `stop` as well
        self.__next__: Callable[[], Any] = itertools.repeat(ask).__next__
        functools.update_wrapper(self, fn)
        queues.add(self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        # A function in a class is a method of its instances.
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<watched {getattr(self, '__qualname__', 'function')}>"

    def abandon(self) -> None:
        """Have the next call ask, in a forked child in which the lock may be held."""
        self._lock = threading.RLock()
        self.stop()

    def count(self) -> int:
        """Count a call that asks; returns how many calls there were before it."""
        with self._lock:
            self._settle()
            self._calls += 1
            return self._calls - 1

    def uncount(self) -> None:
        """Take back `count`: the call was none of a step."""
        with self._lock:
            self._calls -= 1

    def run_until(
        self, last: int, make_program: Callable[[int], Any], *, seen: int
    ) -> None:
        """Run a program in all calls before number `last`, which asks.

        Args:
            last: the number of the call.
            make_program: returns the program, given the number of its first call.
            seen: `changes[0]` when the decision was begun: if something has changed
                since, the next call asks.
        """
        with self._lock:
            self._settle()
            self._length = max(last - self._calls, 0)
            if self._length:
                self._ahead = itertools.repeat(make_program(self._calls), self._length)
                asking = itertools.repeat(self._ask)
                self.__next__ = itertools.chain(self._ahead, asking).__next__
        if changes[0] != seen:
            self.stop()

    def stop(self) -> None:
        """Have the next call ask."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        # First, so that no other thread takes a program while they are counted.
        self.__next__ = itertools.repeat(self._ask).__next__
        self._calls += self._length - operator.length_hint(self._ahead)
        self._ahead, self._length = itertools.repeat(self._ask, 0), 0


@functools.cache
def queue_seconds() -> tuple[float, float]:
    """Measure the time that a queue adds to a call, with warm and with cold caches."""
    queue = ProgramQueue(abs, abs)
    queue.run_until(1 << 62, lambda _: abs, seen=changes[0])
    return _added_s(queue, 1), _added_s(queue, _EVICTING)


def _added_s(queue: ProgramQueue, evicting: int) -> float:
    memory = np.ones(evicting)
    added = []
    for i in range(_TIMINGS):
        taken = {}
        for fn in (queue, abs) if i % 2 else (abs, queue):
            memory.sum()
            started = time.perf_counter()
            fn(1)
            taken[fn] = time.perf_counter() - started
        added.append(taken[queue] - taken[abs])
    return max(float(np.median(added)), 0.0)
