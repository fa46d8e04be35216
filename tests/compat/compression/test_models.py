"""The guide's compressed models: the original is only read, decoders agree."""

import numpy as np
import pytest

from compression_nets import net, normal
from frugax import compress
from frugax.compat.compression import (
    CompressedModel,
    CompressionProfile,
    ModelCompressionAPI,
)
from frugax.compat.compression._csr import pack_sparse, to_csr, unpack_sparse
from frugax.errors import ConfigError, CorruptFileError

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


def test_a_skeleton_holds_no_weights():
    found = ModelCompressionAPI().compress(net())
    skeleton = found._skeleton.module
    assert all(p.device.type == "meta" for p in skeleton.parameters())


def test_another_models_builder_is_refused_by_name(tmp_path):
    ModelCompressionAPI().compress(net()).save(tmp_path / "m.fxz")
    more = lambda: torch.nn.Sequential(*net(), torch.nn.Linear(10, 10))
    with pytest.raises(ValueError, match=r"has '3.weight', the file does not"):
        CompressedModel.load(tmp_path / "m.fxz", more)
    less = lambda: torch.nn.Sequential(*list(net())[:2])
    with pytest.raises(ValueError, match=r"'2\..*' .* not there. Give the builder"):
        CompressedModel.load(tmp_path / "m.fxz", less)
    wider = lambda: torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="Give the builder"):
        CompressedModel.load(tmp_path / "m.fxz", wider)
    with pytest.raises(TypeError, match="the builder gave int"):
        CompressedModel.load(tmp_path / "m.fxz", lambda: 3)
    with pytest.raises(TypeError, match=r"that makes a model, .* got a Sequential"):
        CompressedModel.load(tmp_path / "m.fxz", net())


@pytest.mark.parametrize("device", ["banana", "tpu", "meta", "cuda:99"])
def test_a_device_that_is_not_here_is_refused_before_the_work(device, tmp_path):
    said = f"device is '{device}', which is of no use to torch here"
    with pytest.raises(ConfigError, match=said):
        ModelCompressionAPI(CompressionProfile(device=device)).compress(net())
    (tmp_path / "m.fxz").write_bytes(b"")
    with pytest.raises(ConfigError, match=said):
        CompressedModel.load(tmp_path / "m.fxz", net, device=device)


def test_a_damaged_model_file_is_refused(tmp_path):
    found = ModelCompressionAPI().compress(net())
    data = bytearray(found.data)
    data[len(data) // 2] ^= 1
    (tmp_path / "m.fxz").write_bytes(data)
    with pytest.raises(CorruptFileError, match=r"m\.fxz"):
        CompressedModel.load(tmp_path / "m.fxz", net)


def test_the_cache_holds_the_decoded_model_until_it_is_disabled():
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
    by_jax._decode_on_device = None
    restored = by_jax.decompress()
    assert restored.weight.dtype == torch.bfloat16
    with compress.CompressedFile(by_jax.data, place="") as file:
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


def test_benchmark_reports_its_measurements_and_the_missing_ones():
    rows = ModelCompressionAPI().benchmark_compression(net(), [2.0, 5000.0])
    assert rows[0]["file_bytes"] <= 4 * (32 * 128 + 128 + 1280 + 10) / 2
    assert rows[0]["rel_error"] < 1e-3
    assert rows[1]["error"].startswith("5000x smaller is out of reach, the best is ")


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
    parts = pack_sparse({"w": a, "b": normal(4)})
    assert set(parts) == {"w.nonzero", "w.values", "b"}
    back = unpack_sparse(parts["w.nonzero"], parts["w.values"])
    assert back.tobytes() == a.tobytes()
    with pytest.raises(ValueError, match="CSR is for matrices"):
        to_csr(np.zeros(3))


def test_csr_of_dense_weights_is_reported():
    found = ModelCompressionAPI(CompressionProfile(strategy="csr")).compress(net())
    assert "no matrix is half zeros" in found.notes[0]


def test_tropical_narrows_relu_pairs_and_bounds_the_change(tmp_path):
    profile = CompressionProfile(strategy="tropical", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(net())
    restored = found.decompress()
    assert restored[0].weight.shape == (64, 32)
    assert restored[2].weight.shape == (10, 64)
    assert found.strategy_map["0.weight"] == "tropical"
    stats = found.get_compression_stats()
    assert stats["total_compression_ratio"] >= 2
    # Merged weights have no originals, so no error; bytes count from the original's.
    assert found.rel_error is None is stats["rel_error"]
    row = next(r for r in stats["top_compressed_layers"] if r["name"] == "0.weight")
    assert row["rel_error"] is None
    assert row["compression_ratio"] == 4 * 128 * 32 / row["bytes"]
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
    assert row in again.get_compression_stats()["top_compressed_layers"]


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
def test_tropical_reports_where_it_does_not_apply(make):
    profile = CompressionProfile(strategy="hybrid", target_compression_ratio=2.0)
    found = ModelCompressionAPI(profile).compress(make())
    assert found.notes[0].startswith("tropical: not applicable")
    assert found.rel_error is not None
    assert found.decompress()(torch.randn(3, 40)).shape == (3, 40)


def test_padic_describes_itself():
    found = ModelCompressionAPI(CompressionProfile(strategy="padic")).compress(net())
    assert "in base 2, the highest first" in found.notes[0]
    with compress.CompressedFile(found.data, place="x") as file:
        codecs = {len(r.shape): r.codec for r in file.header.tensors}
        assert codecs[2] == "planes"  # small tensors are exact: layers cost more
