"""Tensors whose columns differ in size are coded column by column, for fewer bytes."""

import numpy as np
import pytest

from frugax import SizeBudget, compress

RNG = np.random.default_rng(0)
BUDGET = SizeBudget(rel_error=0.05)


def taps(shape, dtype="f4", spread=1.5):
    """Normal numbers whose size follows all indices but the first."""
    sizes = np.exp(spread * RNG.normal(size=(1, *shape[1:])))
    return (RNG.normal(size=shape) * sizes).astype(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((160, 3, 5, 7), "f4"),
        ((90, 200), "f2"),
        pytest.param((40, 1, 513), "f8", marks=pytest.mark.thorough),
        pytest.param((8192, 2), "f4", marks=pytest.mark.thorough),
    ],
)
def test_columns_of_different_sizes_take_fewer_bytes(shape, dtype, tmp_path):
    path, tree = tmp_path / "w.fxz", {"w": taps(shape, dtype), "b": np.ones(3)}
    report = compress.save(path, tree, BUDGET)
    assert report.verdict == "kept"
    assert report.tensors[1].codec == "trellis columns"
    # The same numbers in an order without columns of different sizes, for less error.
    mixed = {"w": RNG.permutation(tree["w"].reshape(-1)).reshape(shape)}
    plain = compress.plan(mixed, BUDGET)
    assert plain.tensors[0].codec == "trellis"
    assert report.tensors[1].bytes < 0.9 * plain.tensors[0].bytes
    assert compress.verify(path, against=tree).ok
    with compress.open(path) as file:
        whole = file["w"]
        np.testing.assert_array_equal(file.tree()["w"], whole)
        coded = file.integers("w")
        assert coded is not None
        integers, step = coded
        assert step.shape == ()  # one step is for all
        values = (integers.astype(step.dtype) * step).astype(dtype)
        np.testing.assert_array_equal(values, whole)


def test_a_plan_gives_the_same_bytes():
    tree = {"w": taps((200, 100)), "x": taps((300, 64))}
    plan = compress.plan(tree, BUDGET)
    assert {t.codec for t in plan.tensors} == {"trellis columns"}
    data = compress.compress(tree, BUDGET)
    assert plan.calibration is None
    plan = compress.CompressPlan.from_json(plan.to_json())
    assert compress.apply(tree, plan) == data


@pytest.mark.parametrize("sensitivity", ["equal", "rows", {"w": 1.0}])
def test_every_rule_may_choose_columns(sensitivity):
    tree = {"w": taps((150, 120))}
    (w,) = compress.plan(tree, SizeBudget("9x"), sensitivity=sensitivity).tensors
    assert w.codec == "trellis columns"


def test_where_columns_are_alike_rows_stay():
    sizes = np.exp(RNG.normal(size=(150, 1)))
    even = RNG.normal(size=(150, 120))
    for w in (even, even * sizes, taps((150, 120), spread=0.05), taps((60, 60))):
        (tensor,) = compress.plan({"w": w.astype("f4")}, BUDGET).tensors
        assert tensor.codec == "trellis"


def test_a_calibrated_tensor_keeps_its_calibrated_step():
    net = {"w": taps((160, 128)), "unused": taps((160, 128))}
    rule = compress.calibrate(
        lambda w, x: x @ w["w"] + 0 * w["unused"].sum(),
        net,
        [RNG.normal(size=(9, 160))],
    )
    plan = compress.plan(net, SizeBudget("8x"), sensitivity=rule)
    assert compress.apply(net, plan, sensitivity=rule).receipt.verdict == "kept"
