"""Weights are written tensor by tensor, and read from mapped files."""

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.compress.arrays import _mapped as _mapped
from frugax.compress.codecs import _lossless as _lossless
from frugax.compress.codecs._blocks import BLOCK
from frugax.compress.codecs._uniform import LEAST_STEP
from frugax.compress.search import _draft as _draft, _source as _sources
from frugax.errors import CorruptFileError

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
    # More than one chunk, of noise: what is longer coded is still the same.
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


def test_a_tensor_is_written_before_the_next_is_read(tmp_path, monkeypatch):
    order = []
    encode, release = _lossless.encode, _draft.release
    monkeypatch.setattr(
        _lossless, "encode", lambda part: order.append(part.size) or encode(part)
    )
    monkeypatch.setattr(
        _draft, "release", lambda array: order.append("gone") or release(array)
    )
    tree = {"a": np.arange(3), "b": np.arange(4)}
    compress.save(tmp_path / "w.fxz", tree, EXACT)
    assert order == [3, "gone", 4, "gone"]


def test_a_tensor_of_which_enough_was_seen_is_let_go_of(monkeypatch):
    # A step that is too fine for the first numbers: the search asks for such, and the
    # pages of all tensors would stay in memory.
    gone = []
    monkeypatch.setattr(_sources, "release", lambda part: gone.append(part.size))
    source = _sources.Source("w", TREE["w"])
    assert source.quantisable
    gone.clear()
    assert not source.is_quantisable_at(LEAST_STEP)
    assert source.uniform_distortion(LEAST_STEP).energy == 0
    assert source.estimate(LEAST_STEP).energy == 0
    assert gone.count(source.array.size) >= 3


def test_a_file_is_let_go_of_piece_by_piece(tmp_path, monkeypatch):
    # Small tensors too: all of them together are as large as large ones.
    compress.save(tmp_path / "w.fxz", TREE, EXACT)
    gone = []
    monkeypatch.setattr(compress.CompressedFile, "_let_go", lambda _: gone.append(1))
    with compress.open(tmp_path / "w.fxz") as file:
        assert len([*file.pieces()]) == len(file) == len(gone)


def test_what_does_not_come_back_is_never_there(tmp_path, monkeypatch):
    encode = _lossless.encode
    monkeypatch.setattr(_lossless, "encode", lambda part: encode(part[::-1].copy()))
    with pytest.raises(CorruptFileError, match="'w': its values are not the ones"):
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
        _mapped.release(array)
        np.testing.assert_array_equal(array, tensors[name])
    # Rows of a mapped array, and arrays that no file stands behind.
    for view in (found["a"][3:], found["a"][::-1, ::2]):
        before = view.tobytes()
        _mapped.release(view)
        assert view.tobytes() == before
    own = np.ones(4)
    for array in (own, own[1:], np.frombuffer(b"1234", np.uint8)):
        before = array.tobytes()
        _mapped.release(array)
        assert array.tobytes() == before
