"""Keep measurements of compressions: metrics, thresholds, alerts.

A metric that nobody recorded is None, never 0.
"""

import dataclasses
import enum
import math
import os
import time
from collections import deque
from typing import Any

from frugax.budget import to_json
from frugax.fileio import write_whole


class MetricType(enum.Enum):
    """The meaning of a number; the value names its unit."""

    THROUGHPUT = "bytes per second"
    LATENCY = "milliseconds"
    COMPRESSION_RATIO = "bytes of the weights over bytes of the file"
    MEMORY_USAGE = "MB"
    ERROR_RATE = "share of operations that failed"
    ACCURACY = "1 - relative error"
    JAX_COMPILATION = "milliseconds that JAX compiled"
    JAX_CACHE_HITS = "share of programs that were compiled already"
    JAX_MEMORY_POOL = "MB of the pool in use at most"


class PipelineType(enum.Enum):
    """The strategy that did the work."""

    PADIC = "padic"
    TROPICAL = "tropical"
    HYBRID = "hybrid"
    JAX = "jax"
    NUMPY = "numpy"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """How much is kept, and the thresholds of alerts.

    Attributes:
        history_window_size: newest records kept of each metric; >= 1.
        latency_threshold_ms: alert above it.
        memory_threshold_mb: alert above it.
        error_rate_threshold: alert above it.
        jax_compilation_threshold_ms: alert above it.
        jax_cache_hit_threshold: alert below it.
    """

    history_window_size: int = 1000
    latency_threshold_ms: float = 100.0
    memory_threshold_mb: float = 8192.0
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
            MetricType.MEMORY_USAGE: ("above", self.memory_threshold_mb),
            MetricType.ERROR_RATE: ("above", self.error_rate_threshold),
            MetricType.JAX_COMPILATION: ("above", self.jax_compilation_threshold_ms),
            MetricType.JAX_CACHE_HITS: ("below", self.jax_cache_hit_threshold),
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One number.

    Attributes:
        metric: the meaning of the number.
        pipeline: the strategy that did the work.
        value: the number, in the metric's unit.
        at_s: seconds since 1970.
    """

    metric: MetricType
    pipeline: PipelineType
    value: float
    at_s: float


@dataclasses.dataclass(frozen=True, slots=True)
class Agreement:
    """How close two models' answers are on the given data, not on other data.

    Attributes:
        same_frac: the share of rows whose largest output is in the same place.
        rel_error: ||outputs - original outputs|| / ||original outputs||.
    """

    same_frac: float
    rel_error: float


class UnifiedPerformanceMonitor:
    """Keeps the newest measurements and names those beyond their threshold.

    Args:
        config: thresholds and how much to keep.
    """

    def __init__(self, config: MonitorConfig | None = None) -> None:
        self.config = config or MonitorConfig()
        self._kept: dict[MetricType, deque[Measurement]] = {}

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
            pipeline: the strategy that did the work.

        Raises:
            ValueError: it is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"{metric.name} must be a finite number, got {value}.")
        # A deque with a length: old measurements fall out at the other end, so a
        # long-lived process does not grow.
        kept = self._kept.setdefault(
            metric, deque(maxlen=self.config.history_window_size)
        )
        kept.append(Measurement(metric, pipeline, float(value), time.time()))

    def record_jax_metrics(
        self,
        *,
        compilation_time_ms: float,
        cache_hit_rate: float,
        memory_pool_usage_mb: float,
    ) -> None:
        """Keep the three numbers of one operation by JAX.

        Raises:
            ValueError: one is not finite.
        """
        for metric, value in (
            (MetricType.JAX_COMPILATION, compilation_time_ms),
            (MetricType.JAX_CACHE_HITS, cache_hit_rate),
            (MetricType.JAX_MEMORY_POOL, memory_pool_usage_mb),
        ):
            self.record_metric(metric, value, PipelineType.JAX)

    def latest(self, metric: MetricType) -> float | None:
        """Return the newest number; None without one.

        Raises:
            TypeError: `metric` is not a `MetricType`.
        """
        # A name would find nothing, as if nothing had been measured.
        if not isinstance(metric, MetricType):
            known = ", ".join(m.name for m in MetricType)
            raise TypeError(
                f"metric must be a MetricType, such as MetricType.LATENCY, got "
                f"{metric!r}; there are {known}."
            )
        kept = self._kept.get(metric)
        if not kept:
            return None
        return kept[-1].value

    def get_current_metrics(self) -> dict[str, float]:
        """Return the newest number of every metric that was measured."""
        return {metric.name: kept[-1].value for metric, kept in self._kept.items()}

    def get_statistics(self) -> dict[str, dict[str, float]]:
        """Return count, mean, minimum and maximum of each metric's kept numbers."""
        statistics: dict[str, dict[str, float]] = {}
        for metric, kept in self._kept.items():
            values = [measured.value for measured in kept]
            statistics[metric.name] = {
                "count": len(values),
                # fsum rounds once, so the mean does not depend on the order of the
                # numbers.
                "mean": math.fsum(values) / len(values),
                "min": min(values),
                "max": max(values),
            }
        return statistics

    def mean(self, metric: MetricType, pipeline: PipelineType) -> float | None:
        """Return the mean of one pipeline's measurements; None without one."""
        kept = [m.value for m in self._kept.get(metric, ()) if m.pipeline is pipeline]
        if not kept:
            return None
        return math.fsum(kept) / len(kept)

    def get_alerts(self) -> list[str]:
        """Return a sentence for each metric whose newest number is beyond its limit."""
        alerts: list[str] = []
        for metric, (side, limit) in self.config.limits.items():
            value = self.latest(metric)
            # A metric without measurements gives no alert: nothing is known to be
            # wrong.
            if value is None:
                continue
            beyond = value > limit if side == "above" else value < limit
            if beyond:
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

    def export_metrics(self, path: str | os.PathLike[str]) -> None:
        """Write every kept measurement as JSON, whole or not at all.

        Raises:
            OutputError: the file could not be written.
        """
        rows = [
            {
                "metric": m.metric.name,
                "pipeline": m.pipeline.name,
                "value": m.value,
                "at_s": m.at_s,
            }
            for kept in self._kept.values()
            for m in kept
        ]
        write_whole(path, to_json(rows, indent=1) + "\n")
