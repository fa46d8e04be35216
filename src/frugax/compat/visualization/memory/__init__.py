"""The guide's memory management: caches and lazy data in one ledger with a limit.

Start at `MemoryManager`: a cache, lazily loaded data and (if they ask for an account)
the queues of the sinks share its limit. `optimize_array_memory` makes arrays smaller
without changing a value. Nothing here is switched on for the whole process by itself.
"""

from ._arrays import optimize_array_memory
from ._cache import Store, VisualizationCache
from ._garbage_collector import GarbageCollectionOptimizer
from ._held_bytes import held_bytes
from ._idle_watch import IdleWatch, idle_watch
from ._lazy import LazyLoader
from ._ledger import Account, ByteLedger
from ._manager import (
    MemoryManager,
    MemoryUsageMonitor,
    create_lazy_visualization_loader,
    get_memory_manager,
)

__all__ = [
    "Account",
    "ByteLedger",
    "GarbageCollectionOptimizer",
    "IdleWatch",
    "LazyLoader",
    "MemoryManager",
    "MemoryUsageMonitor",
    "Store",
    "VisualizationCache",
    "create_lazy_visualization_loader",
    "get_memory_manager",
    "held_bytes",
    "idle_watch",
    "optimize_array_memory",
]
