"""Strategy "jax": decode tensors on a JAX device, and verify their digests.

Searching and entropy coding are NumPy's work, whatever the strategy. JAX's part: the
integers of a tensor go to the device, where one product makes them weights. Their
digest is then compared with the file's, which the NumPy decoder wrote: the two agree in
every bit, or an error is raised.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax.compress import CompressedFile, Record
from frugax.compress.arrays import dtype_from_name
from frugax.compress.container import compute_digest
from frugax.errors import CorruptFileError

from ._jax_devices import (
    Device,
    JaxCompilationOptimizer,
    JaxConfigAdapter,
    JaxDeviceManager,
    JaxMemoryOptimizer,
    JaxMemoryPool,
    JaxTropicalBridge,
    TropicalJAXEngine,
)
from ._monitor import MonitorConfig, UnifiedPerformanceMonitor
from ._settings import SystemConfiguration

# Tracing, lowering and XLA's part of one compilation.
_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
_DISK_CACHE_EVENT = "/jax/compilation_cache/cache_hits"


class JaxStrategy:
    """Decodes tensors on JAX's devices.

    Args:
        devices: the devices.
        pool: counts the bytes on them.
        memory: cuts tensors that do not fit.
        programs: keeps compiled programs.
    """

    def __init__(
        self,
        devices: JaxDeviceManager,
        pool: JaxMemoryPool,
        memory: JaxMemoryOptimizer,
        programs: JaxCompilationOptimizer,
    ) -> None:
        self._devices, self._pool = devices, pool
        self._memory, self._programs = memory, programs

    def decode(self, file: CompressedFile, name: str) -> jax.Array:
        """Return one tensor of a file, on the device whose turn it is.

        A tensor without integers to multiply is decoded by NumPy and copied to the
        device.

        Args:
            file: the open file.
            name: the tensor's name.

        Raises:
            CorruptFileError: the file is damaged, or JAX computed other bits than
                NumPy.
        """
        record, device = file.record(name), self._devices.next()
        with jax.enable_x64(True):  # or 64-bit weights would lose half of their bits
            quantised = file.integers(name)
            if quantised is None or quantised[1].ndim:
                return jax.device_put(file[name], device)
            tensor = self._multiply(quantised[0].reshape(-1), record, device)
            # The digest makes the two decoders prove their agreement at every use; a
            # fast-math flag or a fused multiply would show.
            if compute_digest(np.asarray(tensor).reshape(-1)) != record.digest:
                raise CorruptFileError(
                    f"tensor {name!r}: {device} makes other bits of it than NumPy; "
                    "decode it with enable_jax=False, and report this."
                )
            return tensor

    def is_compiled(self, record: Record) -> bool:
        """Whether a tensor like this can be decoded without compiling."""
        # On every device, since the one whose turn comes next is not known here.
        keys = [_program_key(record, record.shape, d) for d in self._devices.devices]
        return all(key in self._programs for key in keys)

    def _multiply(
        self, integers: np.ndarray, record: Record, device: Device
    ) -> jax.Array:
        assert record.step is not None  # checked by `decode`
        dtype = dtype_from_name(record.dtype)
        # The container defines decoding in float32 for weights of up to 32 bits, and
        # float64 above; another width would round to other bits.
        working, levels_type = np.dtype(np.float32), np.int32
        if dtype.itemsize == 8:
            working, levels_type = np.dtype(np.float64), np.int64
        # The step is an argument of the program and not a constant in it, so that
        # tensors of one shape share a program.
        step = jax.device_put(working.type(record.step.size), device)
        levels = integers.astype(levels_type)
        # Levels, the product and the weights are all on the device at once.
        each = 2 * working.itemsize + dtype.itemsize
        pieces = self._memory.pieces(record.size, each)
        parts = [levels[piece] for piece in pieces]
        if len(parts) == 1:
            # A tensor that fits has its shape from the start: no program reshapes it.
            parts = [levels.reshape(record.shape)]
        products: list[jax.Array] = []
        for part in parts:
            with self._pool.taking(part.size * each):
                on_device = jax.device_put(part, device)
                program = self._programs.program(
                    _program_key(record, part.shape, device),
                    functools.partial(_scale, dtype=dtype),
                    on_device,
                    step,
                )
                # Waiting here keeps the count of the pool true: the bytes of a piece
                # are given back only when its product exists.
                products.append(program(on_device, step).block_until_ready())
        if len(products) == 1:
            return products[0]
        return jnp.concatenate(products).reshape(record.shape)


def _scale(levels: jax.Array, step: jax.Array, *, dtype: "np.dtype") -> jax.Array:
    # One rounded product, then the weights' dtype, as docs/container.md defines it.
    return (levels.astype(step.dtype) * step).astype(dtype)


def _program_key(
    record: Record, shape: tuple[int, ...], device: Device
) -> tuple[Any, ...]:
    return record.dtype, shape, device.id


class JAXPerformanceMonitor(UnifiedPerformanceMonitor):
    """A monitor that listens to the events of `jax.monitoring`.

    - JAX_COMPILATION: milliseconds that JAX traced, lowered and compiled in this
      process while the operation ran, whichever thread asked.
    - JAX_CACHE_HITS: of the programs that the operation asked for, the share that
      was kept here or came from JAX's cache on disk.
    - JAX_MEMORY_POOL: bytes in use after it, as the device says; on CPU, which says
      nothing, the largest count of the pool.

    Args:
        programs: where programs are kept.
        pool: counts the bytes on the device.
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
        """Record the cost of a block; nothing if it asked for no program."""
        seconds: list[float] = []
        from_disk: list[str] = []

        def on_duration(event: str, duration_secs: float, **_: Any) -> None:
            if event in _COMPILE_EVENTS:
                seconds.append(duration_secs)

        def on_event(event: str, **_: Any) -> None:
            if event == _DISK_CACHE_EVENT:
                from_disk.append(event)

        hits, misses = self._programs.hits, self._programs.misses
        # Listeners are global to the process, so they are removed even if the block
        # raises.
        jax.monitoring.register_event_duration_secs_listener(on_duration)
        jax.monitoring.register_event_listener(on_event)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(on_duration)
            jax.monitoring.unregister_event_listener(on_event)
        hits, misses = self._programs.hits - hits, self._programs.misses - misses
        # A rate of no requests would be 0 / 0; the metric then stays unmeasured.
        if not hits + misses:
            return
        used = self._pool.device_bytes
        if used is None:
            used = self._pool.most_bytes
        self.record_jax_metrics(
            compilation_time_ms=1e3 * sum(seconds),
            cache_hit_rate=(hits + min(misses, len(from_disk))) / (hits + misses),
            memory_pool_usage_mb=used / 1e6,
        )


def make_jax_parts(
    config: SystemConfiguration, monitor: MonitorConfig | None
) -> dict[str, Any]:
    """Build the guide's nine parts, by its names for them."""
    adapter = JaxConfigAdapter(config)
    devices = JaxDeviceManager(adapter.platform, config.jax_parallel_devices)
    pool = JaxMemoryPool(devices.devices[0], config.jax_memory_fraction)
    memory = JaxMemoryOptimizer(pool)
    programs = JaxCompilationOptimizer(config.jax_compilation_cache_size)
    bridge = JaxTropicalBridge(devices.devices[0])
    return {
        "jax_config_adapter": adapter,
        "jax_device_manager": devices,
        "jax_memory_pool": pool,
        "jax_memory_optimizer": memory,
        "jax_compilation_optimizer": programs,
        "jax_tropical_engine": TropicalJAXEngine(bridge, adapter),
        "jax_tropical_bridge": bridge,
        "jax_strategy": JaxStrategy(devices, pool, memory, programs),
        "jax_performance_monitor": JAXPerformanceMonitor(programs, pool, monitor),
    }
