"""The guide's names: what they promise is measured, and said where it is not so."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forked
from frugax import SizeBudget, compress
from frugax.compress import (
    CompressedModel,
    CompressionProfile,
    MetricType,
    ModelCompressionAPI,
    MonitorConfig,
    OptimizationStrategy,
    StrategySelector,
    SystemConfiguration,
    SystemIntegrationCoordinator,
    UnifiedPerformanceMonitor,
)
from frugax.compress.guide import _coordinator, _found
from frugax.compress.guide._csr import csr_of, packed, unpacked
from frugax.errors import ConfigError, CorruptFileError, InfeasibleBudgetError
from tiers import mostly_thorough

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(0)
CPU = SystemConfiguration(jax_backend="cpu")


def normal(*shape, dtype="float32"):
    return RNG.normal(size=shape).astype(dtype)


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def rel_error(restored, model):
    states = restored.state_dict().values(), model.state_dict().values()
    pairs = list(zip(*states, strict=True))
    error = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return (error / sum(float((b**2).sum()) for _, b in pairs)) ** 0.5


# --- the profile --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"mode": "fast"}, "mode must be one of balanced"),
        ({"target_compression_ratio": 1.0}, "target_compression_ratio must be > 1"),
        ({"target_compression_ratio": float("nan")}, "must be > 1"),
        ({"preserve_accuracy_threshold": 0}, r"must be in \(0, 1\]"),
        ({"enable_fine_tuning": True}, "compressing does not train"),
    ],
)
def test_a_wrong_profile_says_what_is_wrong(wrong, said):
    with pytest.raises(ValueError, match=said):
        CompressionProfile(**wrong)


def test_a_field_without_effect_says_so_once():
    with pytest.warns(UserWarning, match="batch_size, learning_rate have no effect"):
        CompressionProfile(batch_size=64, learning_rate=1.0)


def test_conservative_keeps_the_error_and_misses_the_ratio_aloud():
    profile = CompressionProfile(target_compression_ratio=8.0, mode="conservative")
    with pytest.warns(UserWarning, match="not 8x. conservative: the error stays"):
        found = ModelCompressionAPI(profile).compress(net())
    assert rel_error(found.decompress(), net()) <= 0.01
    assert (found.rel_error or 1) <= 0.01
    assert "over" in found.notes[0]


def test_conservative_is_balanced_where_the_error_allows_it():
    make = lambda mode: ModelCompressionAPI(
        CompressionProfile(
            mode=mode, target_compression_ratio=2.5, preserve_accuracy_threshold=0.9
        )
    ).compress(net())
    assert make("conservative").data == make("balanced").data


def test_aggressive_goes_beyond_the_ratio_within_its_error():
    profile = CompressionProfile(target_compression_ratio=2.0, mode="aggressive")
    found = ModelCompressionAPI(profile).compress(net())
    assert found.get_compression_stats()["total_compression_ratio"] > 4
    assert rel_error(found.decompress(), net()) <= 0.1


def test_a_ratio_that_nothing_reaches_is_an_error():
    profile = CompressionProfile(target_compression_ratio=5000.0)
    with pytest.raises(InfeasibleBudgetError):
        ModelCompressionAPI(profile).compress(net())


# --- models -------------------------------------------------------------------------


def test_the_model_is_only_read_and_its_ties_and_tables_stay():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(64, 48)
            self.head = torch.nn.Linear(48, 64, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("table", torch.arange(48.0) / 100, persistent=False)

        def forward(self, x):
            return self.head(self.embed(x) + self.table)

    torch.manual_seed(0)
    model = Tied().eval()
    before = model.embed.weight.detach().clone()
    found = ModelCompressionAPI().compress(model)
    assert torch.equal(model.embed.weight, before)
    assert list(found.strategy_map) == ["embed.weight"]
    back = found.decompress()
    assert back.head.weight is back.embed.weight
    assert not back.training
    assert torch.equal(back.table, model.table)
    assert found.get_compression_stats()["total_compression_ratio"] >= 4
    x = torch.arange(5)
    with torch.no_grad():
        assert float((back(x) - model(x)).abs().max()) < 1.0


def test_a_skeleton_holds_no_weights():
    found = ModelCompressionAPI().compress(net())
    skeleton = found._skeleton.module
    assert all(p.device.type == "meta" for p in skeleton.parameters())


def test_another_models_builder_is_refused_by_name(tmp_path):
    ModelCompressionAPI().compress(net()).save(tmp_path / "m.fxz")
    more = lambda: torch.nn.Sequential(*net(), torch.nn.Linear(10, 10))
    with pytest.raises(ValueError, match=r"has '3.weight', the file has not"):
        CompressedModel.load(tmp_path / "m.fxz", more)
    less = lambda: torch.nn.Sequential(*list(net())[:2])
    with pytest.raises(ValueError, match=r"'2\..*' .* not there. Give the builder"):
        CompressedModel.load(tmp_path / "m.fxz", less)
    wider = lambda: torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="Give the builder"):
        CompressedModel.load(tmp_path / "m.fxz", wider)
    with pytest.raises(TypeError, match="the builder gave int"):
        CompressedModel.load(tmp_path / "m.fxz", lambda: 3)


def test_a_damaged_model_file_is_refused(tmp_path):
    found = ModelCompressionAPI().compress(net())
    data = bytearray(found.data)
    data[len(data) // 2] ^= 1
    (tmp_path / "m.fxz").write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"m\.fxz"):
        CompressedModel.load(tmp_path / "m.fxz", net)


def test_the_cache_holds_the_decoded_model_until_it_is_told_not_to():
    found = ModelCompressionAPI().compress(net())
    x = torch.randn(2, 32)
    first = found(x)
    stats = found.get_compression_stats()
    assert (stats["forward_passes"], stats["cache_size"]) == (1, 1)
    found.disable_cache()
    assert torch.equal(found(x), first)
    assert found.get_compression_stats()["cache_size"] == 0


def test_jax_decodes_the_same_bits_as_numpy():
    model = torch.nn.Linear(300, 300).bfloat16()
    by_jax = ModelCompressionAPI(CompressionProfile(strategy="jax")).compress(model)
    assert by_jax.strategy_map["weight"] == "jax"
    by_jax._on_device = None
    restored = by_jax.decompress()
    assert restored.weight.dtype == torch.bfloat16
    with compress.guide._compressed_model.CompressedFile(by_jax.data, place="") as file:
        want = torch.from_numpy(file["weight"].view("int16"))
    assert torch.equal(restored.weight.detach().view(torch.int16), want)


@pytest.mark.thorough
def test_answers_on_data_are_measured_and_conservative_heeds_them():
    x = [torch.randn(64, 32), (torch.randn(64, 32), "labels")]
    profile = CompressionProfile(target_compression_ratio=9.0, verbose=False)
    found = ModelCompressionAPI(profile).compress(net(), x)
    assert found.validation is not None
    loose = found.validation.same_frac
    assert 0 < loose < 1
    assert found.get_compression_stats()["validation"]["same_frac"] == loose
    profile = CompressionProfile(
        target_compression_ratio=9.0,
        mode="conservative",
        preserve_accuracy_threshold=0.9999,
        verbose=False,
    )
    found = ModelCompressionAPI(profile).compress(net(), x)
    assert found.validation is not None
    assert found.validation.same_frac >= 0.9999
    with pytest.raises(ValueError, match="no batches"):
        ModelCompressionAPI().compress(net(), [])


def test_benchmark_measures_and_says_what_cannot_be():
    rows = ModelCompressionAPI().benchmark_compression(net(), [2.0, 5000.0])
    assert rows[0]["file_bytes"] <= 4 * (32 * 128 + 128 + 1280 + 10) / 2
    assert rows[0]["rel_error"] < 1e-3
    assert "needs at least" in rows[1]["error"]


# --- csr ----------------------------------------------------------------------------


def test_csr_keeps_zeros_and_gives_rows():
    model = torch.nn.Linear(200, 100)
    with torch.no_grad():
        model.weight *= torch.rand(100, 200) < 0.1
    profile = CompressionProfile(strategy="csr", mode="aggressive")
    found = ModelCompressionAPI(profile).compress(model)
    assert found.strategy_map["weight"] == "csr"
    back = found.decompress().weight.detach()
    assert not back[model.weight == 0].any()
    rows = found.csr("weight")
    assert len(rows.values) == int((back != 0).sum()) == rows.row_starts[-1]
    dense = torch.zeros(rows.shape)
    row_of = np.repeat(np.arange(100), np.diff(rows.row_starts))
    dense[row_of, rows.columns] = torch.from_numpy(rows.values)
    assert torch.equal(dense, back)


def test_a_packed_matrix_comes_back():
    a = np.zeros((8, 6), "float32")
    a[3, 0], a[7, 5] = np.nan, 3.0
    parts = packed({"w": a, "b": normal(4)})
    assert set(parts) == {"w.nonzero", "w.values", "b"}
    back = unpacked(parts["w.nonzero"], parts["w.values"])
    assert back.tobytes() == a.tobytes()
    with pytest.raises(ValueError, match="CSR is for matrices"):
        csr_of(np.zeros(3))


def test_csr_on_dense_weights_says_so():
    found = ModelCompressionAPI(CompressionProfile(strategy="csr")).compress(net())
    assert "no matrix is half zeros" in found.notes[0]


# --- tropical -----------------------------------------------------------------------


def test_tropical_narrows_relu_pairs_and_bounds_the_change(tmp_path):
    profile = CompressionProfile(strategy="tropical", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(net())
    restored = found.decompress()
    assert restored[0].weight.shape == (64, 32)
    assert restored[2].weight.shape == (10, 64)
    assert found.strategy_map["0.weight"] == "tropical"
    assert found.get_compression_stats()["total_compression_ratio"] >= 2
    (note,) = found.notes
    assert "128 hidden units between 0 and 2 became 64" in note
    bound = float(note.split("more than ")[1].split(";")[0])
    x = 2 * torch.rand(500, 32) - 1
    with torch.no_grad():
        change = (restored(x) - net()(x)).abs().max()
        # The codec's own error, on top, is far below the bound.
        assert 0.01 < float(change) <= bound
        found.save(tmp_path / "m.fxz")
        again = CompressedModel.load(tmp_path / "m.fxz", net)
        assert torch.equal(again(x), restored(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.GELU()),
        lambda: torch.nn.Sequential(*[torch.nn.Linear(40, 40)] * 2),
        lambda: torch.nn.Sequential(
            layer := torch.nn.Linear(40, 40), torch.nn.ReLU(), layer
        ),
    ],
)
def test_tropical_says_where_it_does_not_apply(make):
    profile = CompressionProfile(strategy="hybrid", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(make())
    assert found.notes[0].startswith("tropical: not applicable")
    assert found.decompress()(torch.randn(3, 40)).shape == (3, 40)


def test_padic_says_what_it_is():
    found = ModelCompressionAPI(CompressionProfile(strategy="padic")).compress(net())
    assert "digits in base 2" in found.notes[0]


# --- the selector -------------------------------------------------------------------


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
def test_auto_chooses_by_what_it_measures(tensor, chosen):
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


# --- the coordinator ----------------------------------------------------------------


@pytest.mark.parametrize(
    "favour",
    mostly_thorough(
        OptimizationStrategy,
        in_ci=lambda s: s is OptimizationStrategy.JAX_ACCELERATED,
    ),
)
def test_a_tensor_comes_back_in_its_library_whatever_is_favoured(favour):
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


def test_what_cannot_be_so_small_is_kept_whole_and_said():
    result = SystemIntegrationCoordinator(CPU).compress(np.arange(5))
    assert not result.success
    assert "needs at least" in str(result.error)
    data = result.compressed_data.compressed_bytes
    assert np.array_equal(compress.decompress(data), np.arange(5))


def test_latency_waits_for_no_compilation():
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
    real = strategy._product
    monkeypatch.setattr(strategy, "_product", lambda *a: real(*a) * 1.0000001)
    with pytest.raises(CorruptFileError, match="other bits"):
        coordinator.compress(normal(256, 256))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"jax_backend": "tpu"}, "JAX finds only cpu here"),
        ({"jax_parallel_devices": 99}, "ask for at most 8"),
    ],
)
def test_a_device_that_is_not_there_is_named(config, said):
    with pytest.raises(ConfigError, match=said):
        SystemIntegrationCoordinator(SystemConfiguration(**config))


def test_devices_take_turns():
    config = SystemConfiguration(jax_backend="cpu", jax_parallel_devices=2)
    parts = SystemIntegrationCoordinator(config).components
    data = compress.compress(normal(300, 300), SizeBudget(ratio=4))
    with _coordinator.CompressedFile(data, place="x") as file:
        places = {str(parts["jax_strategy"].decoded(file, "").device) for _ in "ab"}
    assert len(places) == 2


def test_what_does_not_fit_the_pool_is_done_in_pieces(monkeypatch):
    parts = SystemIntegrationCoordinator(CPU).components
    pool = parts["jax_memory_pool"]
    pool.limit_bytes = 100_000 * 12
    pieces = parts["jax_memory_optimizer"].pieces(250_000, 12)
    assert [p.stop - p.start for p in pieces] == [100_000, 100_000, 50_000]
    tensor = normal(500, 500)
    data = compress.compress(tensor, SizeBudget(ratio=4))
    with _coordinator.CompressedFile(data, place="x") as file:
        got = parts["jax_strategy"].decoded(file, "")
        assert np.array_equal(np.asarray(got), file[""])
    assert pool.most_bytes == 1_200_000
    assert pool.in_use_bytes == 0


# --- monitoring ---------------------------------------------------------------------


def test_the_second_tensor_of_a_shape_compiles_nothing():
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


def test_only_so_many_measurements_are_kept():
    monitor = UnifiedPerformanceMonitor(MonitorConfig(history_window_size=2))
    for value in (1.0, 2.0, 3.0):
        monitor.record_metric(MetricType.LATENCY, value)
    assert monitor.get_statistics()["LATENCY"]["min"] == 2


# --- the configuration --------------------------------------------------------------


def test_a_configuration_goes_through_a_file_whole(tmp_path):
    config = SystemConfiguration(
        jax_backend="cpu",
        jax_memory_fraction=0.5,
        optimization_strategy=OptimizationStrategy.LATENCY,
    )
    config.save(tmp_path / "c.json")
    assert SystemConfiguration.load(tmp_path / "c.json") == config
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(ConfigError, match=r"c\.json: this is no JSON"):
        SystemConfiguration.load(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="no field 'prime'"):
        SystemConfiguration.from_dict({"prime": 251})
    with pytest.raises(ConfigError, match="got 'fast'"):
        SystemConfiguration.from_dict({"optimization_strategy": "fast"})


# --- the bridge and the engine ------------------------------------------------------


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


# --- without JAX, without torch -----------------------------------------------------


def test_jax_that_is_broken_is_one_warning(monkeypatch):
    _found.why_no_jax.cache_clear()
    monkeypatch.setattr(_found, "why_no_jax", lambda: "RuntimeError: no chip")
    monkeypatch.setattr(_found, "_told", [])
    with pytest.warns(UserWarning, match="no chip"):
        coordinator = SystemIntegrationCoordinator(SystemConfiguration())
    # A second warning would be an error in these tests.
    SystemIntegrationCoordinator(SystemConfiguration())
    selector = StrategySelector(CompressionProfile(strategy="jax"))
    assert selector.select_strategy(normal(9, 9))[0] == "quantised"
    assert not [name for name in coordinator.components if name.startswith("jax_")]
    assert coordinator.compress(normal(99, 99)).success


def test_the_names_come_without_torch_and_jax():
    code = """
import sys
for name in ("jax", "jaxlib", "torch"): sys.modules[name] = None
from frugax.compress import *
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
        ("UnifiedPerformanceMonitor().latest('LATENCY')", "such as MetricType.LATENCY"),
    ],
)
def test_other_types_are_refused_where_no_type_checker_runs(call, said):
    done = forked.python(f"from frugax.compress import *; {call}")
    assert done.stderr.splitlines()[-1].startswith("TypeError: ")
    assert said in done.stderr.splitlines()[-1]
