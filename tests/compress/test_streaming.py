"""Weights are written tensor by tensor, and read from mapped files."""

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.compress.arrays import release
from frugax.compress.codecs import BLOCK, lossless
from frugax.errors import CorruptFileError
from refusals import refuses

EXACT = SizeBudget(max_abs=0)
RNG = np.random.default_rng(0)
TREE = {
    "w": RNG.normal(size=(40, 30)).astype(np.float32),
    "half": [RNG.normal(size=600).astype(ml_dtypes.bfloat16), (None,)],
    "noise": RNG.integers(0, 256, 77, np.uint8),
    "none": np.zeros((0, 3)),
    "step": np.int64(7),
}


def test_a_streamed_file_is_the_one_made_in_memory(tmp_path):
    # More than one chunk, of noise: a longer chunk is still the same.
    tree = TREE | {"long": RNG.integers(0, 256, BLOCK + 5, np.uint8)}
    report = compress.save(tmp_path / "w.fxz", tree, EXACT)
    data = (tmp_path / "w.fxz").read_bytes()
    assert data == compress.compress(tree, EXACT)
    assert report.file_bytes == len(data) < report.original_bytes + 1500
    assert report.verdict == "kept"
    codecs = {tensor.name: tensor.codec for tensor in report.tensors}
    assert codecs["long"] == codecs["w"] == "lossless"
    assert codecs["noise"] == "stored"
    assert sum(tensor.bytes for tensor in report.tensors) < len(data)


def test_a_tensor_that_decodes_wrongly_is_not_written(tmp_path, monkeypatch):
    encode = lossless.encode
    monkeypatch.setattr(lossless, "encode", lambda part: encode(part[::-1].copy()))
    with refuses(CorruptFileError, "'w'"):
        compress.save(tmp_path / "w.fxz", {"w": np.arange(500.0)}, EXACT)
    assert not [*tmp_path.iterdir()]


def test_safetensors_are_read_only_when_they_are_used(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    tensors = {"a": TREE["w"], "none": TREE["none"], "n": np.arange(5)}
    safetensors.save_file(tensors, tmp_path / "m.safetensors", {"made": "here"})
    found = compress.load_weights(tmp_path / "m.safetensors")
    assert sorted(found) == sorted(tensors)
    for name, array in found.items():
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, tensors[name])
        release(array)
        np.testing.assert_array_equal(array, tensors[name])
    # Rows of a mapped array, and arrays without a file.
    for view in (found["a"][3:], found["a"][::-1, ::2]):
        before = view.tobytes()
        release(view)
        assert view.tobytes() == before
    own = np.ones(4)
    for array in (own, own[1:], np.frombuffer(b"1234", np.uint8)):
        before = array.tobytes()
        release(array)
        assert array.tobytes() == before
