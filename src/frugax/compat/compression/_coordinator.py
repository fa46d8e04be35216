"""Compress single tensors to files in memory, and back: the guide's coordinator."""

import dataclasses
import sys
import time
from typing import Any

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedFile, compress
from frugax.compress.arrays import named_arrays, to_library
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree, is_array

from ._monitor import MetricType, MonitorConfig, PipelineType, UnifiedPerformanceMonitor
from ._selector import MIN_DEVICE_SIZE, StrategySelector, has_jax
from ._settings import CompressionProfile, OptimizationStrategy, SystemConfiguration


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CompressedData:
    """A tensor's file in memory.

    Attributes:
        compressed_bytes: the bytes of an `.fxz` file, which any reader takes.
        like: the library, dtype and device of the original, without its values.
    """

    compressed_bytes: bytes
    like: Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompressionResult:
    """The result of compressing one tensor; every number is measured.

    Attributes:
        compressed_data: the file in memory.
        compression_ratio: bytes of the tensor over bytes of the file.
        compression_time: seconds for searching and coding.
        decompression_time: seconds for decoding it again, which is always done.
        processing_mode: the library that decoded.
        success: whether the file is at the target ratio.
        error: why not, and the way out; None if it is.
        rel_error: ||decoded - original|| / ||original||.
    """

    compressed_data: CompressedData
    compression_ratio: float
    compression_time: float
    decompression_time: float
    processing_mode: PipelineType
    success: bool
    error: InfeasibleBudgetError | None
    rel_error: float


class SystemIntegrationCoordinator:
    """Compresses single tensors at a target ratio, decoded by JAX where it is worth it.

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
        self.components = self._initialize_jax_components(monitor)
        self._monitor: UnifiedPerformanceMonitor = self.components.get(
            "jax_performance_monitor"
        ) or UnifiedPerformanceMonitor(monitor)
        self.components["performance_monitor"] = self._monitor
        ratio = self.config.target_compression_ratio
        self.components["strategy_selector"] = StrategySelector(
            CompressionProfile(target_compression_ratio=ratio),
            enable_jax="jax_strategy" in self.components,
        )

    def compress(self, tensor: PyTree) -> CompressionResult:
        """Make the file of one tensor, and decode it again.

        A tensor that cannot be made as small as the target is coded without loss, and
        its result has no `success`.

        Args:
            tensor: of torch, JAX or NumPy; it is only read.

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
        started, error = time.perf_counter(), None
        try:
            data = compress(
                array, SizeBudget(ratio=self.config.target_compression_ratio)
            )
        except InfeasibleBudgetError as e:
            # A caller who asked for a ratio gets a file in any case, and `success` says
            # which.
            data, error = compress(array, SizeBudget(max_abs=0)), e
        coded = time.perf_counter()
        # Decoding at once is the proof that the file is readable.
        _, pipeline = self._decode(data)
        done = time.perf_counter()
        result = CompressionResult(
            compressed_data=CompressedData(bytes(data), _without_values(tensor)),
            compression_ratio=array.nbytes / len(data),
            compression_time=coded - started,
            decompression_time=done - coded,
            processing_mode=pipeline,
            success=error is None,
            error=error,
            rel_error=data.report.rel_error,
        )
        for metric, value in (
            (MetricType.LATENCY, 1e3 * (done - started)),
            (MetricType.COMPRESSION_RATIO, result.compression_ratio),
            (MetricType.ERROR_RATE, float(not result.success)),
        ):
            self._monitor.record_metric(metric, value, pipeline)
        return result

    def decompress(self, compressed_data: CompressedData | bytes) -> Any:
        """Decode the data of `compress`, in the library that the tensor came from.

        Args:
            compressed_data: from a result; or the bytes of a file of one tensor,
                which come back as a NumPy array.

        Raises:
            CorruptFileError: the bytes are damaged.
            TypeError: it is neither.
            UnsupportedFileError: they are not an `.fxz` file, or of a newer version.
        """
        if isinstance(compressed_data, bytes):
            return self._decode(compressed_data)[0]
        # Callers are checked at run time, whatever their annotations say.
        if not isinstance(compressed_data, CompressedData):
            raise TypeError(
                "decompress needs result.compressed_data, or the bytes of a file, got "
                f"a {type(compressed_data).__name__}."
            )
        array, _ = self._decode(compressed_data.compressed_bytes)
        if (jax := sys.modules.get("jax")) is None:
            return to_library(array, compressed_data.like)
        # Without it a float64 array of JAX would come back as float32.
        with jax.enable_x64(True):
            return to_library(array, compressed_data.like)

    def optimize_system(self, strategy: OptimizationStrategy) -> None:
        """Change who decodes from now on; see `OptimizationStrategy`.

        Raises:
            TypeError: it is not such a strategy.
        """
        if not isinstance(strategy, OptimizationStrategy):
            raise TypeError(
                f"strategy must be an OptimizationStrategy, got {strategy!r}."
            )
        self._preference = strategy

    def get_system_status(self) -> dict[str, Any]:
        """Return the parts in use, and the measurements so far."""
        components: dict[str, Any] = {"registered": sorted(self.components)}
        if "jax_strategy" in self.components:
            devices = self.components["jax_device_manager"].devices
            pool = self.components["jax_memory_pool"]
            components |= {
                "jax_backend": devices[0].platform,
                "jax_devices": [str(device) for device in devices],
                "jax_memory_limit_bytes": pool.limit_bytes,
                "jax_memory_most_bytes": pool.most_bytes,
                "jax_programs": len(self.components["jax_compilation_optimizer"]),
            }
        return {
            "components": components,
            "optimization_strategy": self._preference.value,
            "metrics": self._monitor.get_statistics(),
            "alerts": self._monitor.get_alerts(),
        }

    def _initialize_jax_components(
        self, monitor: MonitorConfig | None
    ) -> dict[str, Any]:
        # The parts that import JAX are loaded only here, so that NumPy alone is enough
        # for the rest.
        if not (self.config.enable_jax and has_jax()):
            return {}
        from ._jax_parts import make_jax_parts

        return make_jax_parts(self.config, monitor)

    def _decode(self, data: bytes) -> tuple[np.ndarray, PipelineType]:
        strategy = self.components.get("jax_strategy")
        with CompressedFile(data, place="these bytes") as file:
            file.check()
            (name,) = file.names
            always = self._preference is OptimizationStrategy.JAX_ACCELERATED
            # A small tensor does not repay its transfer.
            large = file.record(name).size >= MIN_DEVICE_SIZE
            if strategy is None or not (always or large):
                return file[name], PipelineType.NUMPY
            with self.components["jax_performance_monitor"].operation():
                decoded = strategy.decode(file, name)
            # A copy, since NumPy's view of JAX's memory is read-only.
            return np.array(decoded), PipelineType.JAX


def _without_values(tensor: Any) -> Any:
    """Return what `to_library` reads of a tensor; a view would keep its memory."""
    # A tensor of a library exists only if that library is imported.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return tensor.detach().new_empty(0)
    if jax is not None and isinstance(tensor, jax.Array):
        return jax.ShapeDtypeStruct(
            tensor.shape, tensor.dtype, sharding=tensor.sharding
        )
    return np.empty(0, tensor.dtype)
