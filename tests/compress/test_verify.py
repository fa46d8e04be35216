"""Verifying reports the findings, and the parts that were not compared."""

import numpy as np
import pytest

from forged_files import rewritten
from frugax import SizeBudget, compress
from frugax.errors import CorruptFileError
from refusals import refuses
from saved_tree import TREE


def test_verify_measures_against_the_original(saved):
    path, report = saved
    plain = compress.verify(path)
    assert plain.ok
    assert not plain.compared
    assert plain.file_bytes == report.file_bytes
    compared = compress.verify(path, TREE)
    assert compared.ok
    assert compared.compared
    assert compared.tensors[0].max_abs == report.max_abs
    assert compared.tensors[0].stated_max_abs >= report.max_abs
    assert "stated error" in str(compared)


def test_unverified_claims_are_not_reported_as_true(saved):
    path, _ = saved
    rows = str(compress.verify(path)).splitlines()[:-1]
    assert all(row.endswith("not compared") for row in rows[-4:])
    rows = str(compress.verify(path, TREE)).splitlines()[:-1]
    assert all(row.endswith("yes") for row in rows[-4:])


def test_verify_sees_another_original(saved):
    path, _ = saved
    other = {**TREE, "b": TREE["b"] + np.uint8(1)}
    assert not compress.verify(path, other).ok
    assert "NO" in str(compress.verify(path, other))
    shifted = {**TREE, "a": [TREE["a"][0] + np.float32(1), (None,)]}
    assert not compress.verify(path, shifted).ok
    with refuses(ValueError, "'b'"):
        compress.verify(path, {**TREE, "b": np.zeros(3)})


@pytest.mark.parametrize(
    ("claim", "said"),
    [
        ({"structure": "*"}, "structure"),
        ({"structure": "zz"}, "'zz'"),
        ({"crc32": 1}, "'b'"),
    ],
)
def test_a_forged_header_with_the_right_sums_is_refused(saved, claim, said):
    path, _ = saved

    def forge(header):
        if "crc32" in claim:
            header["tensors"][1]["chunks"][0][2] = claim["crc32"]
        else:
            header.update(claim)

    path.write_bytes(rewritten(path.read_bytes(), forge))
    with refuses(CorruptFileError, said):
        compress.verify(path)


def with_a_false_digest(path, number):
    def forge(header):
        header["tensors"][number]["digest"] = 32 * "0"

    return rewritten(path.read_bytes(), forge)


def test_a_false_digest_is_refused(saved):
    path, _ = saved
    with refuses(CorruptFileError, "'a[0]'"):
        compress.decompress(with_a_false_digest(path, 0))
    path.write_bytes(with_a_false_digest(path, 1))
    with refuses(CorruptFileError, "'b'"):
        compress.verify(path)
    with compress.open(path) as file:
        with refuses(CorruptFileError, "'b'"):
            file["b"]
        with refuses(CorruptFileError, "'b'"):
            file.tree()
        file.check()  # for exact tensors the checksum of the file suffices
        np.testing.assert_array_equal(file.tree()["b"], TREE["b"])


@pytest.mark.parametrize(
    ("max_abs", "rel_error", "true"),
    [(1.0, 0.5, True), (1.1, 0.5, False), (1.0, 0.6, False), (None, None, True)],
)
def test_a_stated_error_is_true_if_neither_found_error_is_above_it(
    max_abs, rel_error, true
):
    check = compress.TensorCheck(
        name="w",
        codec="uniform",
        bytes=1,
        stated_max_abs=1.0,
        stated_rel_error=0.5,
        max_abs=max_abs,
        rel_error=rel_error,
    )
    assert check.true is true


def test_decoded_weights_are_refused_as_originals(tmp_path):
    w = {"w": np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)}
    compress.save(tmp_path / "w.fxz", w, SizeBudget("4x"))
    own = compress.load_weights(tmp_path / "w.fxz")
    with refuses(ValueError, "'w'"):
        compress.verify(tmp_path / "w.fxz", against=own)
    assert compress.verify(tmp_path / "w.fxz", against=w).ok
