"""Keep measurements of compressions: metrics, thresholds, alerts.

A metric that nobody recorded is None, never 0.
"""

import dataclasses
import enum
import math
import statistics
from collections import deque


class MetricType(enum.Enum):
    """The meaning of a number; the value names its unit."""

    LATENCY = "milliseconds"
    COMPRESSION_RATIO = "bytes of the weights over bytes of the file"
    ERROR_RATE = "share of operations that failed"
    JAX_COMPILATION = "milliseconds that JAX compiled"
    JAX_CACHE_HITS = "share of programs that were compiled already"
    JAX_MEMORY_POOL = "MB of the pool in use at most"


class PipelineType(enum.Enum):
    """The library that decoded."""

    JAX = "jax"
    NUMPY = "numpy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """How much is kept, and the thresholds of alerts.

    Attributes:
        history_window_size: newest numbers kept of each metric and pipeline; >= 1.
        latency_threshold_ms: alert above it.
        error_rate_threshold: alert above it.
        jax_compilation_threshold_ms: alert above it.
        jax_cache_hit_threshold: alert below it.
        jax_memory_pool_threshold_mb: alert above it.

    Raises:
        ValueError: a field is negative or not a number; the message names it.
    """

    history_window_size: int = 1000
    latency_threshold_ms: float = 100.0
    error_rate_threshold: float = 0.05
    jax_compilation_threshold_ms: float = 500.0
    jax_cache_hit_threshold: float = 0.7
    jax_memory_pool_threshold_mb: float = 8192.0

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            least = 1 if name == "history_window_size" else 0
            # Written so that NaN fails as well.
            if not value >= least:
                raise ValueError(f"{name} must be >= {least}, got {value}.")

    @property
    def thresholds(self) -> dict[MetricType, float]:
        """The threshold of each watched metric."""
        return {
            MetricType.LATENCY: self.latency_threshold_ms,
            MetricType.ERROR_RATE: self.error_rate_threshold,
            MetricType.JAX_COMPILATION: self.jax_compilation_threshold_ms,
            MetricType.JAX_CACHE_HITS: self.jax_cache_hit_threshold,
            MetricType.JAX_MEMORY_POOL: self.jax_memory_pool_threshold_mb,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Alert:
    """A metric whose newest number is on the bad side of its threshold.

    Attributes:
        metric: which one.
        value: its newest number, in the metric's unit.
        threshold: the limit, in the same unit.
    """

    metric: MetricType
    value: float
    threshold: float

    def __str__(self) -> str:
        return (
            f"{self.metric.name} is {self.value:.4g}; its threshold is "
            f"{self.threshold:g} ({self.metric.value})."
        )


class UnifiedPerformanceMonitor:
    """Keeps the newest measurements and names those beyond their threshold.

    Args:
        config: thresholds and how much to keep.
    """

    def __init__(self, config: MonitorConfig | None = None) -> None:
        self.config = config or MonitorConfig()
        self._kept: dict[MetricType, deque[tuple[PipelineType, float]]] = {}

    def record_metric(
        self,
        metric: MetricType,
        value: float,
        pipeline: PipelineType = PipelineType.NUMPY,
    ) -> None:
        """Keep one number.

        Args:
            metric: the meaning of the number.
            value: the number, in the metric's unit.
            pipeline: the library that did the work.

        Raises:
            ValueError: it is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{metric.name} must be a finite number, got {value}.")
        # A deque with a length: a long-lived process does not grow.
        empty = deque[tuple[PipelineType, float]](
            maxlen=self.config.history_window_size
        )
        self._kept.setdefault(metric, empty).append((pipeline, float(value)))

    def latest(self, metric: MetricType) -> float | None:
        """Return the newest number; None without one.

        Raises:
            TypeError: `metric` is not a `MetricType`.
        """
        # A name would find nothing, as if nothing had been measured.
        if not isinstance(metric, MetricType):
            raise TypeError(
                "metric must be a MetricType, such as MetricType.LATENCY, got "
                f"{metric!r}."
            )
        kept = self._kept.get(metric)
        return kept[-1][1] if kept else None

    def get_statistics(
        self, pipeline: PipelineType | None = None
    ) -> dict[str, dict[str, float]]:
        """Return count, mean, minimum and maximum of each metric's kept numbers.

        Args:
            pipeline: only those of one library; by default of both.
        """
        chosen = {
            metric.name: [v for p, v in kept if pipeline in (None, p)]
            for metric, kept in self._kept.items()
        }
        return {
            name: {
                "count": len(values),
                "mean": statistics.fmean(values),
                "min": min(values),
                "max": max(values),
            }
            for name, values in chosen.items()
            if values
        }

    def get_alerts(self) -> list[Alert]:
        """Return the metrics whose newest number is beyond its threshold."""
        alerts: list[Alert] = []
        for metric, threshold in self.config.thresholds.items():
            # A metric without measurements gives no alert: nothing is known to be
            # wrong.
            if (value := self.latest(metric)) is None:
                continue
            # Of all these only the hit rate is better when it is high.
            high_is_good = metric is MetricType.JAX_CACHE_HITS
            if value < threshold if high_is_good else value > threshold:
                alerts.append(Alert(metric, value, threshold))
        return alerts
