"""Single tensors through the guide's coordinator, its nine parts and its monitor."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax.compat.compression import (
    MetricType,
    OptimizationStrategy,
    PipelineType,
    SystemConfiguration,
    SystemIntegrationCoordinator,
    UnifiedPerformanceMonitor,
)
from frugax.errors import ConfigError, CorruptFileError
from refusals import refuses

torch = pytest.importorskip("torch")


def normal(*shape, dtype="float32"):
    return np.random.default_rng(0).normal(size=shape).astype(dtype)


def coordinator_of(strategy=OptimizationStrategy.JAX_ACCELERATED, **config):
    found = SystemIntegrationCoordinator(
        SystemConfiguration(jax_backend="cpu", **config)
    )
    found.optimize_system(strategy)
    return found


@pytest.mark.parametrize("strategy", OptimizationStrategy)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_tensor_comes_back_in_its_own_library(strategy, dtype):
    coordinator = coordinator_of(strategy)
    array = normal(70, 80, dtype=dtype)
    with jax.enable_x64(True):
        tensors = array, torch.from_numpy(array), jnp.asarray(array)
    for tensor in tensors:
        result = coordinator.compress(tensor)
        back = coordinator.decompress(result.compressed_data)
        assert isinstance(back, type(tensor))
        assert back.dtype == tensor.dtype
        assert result.success
        assert result.compression_ratio >= 4
        error = np.linalg.norm(np.asarray(back) - array) / np.linalg.norm(array)
        assert error == pytest.approx(result.rel_error, rel=1e-3)
    newest = coordinator.components["performance_monitor"].newest
    by_jax = strategy is OptimizationStrategy.JAX_ACCELERATED
    assert (MetricType.JAX_COMPILATION in newest) == by_jax


def test_a_tensor_that_cannot_be_so_small_comes_exact():
    coordinator = coordinator_of()
    array = normal(3)
    result = coordinator.compress(array)
    assert not result.success
    np.testing.assert_array_equal(coordinator.decompress(result.compressed_data), array)
    with refuses(TypeError, "dict"):
        coordinator.compress({"w": array})
    with refuses(ValueError, "fast"):
        coordinator.optimize_system("fast")  # pyrefly: ignore[bad-argument-type]


def test_what_does_not_fit_the_pool_stays_with_numpy():
    coordinator = coordinator_of()
    data = coordinator.compress(normal(64, 64)).compressed_data
    coordinator.components["jax_memory_pool"].limit_bytes = 0
    programs = coordinator.components["jax_compilation_optimizer"]
    asked = programs.requests
    coordinator.decompress(data)
    assert programs.requests == asked == 1


def test_a_backend_that_is_not_here_and_too_many_devices_are_refused():
    with refuses(ConfigError, "jax_parallel_devices", 99):
        coordinator_of(jax_parallel_devices=99)
    with pytest.raises(RuntimeError):
        SystemIntegrationCoordinator(SystemConfiguration(jax_backend="tpu"))


def test_devices_take_turns():
    coordinator = coordinator_of(jax_parallel_devices=2)
    devices = coordinator.components["jax_device_manager"]
    turns = [devices.next() for _ in range(4)]
    assert turns[:2] == turns[2:] == list(devices.devices)


def test_other_bits_than_those_of_numpy_are_found(monkeypatch):
    coordinator = coordinator_of()
    data = coordinator.compress(normal(64, 64)).compressed_data
    programs = coordinator.components["jax_compilation_optimizer"]
    wrong = lambda _, levels, step: levels.astype(step.dtype) * 1.001
    monkeypatch.setattr(programs, "run", wrong)
    with pytest.raises(CorruptFileError):
        coordinator.decompress(data)


def test_the_second_tensor_of_a_shape_reuses_the_program():
    coordinator = coordinator_of(jax_compilation_cache_size=1)
    latest = coordinator.components["jax_performance_monitor"].latest
    coordinator.compress(normal(256, 257))
    assert latest(MetricType.JAX_COMPILATION) > 0
    assert latest(MetricType.JAX_CACHE_HITS) == 0
    data = coordinator.compress(normal(256, 257)).compressed_data
    assert latest(MetricType.JAX_COMPILATION) == 0
    assert latest(MetricType.JAX_CACHE_HITS) == 1 / 2
    assert latest(MetricType.JAX_MEMORY_POOL) > 0
    coordinator.compress(normal(300, 300))
    coordinator.decompress(data)  # its program was dropped
    assert latest(MetricType.JAX_COMPILATION) > 0


def test_jax_decodes_weights_at_the_end_of_their_range():
    largest = float(np.finfo("float16").max)
    array = np.clip(normal(300, 300) * (largest / 2), -largest, largest)
    array = array.astype("float16")
    coordinator = coordinator_of()
    result = coordinator.compress(array)
    assert result.success
    back = coordinator.decompress(result.compressed_data)
    assert np.abs(back).max() == largest


def test_arrays_go_from_torch_to_jax_to_the_engine_and_back():
    parts = coordinator_of(jax_enable_x64=True).components
    a, b = normal(30, 20, dtype="float64"), normal(20, 25, dtype="float64")
    to_jax = parts["jax_tropical_bridge"].to_jax
    with parts["jax_config_adapter"]():
        product = parts["jax_tropical_engine"].matmul(
            to_jax(torch.from_numpy(a)), to_jax(b)
        )
    got = parts["jax_tropical_bridge"].to_torch(product)
    assert torch.equal(got, torch.from_numpy((a[:, :, None] + b[None]).max(1)))


def test_alerts_are_about_thresholds():
    monitor = UnifiedPerformanceMonitor()
    assert monitor.latest(MetricType.LATENCY) is None
    monitor.thresholds[MetricType.LATENCY] = (0.0, 5.0)
    monitor.record_metric(MetricType.LATENCY, 5.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.7, PipelineType.JAX)
    assert monitor.get_alerts() == []
    monitor.record_metric(MetricType.LATENCY, 6.0)
    monitor.record_metric(MetricType.JAX_CACHE_HITS, 0.5, PipelineType.JAX)
    assert monitor.get_alerts() == [
        (MetricType.LATENCY, 6.0, PipelineType.NUMPY),
        (MetricType.JAX_CACHE_HITS, 0.5, PipelineType.JAX),
    ]
