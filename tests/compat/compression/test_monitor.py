"""The guide's monitor: measured, never invented; alerts at stated thresholds."""

import json

import jax
import pytest

from compression_nets import CPU, normal
from frugax.compat.compression import (
    MetricType,
    MonitorConfig,
    OptimizationStrategy,
    SystemConfiguration,
    SystemIntegrationCoordinator,
    UnifiedPerformanceMonitor,
)

torch = pytest.importorskip("torch")


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
    open_now = []
    for end in ("duration_secs_listener", "listener"):
        name = f"register_event_{end}"
        monkeypatch.setattr(jax.monitoring, name, open_now.append)
    for end in ("duration_listener", "listener"):
        name = f"unregister_event_{end}"
        monkeypatch.setattr(jax.monitoring, name, open_now.remove)
    monitor = SystemIntegrationCoordinator(CPU).components["jax_performance_monitor"]
    with monitor.operation():
        assert len(open_now) == 2
    assert open_now == []


def test_alerts_are_about_thresholds(tmp_path):
    monitor = UnifiedPerformanceMonitor(MonitorConfig(latency_threshold_ms=5))
    assert monitor.latest(MetricType.LATENCY) is None
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 5.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.7)
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 6.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.5)
    alerts = monitor.get_alerts()
    assert [a.split(",")[0] for a in alerts] == [
        "LATENCY is 6",
        "JAX_CACHE_HITS is 0.5",
    ]
    assert "below its threshold 0.7" in alerts[1]
    report = monitor.generate_report()
    assert report["statistics"]["LATENCY"] == {
        "count": 2,
        "mean": 5.5,
        "min": 5,
        "max": 6,
    }
    assert "ACCURACY" in report["not_measured"]
    monitor.export_metrics(tmp_path / "m.json")
    assert len(json.loads((tmp_path / "m.json").read_text())) == 4
    with pytest.raises(ValueError, match="LATENCY must be a finite number"):
        monitor.record_metric(MetricType.LATENCY, float("nan"))
    with pytest.raises(ValueError, match="history_window_size must be >= 1"):
        MonitorConfig(history_window_size=0)


def test_the_number_of_measurements_is_limited():
    monitor = UnifiedPerformanceMonitor(MonitorConfig(history_window_size=2))
    for value in (1.0, 2.0, 3.0):
        monitor.record_metric(MetricType.LATENCY, value)
    assert monitor.get_statistics()["LATENCY"]["min"] == 2
