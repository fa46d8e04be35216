"""What watching keeps in memory, counted in one ledger and held to a limit.

Start at `MemoryManager`: a cache, lazily loaded data and (if they ask for an account)
the queues of the sinks share its limit. `optimize_array_memory` makes arrays smaller
without changing a value. Nothing here is switched on for the whole process by itself.
"""

from ._arrays import optimize_array_memory
from ._cache import VisualizationCache
from ._collector import GarbageCollectionOptimizer
from ._lazy import LazyLoader
from ._ledger import Account, ByteLedger
from ._memory import (
    MemoryManager,
    create_lazy_visualization_loader,
    get_memory_manager,
)
from ._monitor import MemoryUsageMonitor
from ._size import held_bytes
from ._store import Store

__all__ = [
    "Account",
    "ByteLedger",
    "GarbageCollectionOptimizer",
    "LazyLoader",
    "MemoryManager",
    "MemoryUsageMonitor",
    "Store",
    "VisualizationCache",
    "create_lazy_visualization_loader",
    "get_memory_manager",
    "held_bytes",
    "optimize_array_memory",
]
