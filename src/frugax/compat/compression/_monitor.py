"""Measurements of compressions: metrics, thresholds, alerts."""

import enum
from typing import NamedTuple


class MetricType(enum.Enum):
    """The meaning of a number; the value names its unit."""

    LATENCY = "milliseconds"
    COMPRESSION_RATIO = "bytes of the tensor over bytes of the file"
    JAX_COMPILATION = "milliseconds that JAX compiled"
    JAX_CACHE_HITS = "share of programs that were compiled already"
    JAX_MEMORY_POOL = "MB in use on the device"


class PipelineType(enum.Enum):
    """The library that decoded."""

    JAX = "jax"
    NUMPY = "numpy"


# The least and the greatest value of a metric that causes no alert.
_THRESHOLDS = {
    MetricType.LATENCY: (0.0, 100.0),
    MetricType.JAX_COMPILATION: (0.0, 500.0),
    MetricType.JAX_CACHE_HITS: (0.7, 1.0),
}


class Measurement(NamedTuple):
    """One number, its meaning, and who decoded."""

    metric: MetricType
    value: float
    pipeline: PipelineType


class UnifiedPerformanceMonitor:
    """Keeps the newest measurements and names those beyond their threshold.

    Attributes:
        newest: the newest measurement of every metric that was recorded.
        thresholds: the least and the greatest value without an alert, by metric; may be
            changed.
    """

    def __init__(self) -> None:
        self.newest: dict[MetricType, Measurement] = {}
        self.thresholds = dict(_THRESHOLDS)

    def record_metric(
        self,
        metric: MetricType,
        value: float,
        pipeline: PipelineType = PipelineType.NUMPY,
    ) -> None:
        """Keep one number, in the metric's unit."""
        self.newest[metric] = Measurement(metric, float(value), pipeline)

    def latest(self, metric: MetricType) -> float | None:
        """Return the newest number; None without one."""
        found = self.newest.get(metric)
        return None if found is None else found.value

    def get_alerts(self) -> list[Measurement]:
        """Return the newest measurements that are beyond their threshold."""
        return [
            self.newest[metric]
            for metric, (least, most) in self.thresholds.items()
            if metric in self.newest and not least <= self.newest[metric].value <= most
        ]
