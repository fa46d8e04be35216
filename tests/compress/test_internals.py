"""Behaviour that only shows inside: limits made small, and calls counted.

The only file of the package's tests that reaches into its private modules.
"""

import errno
import tempfile

import numpy as np
import pytest

from frugax import SizeBudget, compress
from frugax.compress.arrays import _tensor
from frugax.compress.codecs import MIN_STEP, _blocks, lossless
from frugax.compress.search import _encode, _exact, _rates, _source, _work
from frugax.errors import OutputError
from refusals import refuses

EXACT = SizeBudget(max_abs=0)
NORMAL = np.random.default_rng(0).normal(size=(60, 60))
TREE = {
    "w": NORMAL[:40, :30].astype(np.float32),
    "noise": np.random.default_rng(1).integers(0, 256, 77, np.uint8),
    "none": np.zeros((0, 3)),
}


@pytest.mark.parametrize("limits", [{"ratio": 6}, {"max_abs": 0}, {"max_abs": 0.1}])
def test_progress_moves_within_one_tensor(limits, monkeypatch):
    for module in (_blocks, _exact):
        monkeypatch.setattr(module, "BLOCK", 2048)
    for module in (_encode, _blocks):
        monkeypatch.setattr(module, "numbers_per_chunk", lambda codec, shape: 2048)
    w, seen = np.resize(NORMAL, (64, 320)), []
    compress.plan(
        w,
        SizeBudget(**limits),
        progress=lambda done, what: seen.append((done, what)),
    )
    shares = [done for done, what in seen if what == "coding the array"]
    assert len(set(shares)) >= 10
    sampled = [done for done, what in seen if what == "sampling"]
    assert len(set(sampled)) == len(sampled)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_missing_temporary_folder_names_tmpdir(monkeypatch):
    def none():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr(tempfile, "TemporaryFile", none)
    monkeypatch.setattr(_work, "_IN_MEMORY", 0)
    with refuses(OutputError, "TMPDIR"):
        compress.compress({"w": np.ones(9)}, SizeBudget(max_abs=0))


def test_a_tensor_is_written_before_the_next_is_read(tmp_path, monkeypatch):
    order = []
    encode, release = lossless.encode, _work.release
    monkeypatch.setattr(
        lossless, "encode", lambda part: order.append(part.size) or encode(part)
    )
    monkeypatch.setattr(
        _work, "release", lambda array: order.append("gone") or release(array)
    )
    tree = {"a": np.arange(3), "b": np.arange(4)}
    compress.save(tmp_path / "w.fxz", tree, EXACT)
    assert order == [3, "gone", 4, "gone"]


def test_a_tensor_of_which_enough_was_seen_is_let_go_of(monkeypatch):
    # A step that is too fine for the first numbers: the search asks for such, and the
    # pages of all tensors would stay in memory.
    gone = []
    monkeypatch.setattr(_tensor, "release", lambda part: gone.append(part.size))
    source = _source.Source("w", TREE["w"])
    assert source.quantisable
    gone.clear()
    assert not source.is_quantisable_at(MIN_STEP)
    assert source.uniform_distortion(MIN_STEP).energy == 0
    assert _rates.Rates().at(source, MIN_STEP).energy == 0
    assert gone.count(source.array.size) >= 3


def test_a_file_is_let_go_of_piece_by_piece(tmp_path, monkeypatch):
    # Small tensors too: all of them together are as large as large ones.
    compress.save(tmp_path / "w.fxz", TREE, EXACT)
    gone = []
    monkeypatch.setattr(compress.CompressedFile, "_release", lambda _: gone.append(1))
    with compress.open(tmp_path / "w.fxz") as file:
        assert len([*file.pieces()]) == len(file) == len(gone)


@pytest.mark.parametrize("ratio", [3, 8, 16])
def test_a_search_samples_a_tensor_at_few_steps(ratio, monkeypatch):
    sampled, estimate = [], _rates.Rates._estimate
    monkeypatch.setattr(
        _rates.Rates,
        "_estimate",
        lambda self, source, *rest: (
            sampled.append(source.name) or estimate(self, source, *rest)
        ),
    )
    rng = np.random.default_rng(0)
    sizes = np.exp(0.5 * rng.normal(size=(2, 512, 1)))  # rows of many classes
    a, b = (rng.normal(size=(2, 512, 128)) * sizes).astype(np.float32)
    compress.plan({"a": a, "b": b}, SizeBudget(ratio=ratio))
    assert max(map(sampled.count, "ab")) <= 8  # sixteen from end to end of all scales
