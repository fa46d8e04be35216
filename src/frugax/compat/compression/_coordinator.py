"""Compress single tensors to files in memory, and back."""

import dataclasses
import sys
import time
from typing import Any, Literal

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedFile, compress
from frugax.compress.arrays import named_arrays
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree, is_array

from ._models import MIN_DEVICE_SIZE, StrategySelector
from ._monitor import MetricType, MonitorConfig, PipelineType, UnifiedPerformanceMonitor
from ._settings import OptimizationStrategy, SystemConfiguration, has_jax

Library = Literal["numpy", "torch", "jax"]


@dataclasses.dataclass(frozen=True, slots=True)
class CompressedData:
    """A tensor's file in memory.

    Attributes:
        compressed_bytes: the bytes of an `.fxz` file, which any reader takes.
        library: the tensor's library, in which it comes back.
        device: the tensor's device in torch.
    """

    compressed_bytes: bytes
    library: Library = "numpy"
    device: str = "cpu"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    """The result of compressing one tensor; every number is measured.

    Attributes:
        compressed_data: the file in memory.
        compression_ratio: bytes of the tensor over bytes of the file.
        compression_time: seconds for searching and coding.
        decompression_time: seconds for decoding it again, which is always done.
        processing_mode: the decoder: "jax" or "numpy".
        success: whether the file is at the target ratio.
        error: why not, and the way out; None if it is.
        rel_error: ||decoded - original|| / ||original||.
    """

    compressed_data: CompressedData
    compression_ratio: float
    compression_time: float
    decompression_time: float
    processing_mode: str
    success: bool
    error: str | None
    rel_error: float


class SystemIntegrationCoordinator:
    """Compresses single tensors at a target ratio, and decodes them by JAX or NumPy.

    Attributes:
        components: the parts by name. The nine that begin with `jax_` are there if
            JAX is enabled and installed.
        config: the resources.

    Args:
        config: the resources; by default `SystemConfiguration()`.
        monitor: thresholds for alerts.
    """

    def __init__(
        self,
        config: SystemConfiguration | None = None,
        *,
        monitor: MonitorConfig | None = None,
    ) -> None:
        """Look for JAX and its devices.

        Raises:
            ConfigError: JAX has no such device, or too few.
        """
        self.config = config or SystemConfiguration()
        self._preference = self.config.optimization_strategy
        self.components: dict[str, Any] = {"strategy_selector": StrategySelector()}
        if self.config.enable_jax and has_jax():
            from ._jax_parts import make_jax_parts

            self.components |= make_jax_parts(self.config, monitor)
        self._monitor: UnifiedPerformanceMonitor = self.components.get(
            "jax_performance_monitor"
        ) or UnifiedPerformanceMonitor(monitor)
        self.components["performance_monitor"] = self._monitor

    def compress(self, tensor: PyTree) -> CompressionResult:
        """Make the file of one tensor, and decode it again.

        A tensor that cannot be made as small as the target is coded without loss, and
        its result has no `success`.

        Raises:
            CorruptFileError: JAX and NumPy do not decode the same bits.
            TypeError: it is not a tensor, or has a dtype that a file cannot hold.
        """
        if not is_array(tensor):
            raise TypeError(
                f"compress needs one tensor of NumPy, JAX or torch, got a "
                f"{type(tensor).__name__}: trees go to frugax.compress.save."
            )
        (array,) = named_arrays([tensor]).values()
        ratio = self.config.target_compression_ratio
        if self._preference is OptimizationStrategy.MEMORY:
            ratio *= 2
        started, error = time.perf_counter(), None
        try:
            data = compress(array, SizeBudget(ratio=ratio))
        except InfeasibleBudgetError as e:
            data, error = compress(array, SizeBudget(max_abs=0)), str(e)
        coded = time.perf_counter()
        _, by_jax = self._decode(bytes(data))
        result = CompressionResult(
            compressed_data=CompressedData(bytes(data), *_origin(tensor)),
            compression_ratio=array.nbytes / len(data),
            compression_time=coded - started,
            decompression_time=time.perf_counter() - coded,
            processing_mode="jax" if by_jax else "numpy",
            success=error is None,
            error=error,
            rel_error=data.report.rel_error,
        )
        seconds = result.compression_time + result.decompression_time
        for metric, value in (
            (MetricType.LATENCY, 1e3 * seconds),
            (MetricType.THROUGHPUT, array.nbytes / max(seconds, 1e-9)),
            (MetricType.COMPRESSION_RATIO, result.compression_ratio),
            (MetricType.ERROR_RATE, float(not result.success)),
        ):
            pipeline = PipelineType.JAX if by_jax else PipelineType.NUMPY
            self._monitor.record_metric(metric, value, pipeline)
        return result

    def decompress(self, compressed_data: CompressedData | bytes) -> Any:
        """Decode the data of `compress`, in the library that the tensor came from.

        Args:
            compressed_data: from a result; or the bytes of a file of one tensor,
                which come back as a NumPy array.

        Raises:
            CorruptFileError: the bytes are damaged.
            UnsupportedFileError: they are not an `.fxz` file.
        """
        if isinstance(compressed_data, bytes):
            compressed_data = CompressedData(compressed_data)
        decoded, _ = self._decode(compressed_data.compressed_bytes)
        if compressed_data.library == "torch":
            from ._torch_tensors import to_torch

            return to_torch(decoded, compressed_data.device)
        if compressed_data.library == "jax":
            import jax

            with jax.enable_x64(True):  # or a float64 tensor would come back as float32
                return jax.numpy.asarray(decoded)
        return np.array(decoded)  # a copy: the decoded array may be read-only

    def optimize_system(self, strategy: OptimizationStrategy) -> None:
        """Change the preference from now on; see `OptimizationStrategy`.

        Raises:
            ValueError: it is not such a strategy.
        """
        self._preference = OptimizationStrategy(strategy)

    def get_system_status(self) -> dict[str, Any]:
        """Return the parts in use, and the measurements so far."""
        components: dict[str, Any] = {"registered": sorted(self.components)}
        if "jax_strategy" in self.components:
            pool = self.components["jax_memory_pool"]
            devices = self.components["jax_device_manager"]
            components |= {
                "jax_backend": devices.backend,
                "jax_devices": [str(device) for device in devices.devices],
                "jax_memory_limit_bytes": pool.limit_bytes,
                "jax_memory_used_bytes": pool.used_bytes,
                "jax_programs": len(self.components["jax_compilation_optimizer"]),
            }
        return {
            "components": components,
            "optimization_strategy": self._preference.value,
            "metrics": self._monitor.get_current_metrics(),
            "alerts": self._monitor.get_alerts(),
        }

    def _decode(self, data: bytes) -> tuple[np.ndarray, bool]:
        """The tensor of a file, and whether JAX decoded it."""
        with CompressedFile(data, place="these bytes") as file:
            file.check()
            (name,) = file.names
            is_large = file.record(name).size >= MIN_DEVICE_SIZE
            wants_jax = self._preference is OptimizationStrategy.JAX_ACCELERATED
            if "jax_strategy" not in self.components or not (is_large or wants_jax):
                return file[name], False
            with self.components["jax_performance_monitor"].operation():
                return self.components["jax_strategy"].decode(file, name), True


def _origin(tensor: Any) -> tuple[Library, str]:
    """Return the library of a tensor, and its device in torch."""
    # A tensor of a library exists only if that library is imported.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return "torch", str(tensor.device)
    if jax is not None and isinstance(tensor, jax.Array):
        return "jax", "cpu"
    return "numpy", "cpu"
