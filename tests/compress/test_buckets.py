"""Files in buckets, by a fake of one: a folder behind `gs://`, without renames."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from etils.epath import backend, gpath
from safetensors.numpy import save_file

from frugax import SizeBudget, compress
from frugax.errors import (
    CorruptFileError,
    MissingExtraError,
    OutputError,
    UnsupportedFileError,
)
from refusals import refuses


class Bucket(backend._OsPathBackend):
    """Objects of `gs://` in a folder."""

    def __init__(self, folder):
        self.folder, self.full = folder, False

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if not callable(found) or name.startswith("_"):
            return found
        place = lambda p: str(p).replace("gs://", f"{self.folder}/")
        if self.full and name == "open":
            found = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
        return lambda *paths, **named: found(
            *(place(p) if "gs://" in str(p) else p for p in paths), **named
        )


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The fake, and the folder of its objects."""
    there = Bucket(tmp_path)
    monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", there)
    return there


WEIGHTS = {"w": np.random.default_rng(0).normal(size=(40, 50)).astype("f4")}


def test_a_file_of_a_bucket_is_as_a_local_one(bucket, tmp_path):
    address = "gs://models/deep/w.fxz"
    report = compress.save(address, WEIGHTS, SizeBudget("4x"))
    local = tmp_path / "models" / "deep" / "w.fxz"
    assert local.read_bytes() == compress.compress(WEIGHTS, SizeBudget("4x"))
    assert [*local.parent.iterdir()] == [local]
    assert report.file_bytes == local.stat().st_size
    with compress.open(address) as file:
        assert file.place == address
        again = file["w"]
    np.testing.assert_array_equal(compress.load(address)["w"], again)
    assert compress.load_weights(address).keys() == {"w"}
    assert compress.verify(address, against=WEIGHTS).ok
    assert compress.inspect(address).place == address


def test_a_folder_of_a_bucket_is_weights(bucket, tmp_path):
    (tmp_path / "models").mkdir()
    save_file(WEIGHTS, tmp_path / "models" / "a.safetensors", metadata={"k": "v"})
    (tmp_path / "models" / "README.md").write_text("not fetched")
    weights = compress.load_weights("gs://models")
    np.testing.assert_array_equal(weights["w"], WEIGHTS["w"])
    assert compress.load_metadata("gs://models/a.safetensors") == {"k": "v"}


def test_errors_name_the_address(bucket, tmp_path):
    with pytest.raises(FileNotFoundError):
        compress.open("gs://none.fxz")
    (tmp_path / "x.fxz").write_bytes(b"")
    with refuses(CorruptFileError, "gs://x.fxz"):
        compress.open("gs://x.fxz")
    (tmp_path / "x.bin").write_bytes(b"x")
    with refuses(UnsupportedFileError, "gs://x.bin"):
        compress.load_weights("gs://x.bin")
    with refuses(ValueError, "pathlib"):
        compress.open(Path("gs://x.fxz"))
    bucket.full = True
    with refuses(OutputError, "gs://y.fxz"):
        compress.save("gs://y.fxz", WEIGHTS, SizeBudget("4x"))


@pytest.mark.parametrize("export", ["export_safetensors", "export_npz"])
def test_an_export_to_a_bucket_is_refused(bucket, tmp_path, monkeypatch, export):
    # It went to a local folder named `gs:`, without a word.
    monkeypatch.chdir(tmp_path)
    compress.save("w.fxz", WEIGHTS, SizeBudget("4x"))
    for name in (export, "export_quantised"):
        with refuses(ValueError, "gs://b/w.gguf"):
            getattr(compress, name)("w.fxz", "gs://b/w.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["w.fxz"]


def test_an_address_that_is_not_of_a_bucket_is_refused():
    for read in (compress.open, compress.load_weights):
        with refuses(ValueError, "hf"):
            read("https://example.org/w.fxz")


@pytest.mark.skipif(find_spec("s3fs") is not None, reason="s3 is at hand here")
def test_the_missing_package_is_named():
    with refuses(MissingExtraError, "'frugax[buckets]'"):
        compress.open("s3://bucket/w.fxz")
