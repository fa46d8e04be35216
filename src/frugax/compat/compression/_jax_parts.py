"""The guide's nine parts around JAX: settings, devices, memory, programs, decoding.

Searching and entropy coding are NumPy's work. JAX's part: the whole numbers of a tensor
go to a device, where one product makes them weights; their digest is compared with the
file's, which the NumPy decoder wrote.
"""

import contextlib
import functools
import itertools
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from frugax import tropical
from frugax.compress import CompressedFile, Record
from frugax.compress.arrays import dtype_from_name
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
Kind: TypeAlias = Literal["max", "min"]
# Below this a piece is all overhead: the pool's limit is then exceeded for its length.
_MIN_PIECE = 1 << 16
# Tracing, lowering and XLA's part of one compilation.
_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)


class JaxConfigAdapter:
    """JAX's settings by a configuration, for the length of a block."""

    def __init__(self, config: SystemConfiguration) -> None:
        self.platform = None if config.jax_backend == "auto" else config.jax_backend
        self._is_wide = config.jax_enable_x64

    def applied(self) -> contextlib.AbstractContextManager[Any]:
        """Return a block in which numbers have the configured width."""
        return jax.enable_x64(self._is_wide)


class JaxDeviceManager:
    """The devices in use, handed out in turn.

    Args:
        platform: "cpu", "gpu" or "tpu"; None for JAX's own choice.
        count: how many devices to use.
    """

    def __init__(self, platform: str | None, count: int) -> None:
        """Look for the devices.

        Raises:
            ConfigError: JAX has no such device, or too few.
        """
        try:
            found = jax.devices(platform)
        except RuntimeError as e:
            have = ", ".join(sorted({d.platform for d in jax.devices()}))
            raise ConfigError(
                f"jax_backend is {platform!r}, and JAX finds only {have} here: install "
                'JAX for it (for GPUs: pip install "jax[cuda13]"), or use "auto".'
            ) from e
        if len(found) < count:
            raise ConfigError(
                f"jax_parallel_devices is {count}, and JAX finds {len(found)} here "
                f"({found[0].platform}): ask for at most {len(found)}."
            )
        self.devices = tuple(found[:count])
        self.next = functools.partial(next, itertools.cycle(self.devices))

    @property
    def backend(self) -> str:
        """The platform in use."""
        return self.devices[0].platform


class JaxMemoryPool:
    """Counts the bytes on a device, within a share of its memory.

    XLA allocates by itself. JAX on CPU has no statistics: there the machine's memory is
    the whole, and only the count is known.
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
        """Bytes in use, as the device says; on CPU the most that was counted."""
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
        """Return slices that cover `size` numbers of `bytes_each` bytes."""
        free = max(0, self._pool.limit_bytes - self._pool.in_use_bytes)
        most = max(_MIN_PIECE, free // bytes_each)
        return [slice(i, min(i + most, size)) for i in range(0, size, most)]


class JaxCompilationOptimizer:
    """Keeps the programs that were used last, and counts hits and misses.

    Programs are compiled ahead of their first call: JAX's own cache of `jit` has no
    size and counts nothing.
    """

    def __init__(self, size: int) -> None:
        self._size, self.hits, self.misses = size, 0, 0
        self._kept: OrderedDict[Hashable, Callable[..., Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def program(
        self, key: Hashable, fn: Callable[..., Any], *args: jax.Array
    ) -> Callable[..., Any]:
        """Return the compiled form of a function for arguments like these.

        The key names the function, the shapes and the device.
        """
        if key in self._kept:
            self.hits += 1
            self._kept.move_to_end(key)
        else:
            self.misses += 1
            self._kept[key] = jax.jit(fn).lower(*args).compile()
            if len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return self._kept[key]


class JaxTropicalBridge:
    """Converts arrays between torch and JAX by DLPack."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def to_jax(self, value: Any) -> jax.Array:
        """Return the same numbers as a JAX array on the device, 64-bit ones included.

        A torch tensor on the same device may share its memory with the array.
        """
        with jax.enable_x64(True):  # without it JAX makes 32 bits of 64
            if hasattr(value, "detach"):
                value = value.detach().contiguous()
                if self._device.platform == "cpu":
                    value = value.cpu()
                value = jax.dlpack.from_dlpack(value)
            return jax.device_put(value, self._device)

    def to_torch(self, array: jax.Array) -> Any:
        """Return the same numbers as a torch tensor of its own."""
        from ._torch_tensors import from_dlpack

        return from_dlpack(array)


class TropicalJAXEngine:
    """`frugax.tropical` on the device, for arrays of any library.

    Results come back as torch tensors where the first argument is one, else as arrays
    of JAX.
    """

    def __init__(self, bridge: JaxTropicalBridge, settings: JaxConfigAdapter) -> None:
        self._bridge, self._settings = bridge, settings

    def matmul(self, a: Any, b: Any, *, kind: Kind = "max") -> Any:
        """Return the tropical matrix product `(n, m)` of `(n, k)` and `(k, m)`."""
        return self._run(functools.partial(tropical.matmul, kind=kind), a, b)

    def closure(self, d: Any, *, kind: Kind = "min") -> Any:
        """Return the best walks of any length, `(n, n)`; see `tropical.closure`."""
        return self._run(functools.partial(tropical.closure, kind=kind), d)

    def polynomial(
        self, coefficients: Any, exponents: Any, points: Any, *, kind: Kind = "max"
    ) -> Any:
        """Return the best monomial at each point; see `tropical.polynomial`."""
        run = functools.partial(tropical.polynomial, kind=kind)
        return self._run(run, coefficients, exponents, points)

    def _run(self, operation: Callable[..., Any], *values: Any) -> Any:
        arrays = [self._bridge.to_jax(value) for value in values]
        with self._settings.applied():
            found = operation(*arrays)
        is_torch = hasattr(values[0], "detach")
        return self._bridge.to_torch(found) if is_torch else found


class JaxStrategy:
    """Decodes tensors of files on JAX's devices."""

    def __init__(
        self,
        devices: JaxDeviceManager,
        pool: JaxMemoryPool,
        memory: JaxMemoryOptimizer,
        programs: JaxCompilationOptimizer,
    ) -> None:
        self._devices, self._pool = devices, pool
        self._memory, self._programs = memory, programs

    def decode(self, file: CompressedFile, name: str) -> np.ndarray:
        """Return one tensor of a file; one without whole numbers by NumPy.

        Raises:
            CorruptFileError: the file is damaged, or JAX computed other bits.
        """
        record, device = file.record(name), self._devices.next()
        with jax.enable_x64(True):  # or 64-bit weights would lose half of their bits
            quantised = file.integers(name)
            if quantised is None or quantised[1].ndim:
                return file[name]
            tensor = self._multiply(quantised[0].reshape(-1), record, device)
        if compute_digest(tensor) != record.digest:
            raise CorruptFileError(
                f"tensor {name!r}: {device} makes other bits of it than NumPy; decode "
                "it with enable_jax=False, and report this."
            )
        return tensor.reshape(record.shape)

    def _multiply(
        self, integers: np.ndarray, record: Record, device: Device
    ) -> np.ndarray:
        assert record.step is not None  # checked by `decode`
        dtype = dtype_from_name(record.dtype)
        # docs/container.md defines decoding in float32 for weights of up to 32 bits,
        # and in float64 above; another width would round to other bits.
        is_wide = dtype.itemsize == 8
        working = np.dtype(np.float64 if is_wide else np.float32)
        levels = integers.astype(np.int64 if is_wide else np.int32)
        # An argument and not a constant, so that tensors of one shape share a program.
        step = jax.device_put(working.type(record.step.size), device)
        each = 2 * working.itemsize + dtype.itemsize
        scale = lambda levels, step: (levels.astype(step.dtype) * step).astype(dtype)
        parts: list[np.ndarray] = []
        for piece in self._memory.pieces(record.size, each):
            part = levels[piece]
            with self._pool.taking(part.size * each):
                on_device = jax.device_put(part, device)
                key = record.dtype, part.shape, device.id
                program = self._programs.program(key, scale, on_device, step)
                parts.append(np.asarray(program(on_device, step)))
        return np.concatenate(parts)


class JAXPerformanceMonitor(UnifiedPerformanceMonitor):
    """A monitor that also listens to the events of `jax.monitoring`."""

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

        def on_duration(event: str, duration_secs: float, **_: Any) -> None:
            if event in _COMPILE_EVENTS:
                seconds.append(duration_secs)

        hits, misses = self._programs.hits, self._programs.misses
        # Listeners are global to the process, so they are removed in any case.
        jax.monitoring.register_event_duration_secs_listener(on_duration)
        try:
            yield
        finally:
            jax.monitoring.unregister_event_duration_listener(on_duration)
        hits, misses = self._programs.hits - hits, self._programs.misses - misses
        if not hits + misses:  # a rate of no requests would be 0 / 0
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
    """Build the nine parts, by the guide's names for them."""
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
