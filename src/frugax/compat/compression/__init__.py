"""The names of the guide "JAX integration", as thin adapters over this room.

Start at `ModelCompressionAPI` for a torch model, or at `SystemIntegrationCoordinator`
for single tensors. torch and JAX are imported when they are met. What each name does,
and what the guide promised and nothing does: docs/compat/compression.md.
"""

from ._api import ModelCompressionAPI
from ._compressed_model import CompressedModel
from ._coordinator import (
    CompressedData,
    CompressionResult,
    SystemIntegrationCoordinator,
)
from ._csr import CsrMatrix
from ._monitor import (
    Measurement,
    MetricType,
    MonitorConfig,
    PipelineType,
    UnifiedPerformanceMonitor,
)
from ._profile import CompressionProfile
from ._selector import StrategySelector, TensorAnalysis
from ._system import OptimizationStrategy, SystemConfiguration

__all__ = [
    "CompressedData",
    "CompressedModel",
    "CompressionProfile",
    "CompressionResult",
    "CsrMatrix",
    "Measurement",
    "MetricType",
    "ModelCompressionAPI",
    "MonitorConfig",
    "OptimizationStrategy",
    "PipelineType",
    "StrategySelector",
    "SystemConfiguration",
    "SystemIntegrationCoordinator",
    "TensorAnalysis",
    "UnifiedPerformanceMonitor",
]
