"""The names of the guide "JAX integration", as thin adapters over `frugax.compress`.

Start at `ModelCompressionAPI` for a torch model, or at `SystemIntegrationCoordinator`
for single tensors. Guide: docs/compat/compression.md.

How it works. Every file is an `.fxz` file of `frugax.compress`, and a profile or a
configuration is only another way to write its `SizeBudget`. NumPy searches and codes,
whatever the strategy. JAX decodes: the integers of a tensor go to its device, one
product makes them weights, and their digest must be the one in the file. A model is a
file, and a copy of the module without its weights. torch and JAX are imported when a
tensor, a module or a configuration asks for them; without JAX, NumPy decodes the same
bits, and one warning says so.
"""

from ._coordinator import (
    CompressedData,
    CompressionResult,
    SystemIntegrationCoordinator,
)
from ._models import CompressedModel, ModelCompressionAPI
from ._monitor import (
    Alert,
    MetricType,
    MonitorConfig,
    PipelineType,
    UnifiedPerformanceMonitor,
)
from ._selector import StrategySelector, import_error
from ._settings import (
    CompressionProfile,
    OptimizationStrategy,
    SystemConfiguration,
)

__all__ = [
    "Alert",
    "CompressedData",
    "CompressedModel",
    "CompressionProfile",
    "CompressionResult",
    "MetricType",
    "ModelCompressionAPI",
    "MonitorConfig",
    "OptimizationStrategy",
    "PipelineType",
    "StrategySelector",
    "SystemConfiguration",
    "SystemIntegrationCoordinator",
    "UnifiedPerformanceMonitor",
]


def __getattr__(name: str) -> bool:
    # Found out when it is asked for, because importing JAX takes long.
    if name == "JAX_AVAILABLE":
        return import_error() is None
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
