"""The guide's nine components around JAX: settings, devices, memory, programs.

Searching and entropy coding are NumPy's work. JAX's part: the integers of a tensor go
to a device, where one product makes them weights; their digest is compared with the
file's, which the NumPy decoder wrote.
"""

import functools
import itertools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import tropical
from frugax.compress import CompressedFile
from frugax.compress.container import compute_digest
from frugax.errors import ConfigError, CorruptFileError
from frugax.targets import Target

from ._monitor import MetricType, PipelineType, UnifiedPerformanceMonitor
from ._settings import SystemConfiguration


class JaxDeviceManager:
    """The devices in use; `next()` hands them out in turn."""

    def __init__(self, config: SystemConfiguration) -> None:
        """Look for the devices.

        Raises:
            ConfigError: JAX has too few of them.
            RuntimeError: JAX has none of that platform.
        """
        backend, count = config.jax_backend, config.jax_parallel_devices
        found = jax.devices(None if backend == "auto" else backend)
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
    """The memory of a device, of which a share may be used.

    XLA allocates by itself. JAX on CPU has no statistics: there the machine's memory is
    the whole, and JAX's live arrays are what is in use.
    """

    def __init__(self, device: Any, fraction: float) -> None:
        self._device = device
        whole = Target.of_devices([device]).memory_bytes
        # Of a device that does not state its memory, none may be used.
        self.limit_bytes = int(fraction * (whole or 0))

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        stats = self._device.memory_stats()
        if stats is not None:
            return int(stats["bytes_in_use"])
        live = jax.live_arrays(self._device.platform)
        return sum(array.nbytes for array in live)

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes are free."""
        return nbytes <= self.limit_bytes - self.used_bytes


class JaxCompilationOptimizer:
    """Keeps the programs that were used last; JAX's own cache of `jit` has no size.

    Attributes:
        compile_s: seconds spent on compiling.
    """

    def __init__(self, size: int) -> None:
        self.compile_s = 0.0
        self._program = functools.lru_cache(size)(self._compile)

    @property
    def requests(self) -> int:
        """Programs that were asked for."""
        found = self._program.cache_info()
        return found.hits + found.misses

    @property
    def hit_rate(self) -> float:
        """Share of the requests whose program was compiled already; 0 of none."""
        return self._program.cache_info().hits / max(self.requests, 1)

    def run(self, function: Callable[..., Any], *arrays: jax.Array) -> jax.Array:
        """Call a function, compiled once for its shapes and devices."""
        shapes = [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for a in arrays
        ]
        return self._program(function, *shapes)(*arrays)

    def _compile(
        self, function: Callable[..., Any], *shapes: jax.ShapeDtypeStruct
    ) -> Callable[..., jax.Array]:
        started = time.perf_counter()
        program = jax.jit(function).lower(*shapes).compile()
        self.compile_s += time.perf_counter() - started
        return program


class JaxTropicalBridge:
    """Converts arrays between torch and JAX by DLPack."""

    def __init__(self, device: Any) -> None:
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
        import torch

        return torch.from_dlpack(array).clone()


class JaxStrategy:
    """Decodes tensors of files on JAX's devices."""

    def __init__(
        self,
        devices: JaxDeviceManager,
        pool: JaxMemoryPool,
        programs: JaxCompilationOptimizer,
        monitor: UnifiedPerformanceMonitor,
    ) -> None:
        self._devices, self._pool = devices, pool
        self._programs, self._monitor = programs, monitor

    def decode(self, file: CompressedFile, name: str) -> np.ndarray:
        """Return one tensor of a file.

        NumPy decodes one without integers, and one that does not fit the device.

        Raises:
            CorruptFileError: the file is damaged, or JAX computed other bits.
        """
        record, coded = file.record(name), file.integers(name)
        # The integers are shorter than the product, so twice its bytes are enough.
        if coded is None or not self._pool.fits(2 * record.nbytes):
            return file[name]
        device, before_s = self._devices.next(), self._programs.compile_s
        with jax.enable_x64(True):  # or 64-bit weights would lose half of their bits
            on_device = jax.device_put(coded, device)
            product = self._programs.run(_scale_to(record.dtype), *on_device)
        tensor = np.asarray(product)
        for metric, value in (
            (MetricType.JAX_COMPILATION, 1e3 * (self._programs.compile_s - before_s)),
            (MetricType.JAX_CACHE_HITS, self._programs.hit_rate),
            (MetricType.JAX_MEMORY_POOL, self._pool.used_bytes / 1e6),
        ):
            self._monitor.record_metric(metric, value, PipelineType.JAX)
        if compute_digest(tensor) != record.digest:
            raise CorruptFileError(
                f"tensor {name!r}: {device} makes other bits of it than NumPy; decode "
                "it with enable_jax=False, and report this."
            )
        return tensor


@functools.cache
def _scale_to(dtype: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    largest = float(jnp.finfo(dtype).max)

    # docs/container.md defines decoding in the dtype of the steps, where another width
    # would round to other bits, and clips products beyond the range of the weights.
    def scale(levels: jax.Array, steps: jax.Array) -> jax.Array:
        products = levels.astype(steps.dtype) * steps
        return jnp.clip(products, -largest, largest).astype(dtype)

    return scale


def make_jax_components(config: SystemConfiguration) -> dict[str, Any]:
    """Build the nine components, by the guide's names for them."""
    # Opens a block in which numbers have the configured width.
    adapter = functools.partial(jax.enable_x64, config.jax_enable_x64)
    devices = JaxDeviceManager(config)
    pool = JaxMemoryPool(devices.devices[0], config.jax_memory_fraction)
    programs = JaxCompilationOptimizer(config.jax_compilation_cache_size)
    monitor = UnifiedPerformanceMonitor()
    return {
        "jax_config_adapter": adapter,
        "jax_device_manager": devices,
        "jax_memory_pool": pool,
        "jax_memory_optimizer": pool,  # it also keeps away what does not fit
        "jax_compilation_optimizer": programs,
        "jax_tropical_engine": tropical,  # computes with JAX on arrays of JAX
        "jax_tropical_bridge": JaxTropicalBridge(devices.devices[0]),
        "jax_strategy": JaxStrategy(devices, pool, programs, monitor),
        "jax_performance_monitor": monitor,
    }
