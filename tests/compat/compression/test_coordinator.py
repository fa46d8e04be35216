"""The guide's coordinator, and its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forked
from compression_nets import CPU, normal
from frugax import SizeBudget, compress
from frugax.compat.compression import (
    OptimizationStrategy,
    PipelineType,
    StrategySelector,
    SystemConfiguration,
    SystemIntegrationCoordinator,
)
from frugax.errors import ConfigError, CorruptFileError, InfeasibleBudgetError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("tensor", "chosen"),
    [
        (np.arange(9), "lossless"),
        (np.array([[1.0, np.nan]]), "lossless"),
        (np.eye(50, dtype="float32"), "csr"),
        (normal(16, 16), "quantised"),
        (normal(256, 256), "jax"),
    ],
)
def test_auto_chooses_by_measurement(tensor, chosen):
    assert StrategySelector().select_strategy(tensor) == chosen


@pytest.mark.parametrize("favour", OptimizationStrategy)
def test_a_tensor_comes_back_in_its_own_library(favour):
    coordinator = SystemIntegrationCoordinator(CPU)
    coordinator.optimize_system(favour)
    for tensor in (normal(80, 80), jnp.asarray(normal(80, 80)), torch.randn(80, 80)):
        result = coordinator.compress(tensor)
        assert result.success
        by_jax = favour is OptimizationStrategy.JAX_ACCELERATED
        assert (result.processing_mode is PipelineType.JAX) == by_jax
        back = coordinator.decompress(result.compressed_data)
        assert type(back) is type(tensor)
        assert back.dtype == tensor.dtype
        assert np.abs(np.asarray(back) - np.asarray(tensor)).max() < 0.5


def test_doubles_stay_doubles_by_jax():
    coordinator = SystemIntegrationCoordinator(CPU)
    coordinator.optimize_system(OptimizationStrategy.JAX_ACCELERATED)
    data = coordinator.compress(normal(100, 100, dtype="float64")).compressed_data
    back = coordinator.decompress(data)
    assert back.dtype == np.float64
    assert np.array_equal(back, compress.decompress(data.compressed_bytes))
    with jax.enable_x64(True):
        array = jnp.asarray(normal(100, 100, dtype="float64"))
    data = coordinator.compress(array).compressed_data
    assert coordinator.decompress(data).dtype == np.float64


def test_a_tensor_that_cannot_be_compressed_is_kept_whole_and_reported():
    result = SystemIntegrationCoordinator(CPU).compress(np.arange(5))
    assert not result.success
    assert isinstance(result.error, InfeasibleBudgetError)
    data = result.compressed_data.compressed_bytes
    assert np.array_equal(compress.decompress(data), np.arange(5))


def test_a_bit_that_jax_makes_otherwise_is_an_error(monkeypatch):
    coordinator = SystemIntegrationCoordinator(CPU)
    strategy = coordinator.components["jax_strategy"]
    real = strategy._multiply
    monkeypatch.setattr(strategy, "_multiply", lambda *a: real(*a) * 1.0000001)
    with pytest.raises(CorruptFileError):
        coordinator.compress(normal(256, 256))


@pytest.mark.parametrize(
    "config", [{"jax_backend": "tpu"}, {"jax_parallel_devices": 99}]
)
def test_a_missing_device_is_named(config):
    with pytest.raises(ConfigError) as caught:
        SystemIntegrationCoordinator(SystemConfiguration(**config))
    ((name, value),) = config.items()
    assert f"{name} is {value!r}" in str(caught.value)


def test_devices_take_turns():
    config = SystemConfiguration(jax_backend="cpu", jax_parallel_devices=2)
    parts = SystemIntegrationCoordinator(config).components
    data = compress.compress(normal(300, 300), SizeBudget(ratio=4))
    with compress.CompressedFile(data, place="x") as file:
        places = {str(parts["jax_strategy"].decode(file, "").device) for _ in "ab"}
    assert len(places) == 2


def test_work_larger_than_the_pool_is_done_in_pieces():
    parts = SystemIntegrationCoordinator(CPU).components
    pool = parts["jax_memory_pool"]
    pool.limit_bytes = 100_000 * 12
    pieces = parts["jax_memory_optimizer"].pieces(250_000, 12)
    assert [p.stop - p.start for p in pieces] == [100_000, 100_000, 50_000]
    data = compress.compress(normal(500, 500), SizeBudget(ratio=4))
    with compress.CompressedFile(data, place="x") as file:
        got = parts["jax_strategy"].decode(file, "")
        assert np.array_equal(np.asarray(got), file[""])
    assert (pool.most_bytes, pool.in_use_bytes) == (1_200_000, 0)


def test_the_bridge_shares_memory_and_keeps_doubles():
    bridge = SystemIntegrationCoordinator(CPU).components["jax_tropical_bridge"]
    tensor = torch.randn(64, 64, dtype=torch.float64)
    array = bridge.to_jax(tensor)
    assert array.dtype == "float64"
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    assert torch.equal(bridge.like(array, tensor), tensor)


def test_the_engine_answers_in_the_library_it_was_asked_in():
    engine = SystemIntegrationCoordinator(CPU).components["jax_tropical_engine"]
    a, b = normal(6, 5), normal(5, 4)
    want = (a[:, :, None] + b[None]).max(1)
    assert np.array_equal(engine.matmul(a, b), want)
    got = engine.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert torch.equal(got, torch.from_numpy(want))
    assert isinstance(engine.matmul(jnp.asarray(a), jnp.asarray(b)), jax.Array)
    assert engine.closure(np.abs(normal(5, 5))).shape == (5, 5)


def test_without_jax_and_torch_there_is_one_warning_and_numpy_does_the_work():
    code = """
import sys, warnings
for name in ("jax", "jaxlib", "torch"): sys.modules[name] = None
from frugax.compat import compression as guide
import numpy as np
assert guide.JAX_AVAILABLE is False
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    coordinator = guide.SystemIntegrationCoordinator()
    guide.SystemIntegrationCoordinator(guide.SystemConfiguration())
    selector = guide.StrategySelector(guide.CompressionProfile(strategy="jax"))
    assert selector.select_strategy(np.ones((9, 9))) == "quantised"
assert not [name for name in coordinator.components if name.startswith("jax_")]
result = coordinator.compress(np.ones((99, 99)))
assert result.success
assert (coordinator.decompress(result.compressed_data) == 1).all()
assert coordinator.get_system_status()["metrics"]["LATENCY"]["count"] == 1
(warning,) = caught
print(warning.category.__name__)
"""
    done = forked.python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "UserWarning"


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("CompressionProfile(target_compression_ratio='4x')", "'4x'"),
        ("ModelCompressionAPI().compress({})", "a dict"),
        ("SystemIntegrationCoordinator().compress(None)", "a NoneType"),
        ("SystemIntegrationCoordinator().decompress(None)", "a NoneType"),
        ("SystemIntegrationCoordinator().optimize_system('fast')", "'fast'"),
        ("UnifiedPerformanceMonitor().latest('LATENCY')", "'LATENCY'"),
    ],
)
def test_other_types_are_refused_where_no_type_checker_runs(call, named):
    done = forked.python(f"from frugax.compat.compression import *; {call}")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("TypeError: ")
    assert named in last
