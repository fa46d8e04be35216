"""The visualization guide's names on top of `frugax.watch`.

Callbacks for use inside `jit`, a memory manager for pictures, compressed storage and
YAML configs. New code uses `frugax.watch` itself. Guide: docs/compat/visualization.md.
"""

# Drawing is the same in both packages, so these are passed on unwrapped.
from frugax.watch.drawing import grid_svg, log_grid_to_console

from ._arrays import optimize_array_memory
from ._cache import VisualizationCache
from ._callbacks import (
    adaptive_visualization_callback,
    jax_debug_callback,
    jax_log_episode_summary,
    jax_log_grid,
)
from ._config import (
    Config,
    DebugConfig,
    MemoryConfig,
    load_config,
    register_with_hydra,
)
from ._garbage_collection import optimize_garbage_collection
from ._lazy import LazyLoader
from ._memory import (
    MemoryManager,
    create_lazy_visualization_loader,
    get_memory_manager,
)
from ._performance import (
    get_callback_performance_stats,
    print_callback_performance_report,
    reset_callback_performance_stats,
)
from ._storage import CompressedStorage

__all__ = [
    "CompressedStorage",
    "Config",
    "DebugConfig",
    "LazyLoader",
    "MemoryConfig",
    "MemoryManager",
    "VisualizationCache",
    "adaptive_visualization_callback",
    "create_lazy_visualization_loader",
    "get_callback_performance_stats",
    "get_memory_manager",
    "grid_svg",
    "jax_debug_callback",
    "jax_log_episode_summary",
    "jax_log_grid",
    "load_config",
    "log_grid_to_console",
    "optimize_array_memory",
    "optimize_garbage_collection",
    "print_callback_performance_report",
    "register_with_hydra",
    "reset_callback_performance_stats",
]
