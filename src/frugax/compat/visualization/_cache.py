"""A least-recently-used cache with a limit in bytes."""

from typing import Any

from ._held_data import HeldData
from ._sizes import BYTES_PER_MB, to_limit_bytes


class VisualizationCache(HeldData):
    """Keeps values by key, within a limit in bytes.

    Where there is no room, the least recently used items are evicted. Values are
    measured when they are put, and not copied: who changes an array that was put here
    changes the cache's. Safe to use from any thread.
    """

    def __init__(self, max_memory_mb: float = 100.0) -> None:
        """Start empty.

        Args:
            max_memory_mb: most to keep, in MB of 1,000,000 bytes; > 0.

        Raises:
            ValueError: the limit is not positive or not finite.
        """
        super().__init__(to_limit_bytes("max_memory_mb", max_memory_mb))

    def put(self, key: str, value: Any) -> bool:
        """Keep a value, in place of any that has the same key.

        Returns:
            Whether it is kept; False for one that is larger than the limit.
        """
        return self._hold(key, value).nbytes <= self.limit_bytes

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        item = self._use(key)
        return default if item is None else item.value

    def get_stats(self) -> dict[str, float]:
        """Return `items_in_memory`, `memory_usage_mb` and `max_memory_mb`."""
        return {
            "items_in_memory": len(self._items),
            "memory_usage_mb": self._bytes / BYTES_PER_MB,
            "max_memory_mb": self.limit_bytes / BYTES_PER_MB,
        }

    def __contains__(self, key: str) -> bool:
        return key in self._items
