from ._arrays import optimize_array_memory as optimize_array_memory
from ._cache import VisualizationCache as VisualizationCache
from ._callbacks import (
    adaptive_visualization_callback as adaptive_visualization_callback,
    grid_svg as grid_svg,
    jax_debug_callback as jax_debug_callback,
    jax_log_episode_summary as jax_log_episode_summary,
    jax_log_grid as jax_log_grid,
    log_grid_to_console as log_grid_to_console,
)
from ._config import (
    Config as Config,
    DebugConfig as DebugConfig,
    MemoryConfig as MemoryConfig,
    load_config as load_config,
    register_with_hydra as register_with_hydra,
)
from ._garbage_collection import (
    optimize_garbage_collection as optimize_garbage_collection,
)
from ._lazy import LazyLoader as LazyLoader
from ._memory import (
    MemoryManager as MemoryManager,
    create_lazy_visualization_loader as create_lazy_visualization_loader,
    get_memory_manager as get_memory_manager,
)
from ._performance import (
    get_callback_performance_stats as get_callback_performance_stats,
    print_callback_performance_report as print_callback_performance_report,
    reset_callback_performance_stats as reset_callback_performance_stats,
)
from ._storage import CompressedStorage as CompressedStorage
