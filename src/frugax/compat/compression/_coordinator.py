"""Compress single tensors to files in memory, and back: the guide's coordinator."""

import dataclasses
import itertools
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from frugax.budget import SizeBudget
from frugax.compress import CompressedFile, compress
from frugax.compress.arrays import named_arrays
from frugax.errors import InfeasibleBudgetError
from frugax.trees import PyTree, is_array

from ._monitor import MetricType, MonitorConfig, PipelineType, UnifiedPerformanceMonitor
from ._selector import MIN_DEVICE_SIZE, StrategySelector, has_jax
from ._settings import CompressionProfile, OptimizationStrategy, SystemConfiguration

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
    library: Library
    device: str = "cpu"

    def get_size_bytes(self) -> int:
        """Return the length of the file: nothing else is kept."""
        return len(self.compressed_bytes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompressionResult:
    """The result of compressing one tensor; every number is measured.

    Attributes:
        request_id: counts the calls of this coordinator.
        compressed_data: the file in memory.
        compression_ratio: bytes of the tensor over bytes of the file.
        compression_time: seconds for searching and coding.
        decompression_time: seconds for decoding it again, which is always done.
        processing_mode: the decoder: "jax" or "numpy".
        memory_used_mb: bytes of tensor and file, in MB.
        success: whether the file is at the target ratio.
        error: why not, and the way out; None if it is.
        rel_error: ||decoded - original|| / ||original||.
        metadata: the caller's metadata.
    """

    request_id: int
    compressed_data: CompressedData
    compression_ratio: float
    compression_time: float
    decompression_time: float
    processing_mode: str
    memory_used_mb: float
    success: bool
    error: str | None
    rel_error: float
    metadata: Mapping[str, Any]


class SystemIntegrationCoordinator:
    """Compresses single tensors at a target ratio, by JAX where it is worth it.

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
        self._requests = itertools.count(1)
        self.components: dict[str, Any] = {}
        # The parts that import JAX are loaded only here, so that NumPy alone is enough
        # for the rest.
        use_jax = self.config.enable_jax and has_jax(requester="enable_jax")
        if use_jax:
            from ._jax_strategy import make_jax_parts

            self.components |= make_jax_parts(self.config, monitor)
            self._monitor = self.components["jax_performance_monitor"]
        else:
            self._monitor = UnifiedPerformanceMonitor(monitor)
        self.components["performance_monitor"] = self._monitor
        self.components["strategy_selector"] = StrategySelector(
            CompressionProfile(
                target_compression_ratio=self.config.target_compression_ratio
            ),
            enable_jax=use_jax,
        )

    def compress(
        self, tensor: PyTree, metadata: Mapping[str, Any] | None = None
    ) -> CompressionResult:
        """Make the file of one tensor, and decode it again.

        A tensor that cannot be made as small as the target is coded without loss, and
        its result has no `success`.

        Args:
            tensor: of torch, JAX or NumPy; it is only read.
            metadata: kept in the result.

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
            # A caller who asked for a ratio gets a file in any case, and `success` says
            # which.
            data, error = compress(array, SizeBudget(max_abs=0)), str(e)
        coded = time.perf_counter()
        by_jax = self._prefers_jax(data)
        # Decoding at once is the proof that the file is readable; its time goes into
        # the metrics that ADAPTIVE compares.
        decoded = np.asarray(self._decode(data, by_jax=by_jax))
        done = time.perf_counter()
        result = CompressionResult(
            request_id=next(self._requests),
            compressed_data=CompressedData(bytes(data), *_origin(tensor)),
            compression_ratio=array.nbytes / len(data),
            compression_time=coded - started,
            decompression_time=done - coded,
            processing_mode="jax" if by_jax else "numpy",
            memory_used_mb=(array.nbytes + decoded.nbytes + len(data)) / 1e6,
            success=error is None,
            error=error,
            rel_error=data.report.rel_error,
            metadata=dict(metadata or {}),
        )
        self._record(result, array.nbytes)
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
            # Bare bytes do not say where the tensor came from; NumPy is always here.
            compressed_data = CompressedData(compressed_data, "numpy")
        # Callers are checked at run time, whatever their annotations promise.
        if not isinstance(compressed_data, CompressedData):
            raise TypeError(
                "decompress needs result.compressed_data, or the bytes of a file, got "
                f"a {type(compressed_data).__name__}."
            )
        data = compressed_data.compressed_bytes
        by_jax = self._prefers_jax(data)
        decoded = self._decode(data, by_jax=by_jax)
        if compressed_data.library == "numpy":
            # A copy, since the decoded array may be a read-only view of JAX's memory.
            return np.array(decoded)
        if compressed_data.library == "torch":
            from ._torch import from_dlpack, to_tensor

            # Nobody else holds the decoded array: torch may have its memory.
            tensor = from_dlpack(decoded, copy=False) if by_jax else to_tensor(decoded)
            return tensor.to(compressed_data.device)
        import jax

        # Without it a float64 tensor would come back as float32.
        with jax.enable_x64(True):
            return jax.numpy.asarray(decoded)

    def optimize_system(self, strategy: OptimizationStrategy) -> None:
        """Change the preference from now on; see `OptimizationStrategy`.

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
            pool = self.components["jax_memory_pool"]
            devices = self.components["jax_device_manager"]
            components |= {
                "jax_backend": devices.backend,
                "jax_devices": [str(device) for device in devices.devices],
                "jax_memory_pool": {
                    "limit_bytes": pool.limit_bytes,
                    "most_bytes": pool.most_bytes,
                    "device_bytes": pool.device_bytes,
                },
                "jax_programs": len(self.components["jax_compilation_optimizer"]),
            }
        return {
            "components": components,
            "optimization_strategy": self._preference.value,
            "metrics": self._monitor.get_current_metrics(),
            "alerts": self._monitor.get_alerts(),
        }

    def _prefers_jax(self, data: bytes) -> bool:
        """Whether JAX decodes this file."""
        strategy = self.components.get("jax_strategy")
        if strategy is None:
            return False
        with CompressedFile(data, place="these bytes") as file:
            record = file.header.tensors[0]
        preference = self._preference
        if preference is OptimizationStrategy.JAX_ACCELERATED:
            return True
        if preference is OptimizationStrategy.LATENCY:
            # A compilation takes far longer than a decoding by NumPy, so only programs
            # that another preference has compiled are used.
            return strategy.is_compiled(record)
        if preference is OptimizationStrategy.ADAPTIVE:
            speed_jax, speed_numpy = (
                self._monitor.mean(MetricType.THROUGHPUT, pipeline)
                for pipeline in (PipelineType.JAX, PipelineType.NUMPY)
            )
            # Each is tried once before they are compared.
            if speed_jax is None or speed_numpy is None:
                return speed_jax is None
            return speed_jax > speed_numpy
        # BALANCED, THROUGHPUT and MEMORY: a small tensor does not repay its transfer.
        return record.size >= MIN_DEVICE_SIZE

    def _decode(self, data: bytes, *, by_jax: bool) -> Any:
        with CompressedFile(data, place="these bytes") as file:
            file.check()
            (name,) = file.names
            if not by_jax:
                return file[name]
            with self.components["jax_performance_monitor"].operation():
                return self.components["jax_strategy"].decode(file, name)

    def _record(self, result: CompressionResult, nbytes: int) -> None:
        pipeline = PipelineType.NUMPY
        if result.processing_mode == "jax":
            pipeline = PipelineType.JAX
        seconds = result.compression_time + result.decompression_time
        for metric, value in (
            (MetricType.LATENCY, 1e3 * seconds),
            (MetricType.THROUGHPUT, nbytes / max(result.decompression_time, 1e-9)),
            (MetricType.COMPRESSION_RATIO, result.compression_ratio),
            (MetricType.MEMORY_USAGE, result.memory_used_mb),
            (MetricType.ERROR_RATE, float(not result.success)),
            (MetricType.ACCURACY, 1 - result.rel_error),
        ):
            self._monitor.record_metric(metric, value, pipeline)


def _origin(tensor: Any) -> tuple[Library, str]:
    """Return the library of a tensor, and its device in torch."""
    # A tensor of a library exists only if that library is imported, so an import here
    # would cost time and tell nothing new.
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(tensor, torch.Tensor):
        return "torch", str(tensor.device)
    if jax is not None and isinstance(tensor, jax.Array):
        return "jax", "cpu"
    return "numpy", "cpu"
