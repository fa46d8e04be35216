"""A least-recently-used cache with a limit in bytes."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from ._sizes import BYTES_PER_MB, held_bytes, to_limit_bytes


class _Item(NamedTuple):
    value: Any
    nbytes: int
    used: float  # in seconds of `time.monotonic`


class VisualizationCache:
    """Keeps values by key, within a limit in bytes.

    Where there is no room, the least recently used items are evicted. Values are
    measured when they are put, and not copied: who changes an array that was put here
    changes the cache's. Safe to use from any thread.
    """

    def __init__(
        self,
        max_memory_mb: float = 100.0,
        *,
        on_growth: Callable[[], object] = lambda: None,
    ) -> None:
        """Start empty.

        Args:
            max_memory_mb: most to keep, in MB of 1,000,000 bytes; > 0.
            on_growth: called after each `put` that was kept.

        Raises:
            ValueError: the limit is not positive or not finite.
        """
        self._limit_bytes = to_limit_bytes("max_memory_mb", max_memory_mb)
        self._on_growth = on_growth
        # Reentrant, since values that are evicted may run code of their own.
        self._lock = threading.RLock()
        self._items: OrderedDict[str, _Item] = OrderedDict()  # oldest use first
        self._bytes = 0

    def put(self, key: str, value: Any) -> bool:
        """Keep a value, in place of any that has the same key.

        Returns:
            Whether it is kept; False for one that is larger than the limit.
        """
        nbytes = held_bytes(value)  # without the lock: a large value takes long
        with self._lock:
            self.remove(key)
            if nbytes > self._limit_bytes:
                return False
            self._items[key] = _Item(value, nbytes, time.monotonic())
            self._bytes += nbytes
            while self._bytes > self._limit_bytes:
                self.evict_oldest()
        self._on_growth()
        return True

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        with self._lock:
            item = self._items.get(key)
            if item is None:
                return default
            self._items[key] = item._replace(used=time.monotonic())
            self._items.move_to_end(key)
            return item.value

    def remove(self, key: str) -> bool:
        """Forget a key; returns whether there was one."""
        with self._lock:
            item = self._items.pop(key, None)
            self._bytes -= 0 if item is None else item.nbytes
            return item is not None

    def evict_oldest(self) -> bool:
        """Forget the least recently used item; returns whether there was one."""
        with self._lock:
            return bool(self._items) and self.remove(next(iter(self._items)))

    @property
    def nbytes(self) -> int:
        """Bytes of all items."""
        return self._bytes

    @property
    def oldest_use(self) -> float:
        """When the least recently used item was used, in `time.monotonic` seconds.

        Infinity if there is none.
        """
        with self._lock:
            return next((item.used for item in self._items.values()), math.inf)

    def get_stats(self) -> dict[str, float]:
        """Return `items_in_memory`, `memory_usage_mb` and `max_memory_mb`."""
        return {
            "items_in_memory": len(self._items),
            "memory_usage_mb": self._bytes / BYTES_PER_MB,
            "max_memory_mb": self._limit_bytes / BYTES_PER_MB,
        }

    def __contains__(self, key: str) -> bool:
        return key in self._items
