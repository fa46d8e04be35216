"""The memory of watching as a whole: a cache and lazy data under one limit."""

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ._cache import VisualizationCache
from ._held_data import HeldData
from ._lazy import LazyLoader
from ._sizes import BYTES_PER_MB, to_limit_bytes

T = TypeVar("T")


class MemoryManager:
    """Applies one memory limit to a cache and to lazy loaders.

    Where the limit is in the way, the least recently used data is released: that of a
    loader, which can load it again, or an item of the cache. Data that can never fit is
    refused.

    Leaving its `with` block releases everything. Safe to use from any thread.

    Attributes:
        cache: for pictures and the like, made once and looked at again.
    """

    def __init__(
        self,
        max_cache_memory_mb: float = 100.0,
        max_total_memory_mb: float = 500.0,
        *,
        lazy_loading: bool = True,
    ) -> None:
        """Start empty.

        Args:
            max_cache_memory_mb: most that the cache keeps, in MB of 1,000,000 bytes;
                > 0. May be above the total: the smaller limit rules.
            max_total_memory_mb: most that all keep together; > 0.
            lazy_loading: False: loaders load when they are registered.

        Raises:
            ValueError: a limit is not positive or not finite.
        """
        to_limit_bytes("max_cache_memory_mb", max_cache_memory_mb)
        self._limit_bytes = to_limit_bytes("max_total_memory_mb", max_total_memory_mb)
        self.cache = VisualizationCache(min(max_cache_memory_mb, max_total_memory_mb))
        self.cache.on_growth = self._make_room
        self._is_lazy = lazy_loading
        self._loaders: weakref.WeakSet[LazyLoader[Any]] = weakref.WeakSet()
        # Reentrant, since data that is released may run code of its own.
        self._lock = threading.RLock()

    def register_lazy_loader(self, loader: LazyLoader[Any]) -> None:
        """Count a loader's data, and release it where room is needed.

        Args:
            loader: kept alive by its user, not by the manager.

        Raises:
            InfeasibleBudgetError: its data is loaded already, or `lazy_loading` is off,
                and can never fit.
            ValueError: it is registered with another manager.
        """
        if loader.on_growth not in (None, self._make_room):
            raise ValueError(
                f"the loader of {loader.loader_func!r} is registered with another "
                "manager: make a loader for each."
            )
        loader.limit_bytes, loader.on_growth = self._limit_bytes, self._make_room
        loader.check_fits(loader.nbytes)
        with self._lock:
            self._loaders.add(loader)
        self._make_room()
        if not self._is_lazy:
            loader.get()

    def cleanup_memory(self) -> dict[str, Any]:
        """Release all lazy data and evict all of the cache; then collect garbage.

        Returns:
            `lazy_loaders_cleaned`; `cache_items_cleaned`, which left the memory;
            `gc_collected`, objects found unreachable; `freed_mb`.
        """
        with self._lock:
            before = self._held_bytes()
            cleaned = sum(loader.release() for loader in list(self._loaders))
            evicted = 0
            while self.cache.release_oldest():
                evicted += 1
            freed = before - self._held_bytes()
        return {
            "lazy_loaders_cleaned": cleaned,
            "cache_items_cleaned": evicted,
            "gc_collected": gc.collect(),
            "freed_mb": freed / BYTES_PER_MB,
        }

    def get_memory_report(self) -> dict[str, Any]:
        """Report the data kept here; the process as a whole holds more.

        Returns:
            `monitor_stats` with `current_mb` and `limit_mb`; `cache_stats`;
            `active_lazy_loaders` (registered and in use) and `loaded_lazy_loaders`
            (with data now).
        """
        with self._lock:
            loaders = list(self._loaders)
            return {
                "monitor_stats": {
                    "current_mb": self._held_bytes() / BYTES_PER_MB,
                    "limit_mb": self._limit_bytes / BYTES_PER_MB,
                },
                "cache_stats": self.cache.get_stats(),
                "active_lazy_loaders": len(loaders),
                "loaded_lazy_loaders": sum(loader.is_loaded() for loader in loaders),
            }

    def __enter__(self) -> "MemoryManager":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cleanup_memory()

    def _make_room(self) -> None:
        with self._lock:
            while self._held_bytes() > self._limit_bytes:
                min(self._parts(), key=lambda part: part.oldest_use).release_oldest()

    def _held_bytes(self) -> int:
        return sum(part.nbytes for part in self._parts())

    def _parts(self) -> list[HeldData]:
        return [self.cache, *self._loaders]


_default = MemoryManager()


def get_memory_manager() -> MemoryManager:
    """The manager of this process, with the default limits."""
    return _default


def create_lazy_visualization_loader(
    data_path: str | Path,
    loader_func: Callable[[Path], T],
    max_idle_time: float = 300.0,
) -> LazyLoader[T]:
    """A lazy loader of a file, registered with the manager of this process.

    Args:
        data_path: given to `loader_func`; looked at only when the data is asked for.
        loader_func: reads the file.
        max_idle_time: seconds since the last `get` after which the data is released;
            > 0.

    Raises:
        TypeError: `loader_func` cannot be called.
        ValueError: `max_idle_time` is not positive.
    """
    read = functools.partial(loader_func, Path(data_path))
    loader = LazyLoader(read, max_idle_time)
    _default.register_lazy_loader(loader)
    return loader
