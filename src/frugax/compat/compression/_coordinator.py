"""Compress single tensors to files in memory, and back."""

import contextlib
import dataclasses
import sys
import time
from typing import Any

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress.arrays import to_library
from frugax.trees import PyTree, is_array

from ._monitor import MetricType, UnifiedPerformanceMonitor
from ._settings import (
    CompressionProfile,
    OptimizationStrategy,
    SystemConfiguration,
    has_jax,
)
from ._strategies import StrategySelector, compress_within

_TARGET_RATIO = CompressionProfile().target_compression_ratio


@dataclasses.dataclass(frozen=True, slots=True)
class CompressedData:
    """A tensor's file in memory.

    Attributes:
        compressed_bytes: the bytes of an `.fxz` file, which any reader takes.
        like: an empty tensor, of the library, dtype and device it comes back in.
    """

    compressed_bytes: bytes
    like: Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    """The result of compressing one tensor.

    Attributes:
        compressed_data: the file in memory.
        compression_ratio: bytes of the tensor over bytes of the file.
        rel_error: ||decoded - original|| / ||original||.
        success: whether the file is at the target ratio; otherwise it is exact.
    """

    compressed_data: CompressedData
    compression_ratio: float
    rel_error: float
    success: bool


class SystemIntegrationCoordinator:
    """Compresses single tensors at a ratio of 4, and decodes them by JAX or NumPy.

    Attributes:
        components: the parts by name. The nine that begin with `jax_` are there if
            JAX is enabled and installed.
        config: the resources; by default `SystemConfiguration()`.
    """

    def __init__(self, config: SystemConfiguration | None = None) -> None:
        """Look for JAX and its devices.

        Raises:
            ConfigError: JAX has no such device, or too few.
        """
        self.config = config or SystemConfiguration()
        self.components = self._initialize_jax_components()
        self.components["performance_monitor"] = self.components.get(
            "jax_performance_monitor", UnifiedPerformanceMonitor()
        )
        self.optimize_system(OptimizationStrategy.BALANCED)

    def _initialize_jax_components(self) -> dict[str, Any]:
        if not (self.config.enable_jax and has_jax()):
            return {}
        from ._jax_components import make_jax_components

        return make_jax_components(self.config)

    def compress(self, tensor: PyTree) -> CompressionResult:
        """Make the file of one tensor, and decode it again.

        A tensor that cannot be made as small as the target is coded without loss.

        Raises:
            CorruptFileError: JAX and NumPy do not decode the same bits.
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        if not is_array(tensor):
            raise TypeError(
                f"compress needs one tensor of NumPy, JAX or torch, got a "
                f"{type(tensor).__name__}: trees go to frugax.compress.save."
            )
        started = time.perf_counter()
        at_ratio, exact = SizeBudget(ratio=_TARGET_RATIO), SizeBudget(max_abs=0)
        data = compress_within(tensor, (at_ratio, exact))
        found = CompressedData(bytes(data), _empty_like(tensor))
        self.components["strategy_selector"].decode(found.compressed_bytes)
        seconds = time.perf_counter() - started
        monitor = self.components["performance_monitor"]
        monitor.record_metric(MetricType.LATENCY, 1e3 * seconds)
        monitor.record_metric(MetricType.COMPRESSION_RATIO, data.report.ratio)
        return CompressionResult(
            compressed_data=found,
            compression_ratio=data.report.ratio,
            rel_error=data.report.rel_error,
            success=data.report.ratio >= _TARGET_RATIO,
        )

    def decompress(self, compressed_data: CompressedData) -> Any:
        """Decode the data of `compress`, in the library that the tensor came from.

        Raises:
            CorruptFileError: the bytes are damaged.
            UnsupportedFileError: they are not an `.fxz` file.
        """
        selector = self.components["strategy_selector"]
        (decoded,) = selector.decode(compressed_data.compressed_bytes).values()
        # A copy, as the decoded array may be read-only.
        with _in_64_bits():
            return to_library(np.array(decoded), compressed_data.like)

    def optimize_system(self, strategy: OptimizationStrategy) -> None:
        """Choose which tensors JAX decodes from now on.

        Raises:
            ValueError: it is not such a strategy.
        """
        self._strategy = OptimizationStrategy(strategy)
        profile = CompressionProfile(strategy=self._strategy.value)
        self.components["strategy_selector"] = self.selector_for(profile)

    def selector_for(self, profile: CompressionProfile) -> StrategySelector:
        """Return the decoder of files for a profile, with these components."""
        return StrategySelector(profile, self.components.get("jax_strategy"))

    def get_system_status(self) -> dict[str, Any]:
        """Return the parts in use, and the measurements so far."""
        components: dict[str, Any] = {"registered": sorted(self.components)}
        if "jax_device_manager" in self.components:
            components |= {
                "jax_backend": self.components["jax_device_manager"].backend,
                "jax_memory_used_bytes": self.components["jax_memory_pool"].used_bytes,
            }
        monitor = self.components["performance_monitor"]
        return {
            "components": components,
            "optimization_strategy": self._strategy.name,
            "metrics": {m.name: found.value for m, found in monitor.newest.items()},
            "alerts": monitor.get_alerts(),
        }


def _empty_like(tensor: Any) -> Any:
    if hasattr(tensor, "new_empty"):  # torch
        return tensor.new_empty(0)
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(tensor, jax.Array):
        return jax.ShapeDtypeStruct((), tensor.dtype, sharding=tensor.sharding)
    return np.empty(0, tensor.dtype)


def _in_64_bits() -> contextlib.AbstractContextManager[Any]:
    """Let JAX, where it is imported, keep all bits of float64 arrays."""
    jax = sys.modules.get("jax")
    return contextlib.nullcontext() if jax is None else jax.enable_x64(True)
