from . import (
    delivery as delivery,
    journal as journal,
    memory as memory,
    probes as probes,
    sinks as sinks,
)
from ._callbacks import (
    adaptive_visualization_callback as adaptive_visualization_callback,
    jax_debug_callback as jax_debug_callback,
    jax_log_episode_summary as jax_log_episode_summary,
    jax_log_grid as jax_log_grid,
    jax_save_step_visualization as jax_save_step_visualization,
)
from ._config import (
    Config as Config,
    load_config as load_config,
    register_with_hydra as register_with_hydra,
)
from ._entered import (
    current as current,
)
from ._flight import (
    FlightRecorder as FlightRecorder,
)
from ._jit import (
    jit as jit,
)
from ._plan import (
    WatchPlan as WatchPlan,
    plan as plan,
)
from ._price import (
    WatchPrices as WatchPrices,
    price as price,
)
from ._prove import (
    prove as prove,
)
from ._shown import (
    log_episode_summary as log_episode_summary,
)
from ._stats import (
    get_callback_performance_stats as get_callback_performance_stats,
    print_callback_performance_report as print_callback_performance_report,
    reset_callback_performance_stats as reset_callback_performance_stats,
)
from ._watcher import (
    Watcher as Watcher,
    default as default,
)
from .journal import (
    CompressedStorage as CompressedStorage,
    Follower as Follower,
    Journal as Journal,
    Lost as Lost,
    Records as Records,
    export as export,
    read as read,
)
from .memory import (
    GarbageCollectionOptimizer as GarbageCollectionOptimizer,
    LazyLoader as LazyLoader,
    MemoryManager as MemoryManager,
    MemoryUsageMonitor as MemoryUsageMonitor,
    VisualizationCache as VisualizationCache,
    create_lazy_visualization_loader as create_lazy_visualization_loader,
    get_memory_manager as get_memory_manager,
    optimize_array_memory as optimize_array_memory,
)
from .probes import (
    Last as Last,
    Partly as Partly,
    Probe as Probe,
    collect as collect,
    frame as frame,
    record as record,
    scan as scan,
    summarise as summarise,
)
from .sinks import (
    Event as Event,
    HtmlReport as HtmlReport,
    JsonLines as JsonLines,
    MLflow as MLflow,
    Rerun as Rerun,
    Sink as Sink,
    SvgFiles as SvgFiles,
    TensorBoard as TensorBoard,
    Terminal as Terminal,
    WandB as WandB,
    episode_svg as episode_svg,
    grid_svg as grid_svg,
    log_grid_to_console as log_grid_to_console,
    sheet_svg as sheet_svg,
    step_svg as step_svg,
)
