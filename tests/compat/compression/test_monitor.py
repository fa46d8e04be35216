"""The guide's monitor: measured, never invented; alerts at stated thresholds."""

import contextlib

import jax
import pytest

from compression_nets import CPU, normal
from frugax.compat.compression import (
    Alert,
    MetricType,
    MonitorConfig,
    OptimizationStrategy,
    PipelineType,
    SystemConfiguration,
    SystemIntegrationCoordinator,
    UnifiedPerformanceMonitor,
)


def test_the_second_tensor_of_a_shape_reuses_the_program():
    coordinator = SystemIntegrationCoordinator(CPU)
    monitor = coordinator.components["jax_performance_monitor"]
    coordinator.compress(normal(256, 257))
    assert monitor.latest(MetricType.JAX_COMPILATION) > 0
    coordinator.compress(normal(256, 257))
    assert monitor.latest(MetricType.JAX_COMPILATION) == 0
    assert monitor.latest(MetricType.JAX_CACHE_HITS) == 1
    assert monitor.latest(MetricType.JAX_MEMORY_POOL) == pytest.approx(
        256 * 257 * 12 / 1e6
    )


def test_programs_beyond_the_size_are_let_go():
    config = SystemConfiguration(jax_backend="cpu", jax_compilation_cache_size=1)
    coordinator = SystemIntegrationCoordinator(config)
    coordinator.optimize_system(OptimizationStrategy.JAX_ACCELERATED)
    for n in (40, 50, 40):
        coordinator.compress(normal(n, n))
    programs = coordinator.components["jax_compilation_optimizer"]
    assert (len(programs), programs.hits, programs.misses) == (1, 0, 3)


def test_nothing_listens_after_an_operation(monkeypatch):
    listening = []
    monkeypatch.setattr(
        jax.monitoring, "register_event_duration_secs_listener", listening.append
    )
    monkeypatch.setattr(
        jax.monitoring, "unregister_event_duration_listener", listening.remove
    )
    parts = SystemIntegrationCoordinator(CPU).components
    operation = parts["jax_performance_monitor"].operation()
    with contextlib.suppress(KeyError), operation:
        assert len(listening) == 1
        raise KeyError
    assert not listening


def test_alerts_name_what_is_beyond_its_threshold():
    monitor = UnifiedPerformanceMonitor(MonitorConfig(latency_threshold_ms=5))
    assert monitor.latest(MetricType.LATENCY) is None
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 5.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.7)
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 6.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.5, PipelineType.JAX)
    assert monitor.get_alerts() == [
        Alert(MetricType.LATENCY, 6, 5),
        Alert(MetricType.JAX_CACHE_HITS, 0.5, 0.7),
    ]
    want = {"count": 2, "mean": 5.5, "min": 5, "max": 6}
    assert monitor.get_statistics()["LATENCY"] == want
    assert list(monitor.get_statistics(PipelineType.JAX)) == ["JAX_CACHE_HITS"]
    with pytest.raises(ValueError, match="LATENCY"):
        monitor.record_metric(MetricType.LATENCY, float("nan"))


def test_the_number_of_measurements_is_limited():
    monitor = UnifiedPerformanceMonitor(MonitorConfig(history_window_size=2))
    for value in (1.0, 2.0, 3.0):
        monitor.record_metric(MetricType.LATENCY, value)
    assert monitor.get_statistics()["LATENCY"]["min"] == 2
