from ._coordinator import (
    CompressedData as CompressedData,
    CompressionResult as CompressionResult,
    SystemIntegrationCoordinator as SystemIntegrationCoordinator,
)
from ._models import (
    CompressedModel as CompressedModel,
    ModelCompressionAPI as ModelCompressionAPI,
)
from ._monitor import (
    Measurement as Measurement,
    MetricType as MetricType,
    PipelineType as PipelineType,
    UnifiedPerformanceMonitor as UnifiedPerformanceMonitor,
)
from ._settings import (
    JAX_AVAILABLE as JAX_AVAILABLE,
    CompressionProfile as CompressionProfile,
    OptimizationStrategy as OptimizationStrategy,
    SystemConfiguration as SystemConfiguration,
)
from ._strategies import (
    StrategySelector as StrategySelector,
)
