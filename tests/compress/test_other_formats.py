"""Weights from other tools' files, and back into them."""

import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from frugax import SizeBudget, compress
from frugax.errors import CorruptFileError, UnsupportedFileError
from refusals import refuses


@pytest.mark.parametrize("link", [False, True])
def test_exporting_over_the_file_itself_is_refused(saved, link):
    path, _ = saved
    before, to = path.read_bytes(), path
    if link:
        to = path.with_name("same.safetensors")
        to.symlink_to(path)
    with refuses(ValueError, to.name):
        compress.export_safetensors(path, to)
    assert path.read_bytes() == before


def test_weights_of_other_tools_are_read(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    torch = pytest.importorskip("torch")
    w = torch.randn(4, 6)
    tensors = {"w": w, "half": w.to(torch.bfloat16), "n": torch.arange(3)}
    safetensors.save_file(tensors, tmp_path / "m.safetensors")
    found = compress.load_weights(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(found["w"], w.numpy())
    assert found["half"].dtype == ml_dtypes.bfloat16
    assert (found["half"].astype(np.float32) == tensors["half"].float().numpy()).all()
    np.savez(tmp_path / "m.npz", w=np.eye(2))
    np.testing.assert_array_equal(
        compress.load_weights(tmp_path / "m.npz")["w"], np.eye(2)
    )
    compress.save(tmp_path / "m.fxz", found, SizeBudget(max_abs=0))
    again = compress.load_weights(tmp_path / "m.fxz")
    assert {k: v.tobytes() for k, v in again.items()} == {
        k: v.tobytes() for k, v in found.items()
    }


def test_damaged_and_foreign_weights_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    head = b'{"w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    page = b"<!DOCTYPE html><title>404</title>"
    for body in (b"", page, len(head).to_bytes(8, "little") + head + b"short"):
        path.write_bytes(body)
        named = f"({len(body)} bytes)"
        with refuses(CorruptFileError, named):
            compress.load_weights(path)
    head = b'{"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}'
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"123")
    with refuses(UnsupportedFileError):
        compress.load_weights(path)
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as torches:  # under another name
        torches.writestr("m/data.pkl", b"pickled")
    with refuses(UnsupportedFileError, "m.npz", "m/data.pkl"):
        compress.load_weights(tmp_path / "m.npz")
    with refuses(UnsupportedFileError, "m.pt"):
        compress.load_weights(tmp_path / "m.pt")
    (tmp_path / "empty").mkdir()
    with refuses(UnsupportedFileError):
        compress.load_weights(tmp_path / "empty")


def test_an_invalid_npz_file_is_detected_by_its_first_bytes(tmp_path):
    path = tmp_path / "m.npz"
    np.savez(path, w=np.ones(9))
    whole = path.read_bytes()
    np.savez(path, np.array([{}], dtype=object))
    pickled = path.read_bytes()
    with path.open("wb") as file:
        np.save(file, np.ones(2))
    alone = path.read_bytes()
    for body, error, said in (
        (b"no zip", UnsupportedFileError, "rename"),
        (alone, UnsupportedFileError, "array"),
        (pickled, UnsupportedFileError, "pickled"),
        (whole[:-9], CorruptFileError, "damaged"),
        (b"", CorruptFileError, "damaged"),
    ):
        path.write_bytes(body)
        with refuses(error, said) as caught:
            compress.load_weights(path)
        assert "allow_pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"w": np.ones(2, ml_dtypes.bfloat16)}, "'w'"),
        ({"w.npy": np.ones(2)}, "w.npy"),
        ({"a\0b": np.ones(2)}, "name"),
    ],
)
def test_an_array_that_npz_cannot_hold_is_refused(tree, named, tmp_path):
    compress.save(tmp_path / "m.fxz", tree, SizeBudget(max_abs=0))
    with refuses(UnsupportedFileError, named):
        compress.export_npz(tmp_path / "m.fxz", tmp_path / "m.npz")
    assert not (tmp_path / "m.npz").exists()


def test_every_other_name_comes_back_from_an_npz_file(tmp_path):
    tree = {"file": np.ones(2), "a/../b": np.eye(2), "": np.arange(3)}
    compress.save(tmp_path / "m.fxz", tree, SizeBudget(max_abs=0))
    compress.export_npz(tmp_path / "m.fxz", tmp_path / "m.npz")
    found = compress.load_weights(tmp_path / "m.npz")
    assert {n: a.tolist() for n, a in found.items()} == {
        n: a.tolist() for n, a in tree.items()
    }


def test_metadata_of_safetensors_survive(tmp_path):
    was, mid, back = (tmp_path / n for n in ("a.safetensors", "a.fxz", "b.safetensors"))
    words = {"format": "pt", "ü": "é\n"}
    save_file({"w": np.arange(64.0)}, was, words)
    assert compress.load_metadata(was) == words
    exact, plain = SizeBudget(max_abs=0), compress.load_weights(was)
    compress.save(mid, plain, exact, metadata=compress.load_metadata(was))
    assert compress.load_metadata(mid) == words
    compress.export_safetensors(mid, back)
    assert compress.load_metadata(back) == words
    wrong: Any = {"n": 1}
    size = mid.stat().st_size  # counted, as all that is in the file
    assert compress.plan(plain, exact, metadata=words).file_bytes == size
    with refuses(TypeError, "metadata"):
        compress.plan(plain, exact, metadata=wrong)
