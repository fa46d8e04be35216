"""Single tensors through the guide's coordinator, its nine parts and its monitor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.compat.compression import (
    MetricType,
    MonitorConfig,
    OptimizationStrategy,
    SystemConfiguration,
    SystemIntegrationCoordinator,
    UnifiedPerformanceMonitor,
)
from frugax.errors import ConfigError, CorruptFileError
from refusals import refuses

torch = pytest.importorskip("torch")


def normal(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def coordinator_of(**config):
    return SystemIntegrationCoordinator(
        SystemConfiguration(jax_backend="cpu", **config)
    )


@pytest.mark.parametrize("strategy", OptimizationStrategy)
def test_a_tensor_comes_back_in_its_own_library(strategy):
    coordinator = coordinator_of(optimization_strategy=strategy)
    array = normal(70, 80)
    for tensor in (array, torch.from_numpy(array), jnp.asarray(array)):
        result = coordinator.compress(tensor)
        back = coordinator.decompress(result.compressed_data)
        assert isinstance(back, type(tensor))
        assert back.dtype == tensor.dtype
        assert result.success
        by_jax = strategy is OptimizationStrategy.JAX_ACCELERATED
        assert result.processing_mode == ("jax" if by_jax else "numpy")
        error = np.linalg.norm(np.asarray(back) - array) / np.linalg.norm(array)
        assert error == pytest.approx(result.rel_error, rel=1e-3)


def test_memory_doubles_the_ratio():
    coordinator = coordinator_of()
    coordinator.optimize_system(OptimizationStrategy.MEMORY)
    assert coordinator.compress(normal(200, 200)).compression_ratio >= 8
    with refuses(ValueError, "fast"):
        coordinator.optimize_system("fast")  # pyright: ignore[reportArgumentType]


def test_a_tensor_that_cannot_be_so_small_comes_exact():
    coordinator = coordinator_of(target_compression_ratio=1e6)
    result = coordinator.compress(normal(40, 40))
    assert not result.success
    assert result.error
    np.testing.assert_array_equal(
        coordinator.decompress(result.compressed_data), normal(40, 40)
    )


def test_sixty_four_bits_survive_and_pieces_fit_the_pool():
    coordinator = coordinator_of()
    coordinator.optimize_system(OptimizationStrategy.JAX_ACCELERATED)
    array = normal(512, 300, dtype="float64")
    data = coordinator.compress(array).compressed_data
    right = coordinator.decompress(data)
    assert right.dtype == np.float64
    pool = coordinator.components["jax_memory_pool"]
    pool.limit_bytes = 24 << 16  # two fifths of what the tensor takes
    pool.most_bytes = 0
    np.testing.assert_array_equal(coordinator.decompress(data), right)
    assert 0 < pool.most_bytes <= pool.limit_bytes


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (SystemConfiguration(jax_backend="tpu"), "tpu"),
        (SystemConfiguration(jax_backend="cpu", jax_parallel_devices=99), "99"),
    ],
)
def test_a_backend_that_is_not_here_and_too_many_devices_are_refused(config, named):
    with refuses(ConfigError, named):
        SystemIntegrationCoordinator(config)


def test_devices_take_turns():
    coordinator = coordinator_of(jax_parallel_devices=2)
    devices = coordinator.components["jax_device_manager"]
    turns = [devices.next() for _ in range(4)]
    assert turns[:2] == turns[2:] == list(devices.devices)


def test_other_bits_than_those_of_numpy_are_found(monkeypatch):
    coordinator = coordinator_of()
    coordinator.optimize_system(OptimizationStrategy.JAX_ACCELERATED)
    data = coordinator.compress(normal(64, 64)).compressed_data
    programs = coordinator.components["jax_compilation_optimizer"]
    wrong = lambda levels, step: np.asarray(levels) * np.float32(1.001 * float(step))
    monkeypatch.setattr(programs, "program", lambda *_: wrong)
    with pytest.raises(CorruptFileError):
        coordinator.decompress(data)


def test_the_second_tensor_of_a_shape_reuses_the_program():
    coordinator = coordinator_of(jax_compilation_cache_size=1)
    latest = coordinator.components["jax_performance_monitor"].latest
    coordinator.compress(normal(256, 257))
    assert latest(MetricType.JAX_COMPILATION) > 0
    assert latest(MetricType.JAX_CACHE_HITS) == 0
    coordinator.compress(normal(256, 257))
    assert latest(MetricType.JAX_COMPILATION) == 0
    assert latest(MetricType.JAX_CACHE_HITS) == 1
    assert latest(MetricType.JAX_MEMORY_POOL) == pytest.approx(256 * 257 * 12 / 1e6)
    coordinator.compress(normal(300, 300))
    assert len(coordinator.components["jax_compilation_optimizer"]) == 1


def test_nothing_listens_after_an_operation(monkeypatch):
    listening = []
    start, end = "register_event_duration_secs", "unregister_event_duration"
    monkeypatch.setattr(jax.monitoring, f"{start}_listener", listening.append)
    monkeypatch.setattr(jax.monitoring, f"{end}_listener", listening.remove)
    monitor = coordinator_of().components["jax_performance_monitor"]
    with monitor.operation():
        assert len(listening) == 1
    assert listening == []


def test_the_engine_is_exact_for_torch_and_numpy():
    engine = coordinator_of(jax_enable_x64=True).components["jax_tropical_engine"]
    a, b = normal(30, 20, dtype="float64"), normal(20, 25, dtype="float64")
    want = (a[:, :, None] + b[None]).max(1)
    np.testing.assert_array_equal(np.asarray(engine.matmul(a, b)), want)
    got = engine.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert torch.equal(got, torch.from_numpy(want))


def test_alerts_are_about_thresholds_and_the_history_is_limited():
    config = MonitorConfig(latency_threshold_ms=5, history_window_size=2)
    monitor = UnifiedPerformanceMonitor(config)
    assert monitor.latest(MetricType.LATENCY) is None
    assert monitor.get_alerts() == []
    for value in (9.0, 4.0, 5.0):
        monitor.record_metric(MetricType.LATENCY, value)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.7)
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 6.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.5)
    assert [a.split()[0] for a in monitor.get_alerts()] == ["LATENCY", "JAX_CACHE_HITS"]
    report = monitor.generate_report()
    assert report["statistics"]["LATENCY"] == {
        "count": 2,
        "mean": 5.5,
        "min": 5,
        "max": 6,
    }
    assert "ERROR_RATE" in report["not_measured"]
    with pytest.raises(ValueError):  # noqa: PT011
        monitor.record_metric(MetricType.LATENCY, float("nan"))
    with pytest.raises(ValueError):  # noqa: PT011
        MonitorConfig(history_window_size=0)
    with pytest.raises(TypeError):
        monitor.latest("LATENCY")  # pyright: ignore[reportArgumentType]
