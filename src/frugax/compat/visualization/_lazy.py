"""Data that is loaded at its first use, and released when idle."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from ._sizes import held_bytes

T = TypeVar("T")


class _Loaded(NamedTuple, Generic[T]):
    data: T  # may be None, which is kept like any other result
    nbytes: int


class LazyLoader(Generic[T]):
    """Loads at the first `get`, keeps the result, releases it after a while unused.

    Releasing needs no call: a timer does it. Whoever still has the data keeps it; the
    loader's own hold on it ends, and the next `get` loads again.

    Safe to use from any thread: of several that ask at once one loads, the others
    wait for it.

    Attributes:
        on_load: called with the loader after each load; may refuse the data by
            releasing it and raising. `MemoryManager.register_lazy_loader` sets it.
        last_used: when `get` last gave the data out, in seconds of `time.monotonic`.
    """

    _timer: threading.Timer | None = None

    def __init__(
        self, loader_func: Callable[[], T], max_idle_time: float = 300.0
    ) -> None:
        """Load nothing yet.

        Args:
            loader_func: loads the data.
            max_idle_time: seconds since the last `get` after which the data is
                released; > 0, infinity for never.

        Raises:
            ValueError: `max_idle_time` is not positive.
        """
        if not max_idle_time > 0:
            raise ValueError(
                f"max_idle_time must be > 0 seconds, got {max_idle_time}; math.inf "
                "keeps the data until release()."
            )
        self.loader_func = loader_func
        self.max_idle_time = float(max_idle_time)
        self.on_load: Callable[[LazyLoader[Any]], object] | None = None
        self.last_used = 0.0
        # Reentrant, so that a loader that asks for its own data meets Python's
        # RecursionError and does not wait for itself.
        self._lock = threading.RLock()
        # Replaced as a whole, so that reading and releasing need no lock: others may
        # release while one thread loads.
        self._loaded: _Loaded[T] | None = None

    def get(self) -> T:
        """The data, loaded now if need be.

        Raises:
            InfeasibleBudgetError: it can never fit into its manager's limit.
        """
        with self._lock:
            self.last_used = time.monotonic()
            loaded = self._loaded
            if loaded is None:
                loaded = self._load()
        return loaded.data

    def is_loaded(self) -> bool:
        """Whether the data is in memory now."""
        return self._loaded is not None

    def release(self) -> bool:
        """Release the data now; returns whether there was any."""
        loaded, self._loaded = self._loaded, None
        return loaded is not None

    @property
    def nbytes(self) -> int:
        """Bytes of the data when it was loaded; 0 while there is none."""
        loaded = self._loaded
        return 0 if loaded is None else loaded.nbytes

    def _load(self) -> "_Loaded[T]":
        data = self.loader_func()
        self._loaded = loaded = _Loaded(data, held_bytes(data))
        self.last_used = time.monotonic()
        if self.on_load is not None:
            self.on_load(self)
        # The timer of an earlier load starts itself anew; that of a parent process is
        # dead after a fork.
        if self._timer is None or not self._timer.is_alive():
            self._start_timer(self.max_idle_time)
        return loaded

    def _start_timer(self, seconds: float) -> None:
        if seconds > threading.TIMEOUT_MAX:  # infinity among others
            return
        # Weak, or the timer would keep a loader that was thrown away, and its data.
        timer = threading.Timer(seconds, _release_if_idle, [weakref.ref(self)])
        timer.daemon = True
        timer.start()
        self._timer = timer

    def __del__(self) -> None:
        # Not from the timer's own thread, which may hold the timer's lock right now.
        if self._timer is not None and self._timer is not threading.current_thread():
            self._timer.cancel()


def _release_if_idle(weak: "weakref.ref[LazyLoader[object]]") -> None:
    loader = weak()
    if loader is None:
        return
    with loader._lock:  # a `get` in between would trust this timer, which ends now
        loader._timer = None
        idle_s = time.monotonic() - loader.last_used
        if idle_s >= loader.max_idle_time:
            loader.release()
        elif loader.is_loaded():
            loader._start_timer(loader.max_idle_time - idle_s)
