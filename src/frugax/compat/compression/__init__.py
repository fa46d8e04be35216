"""The names of the guide "JAX integration", as thin adapters over `frugax.compress`.

Start at `ModelCompressionAPI` for a torch model, or at `SystemIntegrationCoordinator`
for single tensors. torch and JAX are imported only when they are needed. The guide's
promises, and which of them hold: docs/compat/compression.md.
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
from ._selector import StrategySelector, TensorAnalysis
from ._settings import (
    CompressionProfile,
    OptimizationStrategy,
    SystemConfiguration,
)

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
