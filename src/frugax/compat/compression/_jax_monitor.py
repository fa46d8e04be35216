"""What JAX spent on an operation: compiling, programs that were there, memory."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

from ._jax_pool import JaxMemoryPool
from ._jax_programs import JaxCompilationOptimizer
from ._monitor import MonitorConfig, UnifiedPerformanceMonitor

# Python's part, the translation, and XLA's part of one compilation.
_COMPILING = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
_FROM_DISK = "/jax/compilation_cache/cache_hits"


class JAXPerformanceMonitor(UnifiedPerformanceMonitor):
    """A monitor that listens to what JAX announces through `jax.monitoring`.

    - JAX_COMPILATION: milliseconds that JAX traced, lowered and compiled in this
      process while the operation ran, whichever thread asked.
    - JAX_CACHE_HITS: of the programs that the operation asked for, the share that
      was kept here or came from JAX's cache on disk.
    - JAX_MEMORY_POOL: what the device says is in use after it; on CPU, which says
      nothing, the most that the pool counted.

    Args:
        programs: where programs are kept.
        pool: what is on the device.
        config: thresholds and how much to keep.
    """

    def __init__(
        self,
        programs: JaxCompilationOptimizer,
        pool: JaxMemoryPool,
        config: MonitorConfig | None = None,
    ) -> None:
        super().__init__(config)
        self._programs, self._pool = programs, pool

    @contextlib.contextmanager
    def operation(self) -> Iterator[None]:
        """Record what a block spends; nothing of the cache if it asked for no program.

        Raises:
            ValueError: a number is not finite.
        """
        seconds: list[float] = []
        from_disk: list[str] = []

        def lasted(event: str, duration_secs: float, **_: Any) -> None:
            if event in _COMPILING:
                seconds.append(duration_secs)

        def happened(event: str, **_: Any) -> None:
            if event == _FROM_DISK:
                from_disk.append(event)

        hits, misses = self._programs.hits, self._programs.misses
        jax.monitoring.register_event_duration_secs_listener(lasted)
        jax.monitoring.register_event_listener(happened)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(lasted)
            jax.monitoring.unregister_event_listener(happened)
        hits, misses = self._programs.hits - hits, self._programs.misses - misses
        if not hits + misses:
            return
        used = self._pool.device_bytes
        self.record_jax_metrics(
            compilation_time_ms=1e3 * sum(seconds),
            cache_hit_rate=(hits + min(misses, len(from_disk))) / (hits + misses),
            memory_pool_usage_mb=(self._pool.most_bytes if used is None else used)
            / 1e6,
        )
