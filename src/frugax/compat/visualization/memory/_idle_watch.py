"""One thread that releases items which were not used for a while.

It starts with the first thing to look after and ends when there is none left.
"""

import os
import threading
import time
import weakref
from typing import Protocol, runtime_checkable

# Not to be woken for each of many that fall idle one after the other.
_SHORTEST_NAP_S = 0.01


@runtime_checkable
class Idler(Protocol):
    """Something that can be let go of."""

    def idle_at(self) -> float | None:
        """When it will have been idle for long enough; None if it holds nothing.

        Returns:
            Seconds of `time.monotonic`.
        """
        ...

    def let_go_if_idle(self) -> None:
        """Let go, if that time has come."""
        ...


class IdleWatch:
    """Looks after any number of idlers, without keeping them alive."""

    def __init__(self) -> None:
        self._wake = threading.Condition()
        # Weak: a loader that is thrown away must be freed at once, with its data.
        self._idlers: weakref.WeakSet[Idler] = weakref.WeakSet()
        self._thread: threading.Thread | None = None
        self._next = 0.0  # when the thread will look again

    def add(self, idler: Idler) -> None:
        """Look after this from now on, until it holds nothing.

        Args:
            idler: hashable, and open to weak references.
        """
        at = idler.idle_at()
        if at is None:
            return
        with self._wake:
            self._idlers.add(idler)
            if self._thread is None or not self._thread.is_alive():
                self._next = at
                self._thread = threading.Thread(
                    target=self._run, name="frugax-idle", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter is leaving, and all data with it
                    self._thread = None
            # Otherwise the thread wakes early enough by itself.
            elif at < self._next:
                self._wake.notify()

    def _run(self) -> None:
        while True:
            self._look()
            with self._wake:
                at = self._soonest()
                if at is None:
                    self._thread = None
                    return
                self._next = at
                self._wake.wait(max(at - time.monotonic(), _SHORTEST_NAP_S))

    # In functions of their own: a loop variable of `_run` would keep an idler alive.
    def _look(self) -> None:
        with self._wake:  # one that is added meanwhile would break the loop
            idlers = list(self._idlers)
        for idler in idlers:
            idler.let_go_if_idle()

    def _soonest(self) -> float | None:
        """When the next of them falls idle. The lock is held."""
        soonest: float | None = None
        for idler in list(self._idlers):
            at = idler.idle_at()
            if at is None:
                self._idlers.discard(idler)
            elif soonest is None or at < soonest:
                soonest = at
        return soonest


_watch = IdleWatch()
_process = os.getpid()


def idle_watch() -> IdleWatch:
    """The one of this process."""
    global _watch, _process
    if os.getpid() != _process:  # a fork has the memory of the thread, not the thread
        _watch, _process = IdleWatch(), os.getpid()
    return _watch
