"""Data by key within a limit in bytes: the base of the cache and of lazy loaders."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from ._sizes import held_bytes


class Item(NamedTuple):
    """One piece of data."""

    value: Any  # may be None, which is kept like any other
    nbytes: int
    used: float  # in seconds of `time.monotonic`


class HeldData:
    """Items within a limit; where there is no room, the least recently used go.

    Safe to use from any thread.

    Attributes:
        limit_bytes: most that is kept.
        on_growth: called after an item was added, as by a `MemoryManager`, which
            compares this with other data; None for nothing.
    """

    def __init__(self, limit_bytes: float = math.inf) -> None:
        self.limit_bytes = limit_bytes
        self.on_growth: Callable[[], object] | None = None
        # Reentrant, since values that are released may run code of their own.
        self._lock = threading.RLock()
        self._items: OrderedDict[str, Item] = OrderedDict()  # oldest use first
        self._bytes = 0

    def _hold(self, key: str, value: Any) -> Item:
        """Add an item in place of any of the same key; not if it can never fit."""
        nbytes = held_bytes(value)  # without the lock: a large value takes long
        item = Item(value, nbytes, time.monotonic())
        with self._lock:
            self.remove(key)
            if nbytes > self.limit_bytes:
                return item
            self._items[key] = item
            self._bytes += nbytes
            while self._bytes > self.limit_bytes:
                self.release_oldest()
        if self.on_growth is not None:
            self.on_growth()
        return item

    def _use(self, key: str) -> Item | None:
        with self._lock:
            item = self._items.get(key)
            if item is not None:
                self._items[key] = item._replace(used=time.monotonic())
                self._items.move_to_end(key)
            return item

    def remove(self, key: str) -> bool:
        """Forget a key; returns whether there was one."""
        with self._lock:
            item = self._items.pop(key, None)
            self._bytes -= 0 if item is None else item.nbytes
            return item is not None

    def release_oldest(self) -> bool:
        """Forget the least recently used item; returns whether there was one."""
        with self._lock:
            return bool(self._items) and self.remove(next(iter(self._items)))

    @property
    def nbytes(self) -> int:
        """Bytes of all items, as they were when they were added."""
        return self._bytes

    @property
    def oldest_use(self) -> float:
        """When the least recently used item was used, in `time.monotonic` seconds.

        Infinity if there is none.
        """
        with self._lock:
            return next((item.used for item in self._items.values()), math.inf)
