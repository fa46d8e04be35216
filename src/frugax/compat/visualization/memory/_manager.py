"""The memory of watching as a whole: a cache, lazy data and queues under one limit."""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ._cache import VisualizationCache
from ._garbage_collector import GarbageCollectionOptimizer
from ._held_bytes import BYTES_PER_MB
from ._lazy import LazyLoader
from ._ledger import ByteLedger

T = TypeVar("T")
# As in the guide; the deque bounds the memory of a run of any length.
_MOST_SAMPLES = 1000


class MemoryUsageMonitor:
    """Keeps the last 1000 samples and the highest ever. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[float] = deque(maxlen=_MOST_SAMPLES)
        self._peak = 0.0

    def record_memory_usage(self, memory_mb: float) -> None:
        """Add a sample.

        Args:
            memory_mb: memory in use, in MB; >= 0.

        Raises:
            ValueError: it is negative or no number.
        """
        if not memory_mb >= 0:
            raise ValueError(f"memory_mb must be >= 0, got {memory_mb}.")
        with self._lock:
            self._samples.append(memory_mb)
            self._peak = max(self._peak, memory_mb)

    def get_memory_stats(self) -> dict[str, float]:
        """Return statistics of the samples.

        Returns:
            `current_mb`, `peak_mb` (of all samples ever), `avg_mb` (of those kept), all
            0 before the first sample, and from then on `samples_count`, those kept.
        """
        with self._lock:
            samples, peak = list(self._samples), self._peak
        if not samples:
            return {"current_mb": 0.0, "peak_mb": 0.0, "avg_mb": 0.0}
        return {
            "current_mb": samples[-1],
            "peak_mb": peak,
            "avg_mb": sum(samples) / len(samples),
            "samples_count": len(samples),
        }

    def should_trigger_cleanup(self, threshold_mb: float = 500.0) -> bool:
        """Whether the last sample is above a threshold.

        Args:
            threshold_mb: in MB.
        """
        with self._lock:
            return bool(self._samples) and self._samples[-1] > threshold_mb


class MemoryManager:
    """Applies one memory limit to a cache, lazy loaders and queues.

    The limit covers the cache, the data of registered lazy loaders, and all accounts of
    the ledger. Where the limit is in the way, loaders release their data (the least
    recently used first), then items leave the cache (for `storage_path`, if there is
    one), then new data is refused.

    Leaving its `with` block releases everything. Safe to use from any thread.

    Attributes:
        cache: for pictures and the like, made once and looked at again.
        ledger: who holds how many bytes; give others an account here.
        monitor: memory over time.
        gc_optimizer: for those who want the garbage collector to run less often; not
            used unless asked.
    """

    def __init__(
        self,
        max_cache_memory_mb: float = 100.0,
        max_total_memory_mb: float = 500.0,
        storage_path: str | Path | None = None,
        *,
        lazy_loading: bool = True,
        compression: bool = True,
    ) -> None:
        """Start empty.

        Args:
            max_cache_memory_mb: most that the cache keeps, in MB of 1,000,000 bytes;
                > 0. May be above the total: the smaller limit rules.
            max_total_memory_mb: most that all keep together; > 0.
            storage_path: folder for what leaves the cache; without one it is dropped.
            lazy_loading: False: loaders load when they are registered.
            compression: whether files in `storage_path` are compressed.

        Raises:
            TypeError: a limit is not a number.
            ValueError: a limit is not positive or not finite.
        """
        for name, limit_mb in (
            ("max_cache_memory_mb", max_cache_memory_mb),
            ("max_total_memory_mb", max_total_memory_mb),
        ):
            if isinstance(limit_mb, bool) or not isinstance(limit_mb, int | float):
                raise TypeError(
                    f"{name} must be a number of MB, such as 100.0, got {limit_mb!r}."
                )
            if not 1 / BYTES_PER_MB <= limit_mb < float("inf"):
                raise ValueError(f"{name} must be > 0 and finite, got {limit_mb}.")
        self.monitor = MemoryUsageMonitor()
        self.gc_optimizer = GarbageCollectionOptimizer()
        self.ledger = ByteLedger(
            int(max_total_memory_mb * BYTES_PER_MB), on_change=self._record
        )
        self.cache = VisualizationCache(
            max_cache_memory_mb,
            storage_path=storage_path,
            compression=compression,
            account=self.ledger.account("cache"),
        )
        self._max_total_mb = float(max_total_memory_mb)
        self._lazy = lazy_loading
        self._loaders: weakref.WeakSet[LazyLoader[Any]] = weakref.WeakSet()
        self._lock = threading.Lock()  # of `_loaders`
        # The order decides who gives way: lazy data can be loaded again, and cached
        # items may be dropped for good.
        self.ledger.reclaim_with(self._let_loaders_go)
        self.ledger.reclaim_with(self.cache.let_go)

    def register_lazy_loader(self, loader: LazyLoader[Any]) -> None:
        """Count a loader's data, and release it where room is needed.

        Args:
            loader: kept alive by its user, not by the manager. Data loaded already that
                does not fit is let go.

        Raises:
            ValueError: it is registered with another manager.
            InfeasibleBudgetError: `lazy_loading` is off and its data does not fit.
        """
        loader.join(self.ledger.account("lazy data"))
        with self._lock:
            self._loaders.add(loader)
        if not self._lazy:
            loader.get()

    def check_memory_usage(self) -> float:
        """Measure all data again, which may have grown, and keep to the limit.

        Returns:
            MB kept now. Above the limit only if nothing is left to let go.
        """
        for loader in self._live_loaders():
            loader.recount()
        self.cache.recount()
        over = self.ledger.bytes - self.ledger.limit_bytes
        if over > 0:
            self.ledger.make_room(over)
        held = self.ledger.bytes
        self._record(held)
        return held / BYTES_PER_MB

    def cleanup_memory(self) -> dict[str, Any]:
        """Let go of all that can be: lazy data, then the cache; then collect garbage.

        Returns:
            `lazy_loaders_cleaned`; `cache_items_before` and `cache_items_after`, in
            memory; `gc_collected`, objects found unreachable; `freed_mb`.
        """
        before = self.ledger.bytes
        items = self.cache.get_stats()["items_in_memory"]
        cleaned = 0
        for loader in self._live_loaders():
            cleaned += loader.is_loaded()
            loader.let_go_for_room(wait=True)
        self.cache.let_go()
        collected = sum(self.gc_optimizer.force_cleanup().values())
        return {
            "lazy_loaders_cleaned": cleaned,
            "cache_items_before": items,
            "gc_collected": collected,
            "cache_items_after": self.cache.get_stats()["items_in_memory"],
            "freed_mb": (before - self.ledger.bytes) / BYTES_PER_MB,
        }

    def get_memory_report(self) -> dict[str, Any]:
        """Measure everything again and report.

        Returns:
            `monitor_stats` (see `MemoryUsageMonitor`; of the data kept here, not of
            the process), `cache_stats`, `gc_stats`, `active_lazy_loaders` (registered
            and in use), `loaded_lazy_loaders` (with data now), `max_total_memory_mb`,
            `held_mb` by account, `refusals`, `cleanup_errors` by loader, and
            `process_mb`, the resident memory of the whole process, None where the
            system does not say.
        """
        self.check_memory_usage()
        loaders = self._live_loaders()
        stats = self.monitor.get_memory_stats()
        stats["peak_mb"] = max(stats["peak_mb"], self.ledger.peak_bytes / BYTES_PER_MB)
        return {
            "monitor_stats": stats,
            "cache_stats": self.cache.get_stats(),
            "gc_stats": self.gc_optimizer.get_gc_stats(),
            "active_lazy_loaders": len(loaders),
            "loaded_lazy_loaders": sum(loader.is_loaded() for loader in loaders),
            "max_total_memory_mb": self._max_total_mb,
            "held_mb": {
                name: held / BYTES_PER_MB
                for name, held in self.ledger.by_account().items()
            },
            "refusals": self.ledger.refusals,
            "cleanup_errors": {
                loader.name: loader.cleanup_error
                for loader in loaders
                if loader.cleanup_error is not None
            },
            "process_mb": _process_mb(),
        }

    def close(self) -> None:
        """Let go of all, files of the cache included. It can be used again."""
        self.cleanup_memory()
        self.cache.clear()

    def __enter__(self) -> "MemoryManager":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _record(self, nbytes: int) -> None:
        self.monitor.record_memory_usage(nbytes / BYTES_PER_MB)

    def _live_loaders(self) -> list[LazyLoader[Any]]:
        with self._lock:
            return list(self._loaders)

    def _let_loaders_go(self, wanted_bytes: int) -> int:
        freed = 0
        for loader in sorted(self._live_loaders(), key=lambda it: it.last_used()):
            if freed >= wanted_bytes:
                break
            freed += loader.let_go_for_room()
        return freed


# Made on demand, so that importing the package allocates and starts nothing.
_default: MemoryManager | None = None
_default_lock = threading.Lock()


def get_memory_manager() -> MemoryManager:
    """The manager of this process, with the default limits; made when first asked for.

    Nothing but that is changed: the garbage collector stays as it is.
    """
    global _default
    with _default_lock:
        if _default is None:
            _default = MemoryManager()
        return _default


def create_lazy_visualization_loader(
    data_path: str | Path,
    loader_func: Callable[[Path], T],
    max_idle_time: float = 300.0,
    *,
    manager: MemoryManager | None = None,
) -> LazyLoader[T]:
    """A lazy loader of a file, registered with a manager.

    Args:
        data_path: given to `loader_func`; looked at only when the data is asked for.
        loader_func: reads the file.
        max_idle_time: seconds since the last `get` after which the data is let go; > 0.
        manager: whose limit counts; that of the process by default.

    Raises:
        TypeError: `loader_func` cannot be called.
        ValueError: `max_idle_time` is not positive.
    """
    if not callable(loader_func):
        raise TypeError(f"loader_func must be callable, got {loader_func!r}.")
    path = Path(data_path)
    loader = LazyLoader(
        lambda: loader_func(path), max_idle_time=max_idle_time, name=os.fspath(path)
    )
    (manager or get_memory_manager()).register_lazy_loader(loader)
    return loader


def _process_mb() -> float | None:
    try:
        # The second field is the resident set, in pages.
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None  # no Linux
    return pages * os.sysconf("SC_PAGE_SIZE") / BYTES_PER_MB
