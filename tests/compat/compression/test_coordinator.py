"""The guide's coordinator, and its parts."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forked
from compression_nets import CPU, RNG, normal
from frugax import SizeBudget, compress
from frugax.compat.compression import (
    OptimizationStrategy,
    StrategySelector,
    SystemConfiguration,
    SystemIntegrationCoordinator,
)
from frugax.errors import ConfigError, CorruptFileError
from tiers import mostly_thorough

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
    selector = StrategySelector()
    assert selector.select_strategy(tensor, "layer")[0] == chosen
    assert selector.strategy_cache == {"layer": chosen}


def test_scores_are_ratios_of_real_files():
    sparse = normal(200, 200) * (RNG.random((200, 200)) < 0.05).astype("float32")
    scores = StrategySelector().compute_strategy_scores(sparse)
    assert scores["csr"] > 8
    assert set(StrategySelector().compute_strategy_scores(normal(50, 50))) == {
        "lossless",
        "quantised",
    }


@pytest.mark.parametrize(
    "favour",
    mostly_thorough(
        OptimizationStrategy,
        in_ci=lambda s: s is OptimizationStrategy.JAX_ACCELERATED,
    ),
)
def test_a_tensor_comes_back_in_its_own_library(favour):
    coordinator = SystemIntegrationCoordinator(CPU)
    coordinator.optimize_system(favour)
    for tensor in (normal(80, 80), jnp.asarray(normal(80, 80)), torch.randn(80, 80)):
        result = coordinator.compress(tensor, {"layer": 3})
        assert result.success
        assert result.metadata == {"layer": 3}
        back = coordinator.decompress(result.compressed_data)
        assert type(back) is type(tensor)
        assert back.dtype == tensor.dtype
        assert np.abs(np.asarray(back) - np.asarray(tensor)).max() < 0.5


def test_doubles_stay_doubles_by_jax():
    config = SystemConfiguration(
        jax_backend="cpu", optimization_strategy=OptimizationStrategy.JAX_ACCELERATED
    )
    coordinator = SystemIntegrationCoordinator(config)
    tensor = normal(100, 100, dtype="float64")
    result = coordinator.compress(tensor)
    assert result.processing_mode == "jax"
    back = coordinator.decompress(result.compressed_data.compressed_bytes)
    assert back.dtype == np.float64
    assert np.array_equal(
        back, compress.decompress(result.compressed_data.compressed_bytes)
    )


def test_a_tensor_that_cannot_be_compressed_is_kept_whole_and_reported():
    result = SystemIntegrationCoordinator(CPU).compress(np.arange(5))
    assert not result.success
    assert "needs at least" in str(result.error)
    data = result.compressed_data.compressed_bytes
    assert np.array_equal(compress.decompress(data), np.arange(5))


def test_the_latency_strategy_does_not_compile():
    config = SystemConfiguration(
        jax_backend="cpu", optimization_strategy=OptimizationStrategy.LATENCY
    )
    coordinator = SystemIntegrationCoordinator(config)
    tensor = normal(64, 64)
    assert coordinator.compress(tensor).processing_mode == "numpy"
    coordinator.optimize_system(OptimizationStrategy.JAX_ACCELERATED)
    assert coordinator.compress(tensor).processing_mode == "jax"
    coordinator.optimize_system(OptimizationStrategy.LATENCY)
    assert coordinator.compress(tensor).processing_mode == "jax"


def test_memory_asks_for_twice_the_ratio():
    config = SystemConfiguration(
        enable_jax=False, optimization_strategy=OptimizationStrategy.MEMORY
    )
    result = SystemIntegrationCoordinator(config).compress(normal(128, 128))
    assert 8 <= result.compression_ratio < 8.5


def test_a_bit_that_jax_makes_otherwise_is_an_error(monkeypatch):
    coordinator = SystemIntegrationCoordinator(CPU)
    strategy = coordinator.components["jax_strategy"]
    real = strategy._multiply
    monkeypatch.setattr(strategy, "_multiply", lambda *a: real(*a) * 1.0000001)
    with pytest.raises(CorruptFileError, match="other bits"):
        coordinator.compress(normal(256, 256))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"jax_backend": "tpu"}, "JAX finds only cpu here"),
        ({"jax_parallel_devices": 99}, "ask for at most 8"),
    ],
)
def test_a_missing_device_is_named(config, said):
    with pytest.raises(ConfigError, match=said):
        SystemIntegrationCoordinator(SystemConfiguration(**config))


def test_devices_take_turns():
    config = SystemConfiguration(jax_backend="cpu", jax_parallel_devices=2)
    parts = SystemIntegrationCoordinator(config).components
    data = compress.compress(normal(300, 300), SizeBudget(ratio=4))
    with compress.CompressedFile(data, place="x") as file:
        places = {str(parts["jax_strategy"].decode(file, "").device) for _ in "ab"}
    assert len(places) == 2


def test_work_larger_than_the_pool_is_done_in_pieces(monkeypatch):
    parts = SystemIntegrationCoordinator(CPU).components
    pool = parts["jax_memory_pool"]
    pool.limit_bytes = 100_000 * 12
    pieces = parts["jax_memory_optimizer"].pieces(250_000, 12)
    assert [p.stop - p.start for p in pieces] == [100_000, 100_000, 50_000]
    tensor = normal(500, 500)
    data = compress.compress(tensor, SizeBudget(ratio=4))
    with compress.CompressedFile(data, place="x") as file:
        got = parts["jax_strategy"].decode(file, "")
        assert np.array_equal(np.asarray(got), file[""])
    assert pool.most_bytes == 1_200_000
    assert pool.in_use_bytes == 0


def test_the_bridge_shares_memory_and_keeps_doubles():
    bridge = SystemIntegrationCoordinator(CPU).components["jax_tropical_bridge"]
    tensor = torch.randn(64, 64, dtype=torch.float64)
    array = bridge.to_jax(tensor)
    assert array.dtype == "float64"
    assert np.array_equal(np.asarray(array), tensor.numpy())
    back = bridge.to_torch(array, copy=False)
    assert back.data_ptr() == array.unsafe_buffer_pointer()
    assert bridge.to_torch(array).data_ptr() != array.unsafe_buffer_pointer()


def test_the_engine_answers_in_the_library_it_was_asked_in():
    engine = SystemIntegrationCoordinator(CPU).components["jax_tropical_engine"]
    a, b = normal(6, 5), normal(5, 4)
    want = (a[:, :, None] + b[None]).max(1)
    assert np.array_equal(engine.matmul(a, b), want)
    got = engine.matmul(torch.from_numpy(a), torch.from_numpy(b))
    assert torch.equal(got, torch.from_numpy(want))
    assert isinstance(engine.matmul(jnp.asarray(a), jnp.asarray(b)), jax.Array)
    d = np.abs(normal(5, 5))
    assert engine.closure(d).shape == (5, 5)


def test_jax_that_is_broken_is_one_warning():
    code = """
import sys, warnings
sys.modules["jax"] = None
from frugax.compat.compression import *
import numpy as np
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    coordinator = SystemIntegrationCoordinator(SystemConfiguration())
    SystemIntegrationCoordinator(SystemConfiguration())
    selector = StrategySelector(CompressionProfile(strategy="jax"))
    assert selector.select_strategy(np.ones((9, 9)))[0] == "quantised"
assert not [name for name in coordinator.components if name.startswith("jax_")]
assert coordinator.compress(np.ones((99, 99))).success
(warning,) = caught
print(warning.category.__name__, warning.message)
"""
    done = forked.python(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("UserWarning enable_jax asked for JAX, which cannot")


def test_the_names_come_without_torch_and_jax():
    code = """
import sys
for name in ("jax", "jaxlib", "torch"): sys.modules[name] = None
from frugax.compat.compression import *
import numpy as np
c = SystemIntegrationCoordinator(SystemConfiguration(enable_jax=False))
r = c.compress(np.ones((64, 64)))
assert (c.decompress(r.compressed_data) == 1).all()
print("fine")
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "fine", out.stderr


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("CompressionProfile(target_compression_ratio='4x')", "got '4x'"),
        ("CompressionProfile(preserve_accuracy_threshold='1')", "must be a number"),
        ("ModelCompressionAPI().compress({})", "torch modules, got a dict"),
        ("SystemIntegrationCoordinator().compress(None)", "one tensor of NumPy"),
        ("SystemIntegrationCoordinator().compress({})", "got a dict: trees go to"),
        (
            "SystemIntegrationCoordinator(SystemConfiguration(enable_jax=False))"
            ".decompress(None)",
            "the bytes of a file, got a NoneType",
        ),
        ("UnifiedPerformanceMonitor().latest('LATENCY')", "such as MetricType.LATENCY"),
    ],
)
def test_other_types_are_refused_where_no_type_checker_runs(call, said):
    done = forked.python(f"from frugax.compat.compression import *; {call}")
    assert done.stderr.splitlines()[-1].startswith("TypeError: ")
    assert said in done.stderr.splitlines()[-1]
