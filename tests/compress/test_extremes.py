"""Numbers at the ends of a dtype's range, and tensors that no step can shorten."""

import ml_dtypes
import numpy as np
import pytest

from frugax import SizeBudget, compress

NORMAL = np.random.default_rng(0).normal(size=(2, 120, 120))


def errors_of(tree, budget):
    data = compress.compress(tree, budget)
    assert data.receipt.verdict == "kept"
    back = compress.decompress(data)
    found = {}
    for name, w in tree.items():
        w = w.astype(np.float64)
        found[name] = np.linalg.norm(back[name].astype(np.float64) - w)
        found[name] /= np.linalg.norm(w)
    return found, len(data)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_tensor_near_the_largest_number_leaves_others_their_bytes(dtype, share):
    largest = float(ml_dtypes.finfo(dtype).max)
    edge = (NORMAL[0] * share).clip(-1, 1) * largest
    tree = {
        "edge": edge.astype(dtype),
        "plain": (NORMAL[1] * share * largest / 5).astype(dtype),
    }
    found, length = errors_of(tree, SizeBudget("3bpw"))
    assert 0.98 < length / (6 * 120 * 120 / 8) <= 1
    assert max(found.values()) < 0.3


@pytest.mark.parametrize("outlier", [1e9, 1e12, 1e30])
def test_a_tensor_whose_steps_are_all_coarse_takes_no_others_bytes(outlier):
    # One number so large that the others are zeros or the tensor is exact.
    edge = NORMAL[0].astype(np.float32)
    edge[3, 4] = outlier
    found, length = errors_of(
        {"edge": edge, "plain": NORMAL[1].astype(np.float32)}, SizeBudget("6x")
    )
    assert found["plain"] < 0.03
    assert length > 0.95 * 8 * 120 * 120 / 6


def test_integers_and_steps_have_the_values_of_the_file(tmp_path):
    edge = (NORMAL[0] * 3e4).clip(-65504, 65504).astype(np.float16)
    compress.save(tmp_path / "w.fxz", {"w": edge}, SizeBudget("3bpw"))
    with compress.open(tmp_path / "w.fxz") as file:
        decoded = file["w"]
        coded = file.integers("w")
    assert np.abs(decoded).max() == 65504
    assert coded is not None
    product = (coded[0] * coded[1]).clip(-65504, 65504).astype(np.float16)
    assert np.array_equal(product, decoded)
