"""The guide's settings: a wrong field is refused by its name."""

import pytest

from compression_nets import net, rel_error
from frugax.compat.compression import (
    CompressionProfile,
    ModelCompressionAPI,
    MonitorConfig,
    SystemConfiguration,
)
from frugax.errors import InfeasibleBudgetError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (CompressionProfile, {"mode": "fast"}),
        (CompressionProfile, {"target_compression_ratio": 1.0}),
        (CompressionProfile, {"target_compression_ratio": float("nan")}),
        (SystemConfiguration, {"target_compression_ratio": 0.5}),
        (MonitorConfig, {"history_window_size": 0}),
        (MonitorConfig, {"latency_threshold_ms": float("nan")}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(call, wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        call(**wrong)


def test_conservative_keeps_the_error_and_misses_the_ratio_with_a_warning():
    profile = CompressionProfile(target_compression_ratio=8.0, mode="conservative")
    with pytest.warns(UserWarning, match="conservative"):
        found = ModelCompressionAPI(profile).compress(net())
    assert rel_error(found.decompress(), net()) <= 0.01
    assert found.get_compression_stats()["total_compression_ratio"] < 8


def test_conservative_meets_both_where_it_can():
    profile = CompressionProfile(mode="conservative", target_compression_ratio=2.5)
    found = ModelCompressionAPI(profile).compress(net())
    assert found.get_compression_stats()["total_compression_ratio"] >= 2.5
    assert rel_error(found.decompress(), net()) <= 0.01


def test_aggressive_goes_beyond_the_ratio_within_its_error():
    profile = CompressionProfile(target_compression_ratio=2.0, mode="aggressive")
    found = ModelCompressionAPI(profile).compress(net())
    assert found.get_compression_stats()["total_compression_ratio"] > 4
    assert rel_error(found.decompress(), net()) <= 0.1


def test_an_unreachable_ratio_is_an_error():
    profile = CompressionProfile(target_compression_ratio=5000.0)
    with pytest.raises(InfeasibleBudgetError):
        ModelCompressionAPI(profile).compress(net())
