"""The guide's nine JAX components; imported only when JAX is here and enabled.

Searching and entropy coding are NumPy's work, whatever the strategy. JAX's part: the
integers of a tensor go to the device, where one product makes them weights. Their
digest is then compared with the file's, which the NumPy decoder wrote: the two agree in
every bit, or an error is raised.
"""

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from frugax import tropical
from frugax.compress import CompressedFile
from frugax.compress.arrays import dtype_from_name, to_library
from frugax.compress.container import compute_digest
from frugax.errors import ConfigError, CorruptFileError

from ._monitor import (
    MetricType,
    MonitorConfig,
    PipelineType,
    UnifiedPerformanceMonitor,
)
from ._settings import SystemConfiguration

# JAX's own name for it is a variable to type checkers.
Device: TypeAlias = Any
# Below this a piece is all overhead: the pool's limit is then exceeded for its length.
_MIN_PIECE = 1 << 16
# Tracing, lowering and XLA's part of one compilation.
_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class JaxConfigAdapter:
    """Turns a configuration into JAX's settings, for the length of a block.

    JAX reserves a GPU's memory when it starts, by `XLA_PYTHON_CLIENT_MEM_FRACTION`;
    `jax_memory_fraction` is the coordinator's own share, which the pool keeps.

    Attributes:
        platform: the platform to ask JAX for; None for its own choice.
    """

    def __init__(self, config: SystemConfiguration) -> None:
        backend = config.jax_backend
        self.platform = None if backend == "auto" else backend
        self._x64 = config.jax_enable_x64

    def applied(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which numbers have the configured width."""
        return jax.enable_x64(self._x64)


class JaxDeviceManager:
    """The devices in use, handed out in turn.

    Attributes:
        devices: the devices, at least one.

    Args:
        platform: "cpu", "gpu" or "tpu"; None for JAX's own choice.
        count: how many devices to use.
    """

    def __init__(self, platform: str | None, count: int) -> None:
        """Look for the devices.

        Raises:
            ConfigError: JAX has no such platform, or too few devices.
        """
        try:
            found = jax.devices(platform)
        except RuntimeError as e:
            have = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise ConfigError(
                f"jax_backend is {platform!r}, and JAX finds only {have} here: "
                'install JAX for it (for GPUs: pip install "jax[cuda12]"), or leave it '
                'at "auto".'
            ) from e
        if len(found) < count:
            raise ConfigError(
                f"jax_parallel_devices is {count}, and JAX finds {len(found)} here "
                f"({found[0].platform}): ask for at most {len(found)}."
            )
        self.devices: tuple[Device, ...] = tuple(found[:count])
        self._turns = itertools.cycle(self.devices)

    def next(self) -> Device:
        """Return the device whose turn it is."""
        return next(self._turns)


class JaxMemoryPool:
    """Counts the bytes that the coordinator keeps on a device, within a share of it.

    XLA allocates by itself; a pool can only count. JAX on CPU has no statistics: there
    the machine's memory is the whole.

    Attributes:
        limit_bytes: the share that may be taken.
        in_use_bytes: the bytes taken now.
        most_bytes: the largest number of bytes taken so far.
    """

    def __init__(self, device: Device, fraction: float) -> None:
        self._device = device
        whole = (device.memory_stats() or {}).get("bytes_limit")
        if whole is None:
            whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self.limit_bytes = int(fraction * whole)
        self.in_use_bytes = self.most_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use as the device says; on CPU the most counted here."""
        stats = self._device.memory_stats()
        return self.most_bytes if stats is None else int(stats["bytes_in_use"])

    @contextlib.contextmanager
    def taking(self, nbytes: int) -> Iterator[None]:
        """Count bytes as taken while a block runs."""
        self.in_use_bytes += nbytes
        self.most_bytes = max(self.most_bytes, self.in_use_bytes)
        try:
            yield
        finally:
            self.in_use_bytes -= nbytes


class JaxMemoryOptimizer:
    """Cuts flat work into pieces that fit the free bytes of the pool."""

    def __init__(self, pool: JaxMemoryPool) -> None:
        self._pool = pool

    def pieces(self, size: int, bytes_each: int) -> list[slice]:
        """Return slices that cover `size` numbers of `bytes_each` bytes on the device.

        `bytes_each` includes the result and intermediate values of a number.
        """
        free = self._pool.limit_bytes - self._pool.in_use_bytes
        most = max(_MIN_PIECE, free // bytes_each)
        return [slice(i, min(i + most, size)) for i in range(0, size, most)]


class JaxCompilationOptimizer:
    """Keeps the programs that were used last, and counts hits and misses.

    Programs are compiled ahead of their first call, so that a hit is a hit: JAX's own
    cache of `jit` counts nothing.
    """

    def __init__(self, size: int) -> None:
        self._program = functools.lru_cache(maxsize=size)(_compile_product)

    def program(
        self, shape: tuple[int, ...], dtype: str, device: Device
    ) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """Return the compiled product of integers and a step, in the given dtype."""
        return self._program(shape, dtype, device)

    @property
    def hits(self) -> int:
        """Requests for programs that were kept."""
        return self._program.cache_info().hits

    @property
    def misses(self) -> int:
        """Requests for programs that had to be compiled."""
        return self._program.cache_info().misses

    def __len__(self) -> int:
        return self._program.cache_info().currsize


class JaxTropicalBridge:
    """Converts arrays between torch and JAX by DLPack, without a copy where it can."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def to_jax(self, value: Any) -> jax.Array:
        """Return the same numbers as a JAX array on the device, 64-bit ones included.

        A torch tensor on the same device may share its memory with the array: leave
        it as it is while the array is in use.
        """
        torch = sys.modules.get("torch")
        # Without x64, JAX makes 32 bits of 64 without a word.
        with jax.enable_x64(True):
            if torch is not None and isinstance(value, torch.Tensor):
                # JAX refuses strides of other orders and tensors that need a gradient.
                plain = value.detach().contiguous()
                plain = plain.cpu() if self._device.platform == "cpu" else plain
                value = jax.dlpack.from_dlpack(plain)
            return jax.device_put(value, self._device)

    def like(self, array: jax.Array, value: Any) -> Any:
        """Return the array in the library of another value, as a copy if not JAX's."""
        with jax.enable_x64(True):
            return to_library(np.asarray(array), value)


class TropicalJAXEngine:
    """`frugax.tropical` on the coordinator's device, for arrays of any library."""

    def __init__(self, bridge: JaxTropicalBridge, settings: JaxConfigAdapter) -> None:
        self._bridge, self._settings = bridge, settings

    def matmul(self, a: Any, b: Any, **kind: Any) -> Any:
        """Return the product of `(n, k)` and `(k, m)`; see `tropical.matmul`."""
        return self._run(tropical.matmul, a, b, **kind)

    def closure(self, d: Any, **kind: Any) -> Any:
        """Return the best walks of any length, `(n, n)`; see `tropical.closure`."""
        return self._run(tropical.closure, d, **kind)

    def polynomial(
        self, coefficients: Any, exponents: Any, points: Any, **kind: Any
    ) -> Any:
        """Return the best monomial at each point; see `tropical.polynomial`."""
        return self._run(tropical.polynomial, coefficients, exponents, points, **kind)

    def _run(self, operation: Callable[..., Any], *values: Any, **kind: Any) -> Any:
        # The transfer keeps all bits; only the operation has the configured width.
        arrays = [self._bridge.to_jax(value) for value in values]
        with self._settings.applied():
            result = operation(*arrays, **kind)
        return self._bridge.like(result, values[0])


class JaxStrategy:
    """Decodes tensors on JAX's devices."""

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

        Raises:
            CorruptFileError: the file is damaged, or JAX computed other bits than
                NumPy.
        """
        record, device = file.record(name), self._devices.next()
        with jax.enable_x64(True):  # or 64-bit weights would lose half of their bits
            quantised = file.integers(name)
            if quantised is None or quantised[1].ndim:
                return jax.device_put(file[name], device)
            tensor = self._multiply(*quantised, record.dtype, device)
        # The digest makes the two decoders prove their agreement at every use; a
        # fast-math flag or a fused multiply would show.
        if compute_digest(np.asarray(tensor).reshape(-1)) != record.digest:
            raise CorruptFileError(
                f"tensor {name!r}: {device} makes other bits of it than NumPy; "
                "decode it with enable_jax=False, and report this."
            )
        return tensor

    def _multiply(
        self, integers: np.ndarray, step: np.ndarray, dtype: str, device: Device
    ) -> jax.Array:
        levels_type, working = _working_types(dtype)
        levels = integers.astype(levels_type)
        # Levels, the product and the weights are all on the device at once.
        each = 2 * working.itemsize + dtype_from_name(dtype).itemsize
        pieces = self._memory.pieces(levels.size, each)
        # A tensor that fits has its shape from the start: no program reshapes it.
        parts = (
            [levels] if len(pieces) == 1 else [levels.reshape(-1)[p] for p in pieces]
        )
        products: list[jax.Array] = []
        for part in parts:
            with self._pool.taking(part.size * each):
                program = self._programs.program(part.shape, dtype, device)
                on_device = jax.device_put((part, step.astype(working)), device)
                # Waiting keeps the count of the pool true: the bytes of a piece are
                # given back only when its product exists.
                products.append(program(*on_device).block_until_ready())
        if len(products) == 1:
            return products[0]
        return jnp.concatenate(products).reshape(integers.shape)


def _working_types(dtype: str) -> tuple["np.dtype[Any]", "np.dtype[Any]"]:
    # The container defines decoding in float32 for weights of up to 32 bits, and
    # float64 above; another width would round to other bits.
    wide = dtype_from_name(dtype).itemsize == 8
    return (
        np.dtype(np.int64 if wide else np.int32),
        np.dtype(np.float64 if wide else np.float32),
    )


def _compile_product(shape: tuple[int, ...], dtype: str, device: Device) -> Any:
    levels, working = _working_types(dtype)
    place = jax.sharding.SingleDeviceSharding(device)
    # One rounded product, then the weights' dtype, as docs/container.md defines it. The
    # step is an argument, so that tensors of one shape share a program.
    product = lambda integers, step: (integers.astype(working) * step).astype(
        dtype_from_name(dtype)
    )
    return (
        jax.jit(product)
        .lower(
            jax.ShapeDtypeStruct(shape, levels, sharding=place),
            jax.ShapeDtypeStruct((), working, sharding=place),
        )
        .compile()
    )


class JAXPerformanceMonitor(UnifiedPerformanceMonitor):
    """A monitor that listens to the events of `jax.monitoring`.

    - JAX_COMPILATION: milliseconds that JAX traced, lowered and compiled in this
      process while the operation ran, whichever thread asked.
    - JAX_CACHE_HITS: of the programs that the operation asked for, the share that
      was kept here.
    - JAX_MEMORY_POOL: see `JaxMemoryPool.used_bytes`.
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

        def listen(event: str, duration_secs: float, **_: Any) -> None:
            if event in _COMPILE_EVENTS:
                seconds.append(duration_secs)

        hits, misses = self._programs.hits, self._programs.misses
        # Listeners are global to the process, so this one is removed even if the block
        # raises.
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        hits, misses = self._programs.hits - hits, self._programs.misses - misses
        # A rate of no requests would be 0 / 0; the metric then stays unmeasured.
        if not hits + misses:
            return
        for metric, value in (
            (MetricType.JAX_COMPILATION, 1e3 * sum(seconds)),
            (MetricType.JAX_CACHE_HITS, hits / (hits + misses)),
            (MetricType.JAX_MEMORY_POOL, self._pool.used_bytes / 1e6),
        ):
            self.record_metric(metric, value, PipelineType.JAX)


def make_jax_parts(
    config: SystemConfiguration, monitor: MonitorConfig | None = None
) -> dict[str, Any]:
    """Build the guide's nine parts, by its names for them.

    Raises:
        ConfigError: JAX has no such device, or too few.
    """
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
