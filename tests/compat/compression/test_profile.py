"""The guide's profile and configuration: wrong and idle fields are named."""

import pytest

from compression_nets import net, rel_error
from frugax.compat.compression import (
    CompressionProfile,
    ModelCompressionAPI,
    OptimizationStrategy,
    SystemConfiguration,
)
from frugax.errors import ConfigError, InfeasibleBudgetError

torch = pytest.importorskip("torch")


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
def test_a_wrong_profile_is_refused_with_its_reason(wrong, said):
    with pytest.raises(ValueError, match=said):
        CompressionProfile(**wrong)


def test_fields_without_effect_warn_once_and_are_named():
    with pytest.warns(UserWarning, match="no effect of batch_size, learning_rate"):
        profile = CompressionProfile(batch_size=64, learning_rate=1.0)
    # Neither using the profile nor the tries inside warn again: warnings are errors.
    rows = ModelCompressionAPI(profile).benchmark_compression(net(), [2.0])
    assert rows[0]["ratio"] >= 2


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


def test_an_unreachable_ratio_is_an_error():
    profile = CompressionProfile(target_compression_ratio=5000.0)
    with pytest.raises(InfeasibleBudgetError):
        ModelCompressionAPI(profile).compress(net())


def test_a_configuration_goes_through_a_file_whole(tmp_path):
    config = SystemConfiguration(
        jax_backend="cpu",
        jax_memory_fraction=0.5,
        optimization_strategy=OptimizationStrategy.LATENCY,
    )
    config.save(tmp_path / "c.json")
    assert SystemConfiguration.load(tmp_path / "c.json") == config
    (tmp_path / "c.json").write_text("{")
    with pytest.raises(ConfigError, match=r"c\.json: not valid JSON"):
        SystemConfiguration.load(tmp_path / "c.json")
    with pytest.raises(ConfigError, match="no field 'prime'"):
        SystemConfiguration.from_dict({"prime": 251})
    with pytest.raises(ConfigError, match="got 'fast'"):
        SystemConfiguration.from_dict({"optimization_strategy": "fast"})
