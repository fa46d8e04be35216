"""Names of the guide "JAX integration", over `frugax.compress`.

Start at `ModelCompressionAPI` for a torch model, or at `SystemIntegrationCoordinator`
for one tensor. Both write `.fxz` files by `frugax.compress`; what JAX does is to turn
the whole numbers of a file into weights, on its devices, and to prove by their digest
that every bit is that of NumPy. torch and JAX are imported when they are needed, and
without JAX one warning says that NumPy does its part.

Guide: docs/compat/compression.md.
"""

from importlib.util import find_spec as _find_spec

from ._coordinator import (
    CompressedData,
    CompressionResult,
    SystemIntegrationCoordinator,
)
from ._models import CompressedModel, ModelCompressionAPI
from ._monitor import (
    Measurement,
    MetricType,
    PipelineType,
    UnifiedPerformanceMonitor,
)
from ._settings import (
    CompressionProfile,
    OptimizationStrategy,
    SystemConfiguration,
)
from ._strategies import StrategySelector

# Found without importing it, which takes a second.
JAX_AVAILABLE = _find_spec("jax") is not None

__all__ = [
    "JAX_AVAILABLE",
    "CompressedData",
    "CompressedModel",
    "CompressionProfile",
    "CompressionResult",
    "Measurement",
    "MetricType",
    "ModelCompressionAPI",
    "OptimizationStrategy",
    "PipelineType",
    "StrategySelector",
    "SystemConfiguration",
    "SystemIntegrationCoordinator",
    "UnifiedPerformanceMonitor",
]
