"""Data that is loaded at its first use, and released when idle."""

import threading
import time
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from frugax.errors import InfeasibleBudgetError

from ._held_data import HeldData, Item

T = TypeVar("T")
_KEY = "data"  # of the only item


class LazyLoader(HeldData, Generic[T]):
    """Loads at the first `get`, keeps the result, releases it after a while unused.

    Releasing needs no call: a timer does it. Whoever still has the data keeps it; the
    loader's own hold on it ends, and the next `get` loads again.

    Safe to use from any thread: of several that ask at once one loads, the others
    wait for it.
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
        super().__init__()
        self.loader_func = loader_func
        self.max_idle_time = float(max_idle_time)
        # Not the lock of the data, so that others may release while one thread loads.
        # Reentrant, so that a loader that asks for its own data meets Python's
        # RecursionError and does not wait for itself.
        self._loading = threading.RLock()

    def get(self) -> T:
        """The data, loaded now if need be.

        Raises:
            InfeasibleBudgetError: it can never fit into its manager's limit.
        """
        with self._loading:
            item = self._use(_KEY) or self._load()
        return item.value

    def is_loaded(self) -> bool:
        """Whether the data is in memory now."""
        return bool(self._items)

    def release(self) -> bool:
        """Release the data now; returns whether there was any."""
        return self.remove(_KEY)

    def _load(self) -> Item:
        item = self._hold(_KEY, self.loader_func())
        self.check_fits(item.nbytes)
        # The timer of an earlier load starts itself anew; that of a parent process is
        # dead after a fork.
        if self._timer is None or not self._timer.is_alive():
            self._start_timer(self.max_idle_time)
        return item

    def check_fits(self, nbytes: int) -> None:
        """Release data that can never fit, and raise `InfeasibleBudgetError`."""
        if nbytes > self.limit_bytes:
            self.release()
            raise InfeasibleBudgetError(
                f"keeping what {self.loader_func!r} loads",
                needed=nbytes,
                limit=self.limit_bytes,
                unit="bytes",
                hint="load less at a time.",
            )

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
    with loader._loading:  # a `get` in between would trust this timer, which ends now
        loader._timer = None
        # Infinite where nothing is loaded.
        left_s = loader.oldest_use + loader.max_idle_time - time.monotonic()
        if left_s <= 0:
            loader.release()
        else:
            loader._start_timer(left_s)
