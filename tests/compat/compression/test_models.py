"""Torch models through the guide's profile and file."""

import numpy as np
import pytest

from frugax import compress
from frugax.compat.compression import (
    CompressedModel,
    CompressionProfile,
    ModelCompressionAPI,
    SystemConfiguration,
)
from frugax.errors import CorruptFileError, InfeasibleBudgetError
from refusals import refuses, warns

torch = pytest.importorskip("torch")


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )


def error_of(found):
    flat = lambda model: torch.cat([p.detach().flatten() for p in model.parameters()])
    want = flat(net())
    return float((flat(found.decompress()) - want).norm() / want.norm())


def compressed(**profile):
    return ModelCompressionAPI(CompressionProfile(**profile)).compress(net())


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: CompressionProfile(mode="fast"), "fast"),
        (lambda: CompressionProfile(strategy="hybrid"), "hybrid"),
        (lambda: CompressionProfile(target_compression_ratio=1.0), "1.0"),
        (lambda: CompressionProfile(target_compression_ratio=float("nan")), "nan"),
        (lambda: SystemConfiguration(jax_memory_fraction=0), "got 0"),
        (lambda: SystemConfiguration(jax_parallel_devices=0), "got 0"),
    ],
)
def test_wrong_settings_are_refused_by_their_value(make, named):
    with refuses(ValueError, named):
        make()


def test_conservative_keeps_the_error_and_warns_that_it_misses_the_ratio():
    with warns(UserWarning, "target_compression_ratio"):
        found = compressed(target_compression_ratio=8.0, mode="conservative")
    assert 0 < error_of(found) <= 0.01
    assert found.get_compression_stats()["total_compression_ratio"] < 8


def test_aggressive_goes_beyond_the_ratio_within_its_error():
    found = compressed(target_compression_ratio=2.0, mode="aggressive")
    assert found.get_compression_stats()["total_compression_ratio"] > 4
    assert 0 < error_of(found) <= 0.1
    beyond = compressed(target_compression_ratio=10.0, mode="aggressive")
    assert beyond.get_compression_stats()["total_compression_ratio"] >= 10


def test_an_unreachable_ratio_is_an_error():
    with pytest.raises(InfeasibleBudgetError):
        compressed(target_compression_ratio=5000.0)


def test_the_model_is_read_only_and_the_restored_one_is_new():
    model = net()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = ModelCompressionAPI().compress(model)
    restored = found.decompress()
    assert restored is not model
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(found(torch.ones(2, 32)), restored(torch.ones(2, 32)))


def test_shared_weights_stay_shared():
    one = torch.nn.Linear(300, 300)
    tied = torch.nn.Sequential(one, torch.nn.ReLU(), one)
    found = ModelCompressionAPI().compress(tied)
    restored = found.decompress()
    assert restored[0].weight is restored[2].weight
    assert found.get_compression_stats()["total_original_size_mb"] == 4 * 90_300 / 1e6


def test_another_models_builder_and_damage_are_refused(tmp_path):
    compressed().save(tmp_path / "m.fxz")
    more = lambda: torch.nn.Sequential(*net(), torch.nn.Linear(10, 10))
    fewer = lambda: torch.nn.Sequential(*list(net())[:2])
    for build in (more, fewer, lambda: torch.nn.Linear(3, 3)):
        with pytest.raises(RuntimeError):
            CompressedModel.load(tmp_path / "m.fxz", build)
    data = bytearray((tmp_path / "m.fxz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.fxz").write_bytes(data)
    with pytest.raises(CorruptFileError):
        CompressedModel.load(tmp_path / "m.fxz", net)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_jax_decodes_the_bits_of_numpy(dtype):
    model = torch.nn.Linear(300, 300).to(getattr(torch, dtype))
    api = ModelCompressionAPI(CompressionProfile(strategy="jax"))
    found = api.compress(model)
    assert found.strategy_map["weight"] == "jax"
    got = found.decompress().weight
    assert got.dtype == model.weight.dtype
    numpy = compress.decompress(found.data)["weight"].astype("float64")
    assert torch.equal(got.double(), torch.from_numpy(numpy))


def test_only_torch_modules_are_compressed():
    with refuses(TypeError, "dict"):
        ModelCompressionAPI().compress({"w": np.ones(3)})
