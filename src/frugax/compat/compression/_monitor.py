"""Measurements of compressions: metrics, thresholds, alerts."""

import dataclasses
import enum
import math
import statistics
from collections import defaultdict, deque
from typing import Any


class MetricType(enum.Enum):
    """The meaning of a number; the value names its unit."""

    THROUGHPUT = "bytes per second"
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
        history_window_size: newest records kept of each metric; >= 1.
        latency_threshold_ms: alert above it.
        error_rate_threshold: alert above it.
        jax_compilation_threshold_ms: alert above it.
        jax_cache_hit_threshold: alert below it.
    """

    history_window_size: int = 1000
    latency_threshold_ms: float = 100.0
    error_rate_threshold: float = 0.05
    jax_compilation_threshold_ms: float = 500.0
    jax_cache_hit_threshold: float = 0.7

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.name == "history_window_size" else 0
            # Written so that NaN fails as well.
            if not value >= least:
                raise ValueError(f"{field.name} must be >= {least}, got {value}.")

    @property
    def limits(self) -> dict[MetricType, tuple[str, float]]:
        """The bad side of each watched metric, and its limit."""
        return {
            MetricType.LATENCY: ("above", self.latency_threshold_ms),
            MetricType.ERROR_RATE: ("above", self.error_rate_threshold),
            MetricType.JAX_COMPILATION: ("above", self.jax_compilation_threshold_ms),
            MetricType.JAX_CACHE_HITS: ("below", self.jax_cache_hit_threshold),
        }


class UnifiedPerformanceMonitor:
    """Keeps the newest measurements and names those beyond their threshold.

    A metric that nobody recorded is None, never 0.

    Args:
        config: thresholds and how much to keep.
    """

    def __init__(self, config: MonitorConfig | None = None) -> None:
        self.config = config or MonitorConfig()
        size = self.config.history_window_size
        self._kept = defaultdict[MetricType, deque[tuple[PipelineType, float]]](
            lambda: deque(maxlen=size)
        )

    def record_metric(
        self,
        metric: MetricType,
        value: float,
        pipeline: PipelineType = PipelineType.NUMPY,
    ) -> None:
        """Keep one number, in the metric's unit.

        Raises:
            ValueError: it is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{metric.name} must be a finite number, got {value}.")
        self._kept[metric].append((pipeline, float(value)))

    def latest(self, metric: MetricType) -> float | None:
        """Return the newest number; None without one.

        Raises:
            TypeError: `metric` is not a `MetricType`.
        """
        # A name would find nothing, as if nothing had been measured.
        if not isinstance(metric, MetricType):
            raise TypeError(
                f"metric must be a MetricType, such as MetricType.LATENCY, got "
                f"{metric!r}."
            )
        return self._kept[metric][-1][1] if metric in self._kept else None

    def get_current_metrics(self) -> dict[str, float]:
        """Return the newest number of every metric that was measured."""
        return {metric.name: kept[-1][1] for metric, kept in self._kept.items()}

    def get_statistics(self) -> dict[str, dict[str, float]]:
        """Return count, mean, minimum and maximum of each metric's kept numbers."""
        found: dict[str, dict[str, float]] = {}
        for metric, kept in self._kept.items():
            values = [value for _, value in kept]
            found[metric.name] = {
                "count": len(values),
                "mean": statistics.fmean(values),
                "min": min(values),
                "max": max(values),
            }
        return found

    def get_alerts(self) -> list[str]:
        """Return a sentence for each metric whose newest number is beyond its limit."""
        alerts: list[str] = []
        for metric, (side, limit) in self.config.limits.items():
            value = self.latest(metric)
            if value is not None and (
                value > limit if side == "above" else value < limit
            ):
                alerts.append(
                    f"{metric.name} is {value:.4g}, {side} its threshold {limit:g} "
                    f"({metric.value})."
                )
        return alerts

    def generate_report(self) -> dict[str, Any]:
        """Return statistics, alerts and the metrics that were not measured."""
        return {
            "statistics": self.get_statistics(),
            "alerts": self.get_alerts(),
            "not_measured": [m.name for m in MetricType if m not in self._kept],
        }
