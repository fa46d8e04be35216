"""The guide's compressed models: the original is only read, decoders agree."""

import numpy as np
import pytest

from compression_nets import net
from frugax import compress
from frugax.compat.compression import (
    CompressedModel,
    CompressionProfile,
    ModelCompressionAPI,
)
from frugax.errors import CorruptFileError

torch = pytest.importorskip("torch")


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


@pytest.mark.parametrize(
    ("build", "error", "named"),
    [
        (
            lambda: torch.nn.Sequential(*net(), torch.nn.Linear(10, 10)),
            ValueError,
            "'3.",
        ),
        (lambda: torch.nn.Sequential(*list(net())[:2]), ValueError, "'2."),
        (lambda: 3, TypeError, "int"),
    ],
)
def test_another_models_builder_is_refused_by_name(build, error, named, tmp_path):
    ModelCompressionAPI().compress(net()).save(tmp_path / "m.fxz")
    with pytest.raises(error) as caught:
        CompressedModel.load(tmp_path / "m.fxz", build)
    assert named in str(caught.value)


def test_a_damaged_model_file_is_refused(tmp_path):
    found = ModelCompressionAPI().compress(net())
    data = bytearray(found.data)
    data[len(data) // 2] ^= 1
    (tmp_path / "m.fxz").write_bytes(data)
    with pytest.raises(CorruptFileError):
        CompressedModel.load(tmp_path / "m.fxz", net)


def test_jax_decodes_the_same_bits_as_numpy():
    model = torch.nn.Linear(300, 300).bfloat16()
    by_jax = ModelCompressionAPI(CompressionProfile(strategy="jax")).compress(model)
    assert by_jax.strategy_map["weight"] == "jax"
    restored = by_jax.decompress()
    assert restored.weight.dtype == torch.bfloat16
    with compress.CompressedFile(by_jax.data, place="") as file:
        want = torch.from_numpy(file["weight"].view("int16"))
    assert torch.equal(restored.weight.detach().view(torch.int16), want)


def test_csr_keeps_zeros_and_saves_bytes():
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 100)
    with torch.no_grad():
        model.weight *= torch.rand(100, 200) < 0.1
    sizes = {}
    for strategy in ("csr", "tropical"):
        profile = CompressionProfile(strategy=strategy, mode="aggressive")
        found = ModelCompressionAPI(profile).compress(model)
        sizes[strategy] = len(found.data)
        if strategy == "csr":
            assert found.strategy_map["weight"] == "csr"
            back = found.decompress().weight.detach()
            assert not back[model.weight == 0].any()
            want = model.weight.detach()
            assert float((back - want).norm() / want.norm()) <= 0.1
    assert sizes["csr"] < 4 * model.weight.numel() / 8


def test_tropical_narrows_relu_pairs_and_bounds_the_change(tmp_path):
    profile = CompressionProfile(strategy="tropical", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(net())
    restored = found.decompress()
    assert restored[0].weight.shape == (64, 32)
    assert (restored[0].out_features, restored[2].in_features) == (64, 64)
    assert found.strategy_map["0.weight"] == "tropical"
    assert found.get_compression_stats()["total_compression_ratio"] >= 2
    x = 2 * torch.rand(500, 32) - 1
    with torch.no_grad():
        change = (restored(x) - net()(x)).abs().max()
        # The codec's own error, on top, is far below the bound.
        assert 0.01 < float(change) <= found.output_bounds["2"]
        found.save(tmp_path / "m.fxz")
        again = CompressedModel.load(tmp_path / "m.fxz", net)
        assert torch.equal(again(x), restored(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.GELU()),
        lambda: torch.nn.Sequential(
            layer := torch.nn.Linear(40, 40), torch.nn.ReLU(), layer
        ),
    ],
)
def test_tropical_leaves_other_layers_to_the_codec(make):
    profile = CompressionProfile(strategy="tropical", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(make())
    assert not found.output_bounds
    assert "tropical" not in found.strategy_map.values()
    assert found.decompress()(torch.randn(3, 40)).shape == (3, 40)


def test_weights_that_are_not_finite_come_back_exact():
    model = net()
    with torch.no_grad():
        model[0].get_parameter("weight")[0, 0] = np.nan
    profile = CompressionProfile(strategy="tropical", target_compression_ratio=1.01)
    found = ModelCompressionAPI(profile).compress(model)
    assert not found.output_bounds
    assert torch.isnan(found.decompress()[0].weight[0, 0])
