"""The rules that say which errors matter: calibrated, equal, by the size of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import CorruptFileError, SizeBudget, compress

RNG = np.random.default_rng(0)


def apply(w, x):
    return jnp.tanh(x @ w["a"]) @ w["b"]


NET = {
    "a": RNG.normal(size=(16, 24)).astype("f4"),
    "b": RNG.normal(size=(24, 4)).astype("f4"),
    "count": np.int32(3),
}
BATCH = RNG.normal(size=(32, 16)).astype("f4")


def test_calibration_is_the_mean_square_of_the_jacobian():
    found = compress.calibrate(apply, NET, [BATCH], draws=64)
    assert sorted(found) == ["a", "b"]
    for name in ("a", "b"):
        jacobian = jax.jacobian(lambda w, n=name: apply(NET | {n: w}, BATCH))(NET[name])
        exact = float((jacobian**2).sum()) / NET[name].size
        assert found[name] == pytest.approx(exact, rel=0.15)


def test_calibrated_weights_make_the_change_of_the_outputs_smaller():
    # Half of the outputs are a thousand times the others.
    net = {
        "small": RNG.normal(size=(64, 64)).astype("f4"),
        "large": RNG.normal(size=(64, 64)).astype("f4"),
    }
    x = RNG.normal(size=(50, 64)).astype("f4")

    def outputs(w, x):
        return jnp.concatenate([x @ w["small"], 1000 * x @ w["large"]], 1)

    def change(rule):
        data = compress.compress(net, SizeBudget("8x"), sensitivity=rule)
        gap = outputs(compress.decompress(data), x) - outputs(net, x)
        return float(jnp.linalg.norm(gap))

    calibrated = compress.calibrate(outputs, net, [x])
    assert change(calibrated) < change("equal") / 4


@pytest.mark.parametrize(
    ("batches", "draws", "match"),
    [
        ([], 1, "no batches"),
        ([BATCH], 0, "draws >= 1"),
        ([BATCH * np.nan], 1, "finite"),
    ],
)
def test_calibration_that_cannot_be_is_refused(batches, draws, match):
    with pytest.raises(ValueError, match=match):
        compress.calibrate(apply, NET, batches, draws=draws)


def test_rows_of_different_sizes_get_scales_that_pay(tmp_path):
    sizes = np.exp(RNG.normal(size=(300, 1)))
    w = (RNG.normal(size=(300, 256)) * sizes).astype("f4")

    def row_error(rule):
        data = compress.compress(w, SizeBudget("8x"), sensitivity=rule)
        gap = np.linalg.norm(compress.decompress(data) - w, axis=1)
        return np.mean(gap / np.linalg.norm(w, axis=1)), data.report

    scaled, report = row_error("rows")
    plain, _ = row_error("equal")
    assert report.tensors[0].codec == "scaled"
    assert scaled < 0.8 * plain
    plan = compress.plan(w, SizeBudget("8x"), sensitivity="rows")
    report = compress.apply(w, plan, path=tmp_path / "w.fxz")
    assert report.receipt.verdict == "kept"
    assert compress.verify(tmp_path / "w.fxz", w).ok
    # Rows of one size need none.
    even = RNG.normal(size=(300, 256)).astype("f4")
    plan = compress.plan(even, SizeBudget("8x"), sensitivity="rows")
    assert plan.tensors[0].codec == "trellis"


def test_no_outlier_loses_the_other_numbers_of_its_row():
    rng, rows = np.random.default_rng(5), [7, 31, 200]
    sizes = np.exp(rng.normal(size=(300, 1)))
    sizes[rows] = 1
    w = (rng.normal(size=(300, 256)) * sizes).astype("f4")
    w[rows, 5] = [3000, 1500, 1000]
    data = compress.compress(w, SizeBudget("8x"), sensitivity="rows")
    gap = np.delete(compress.decompress(data) - w, 5, axis=1)[rows]
    rest = np.delete(w, 5, axis=1)[rows]
    errors = np.linalg.norm(gap, axis=1) / np.linalg.norm(rest, axis=1)
    assert (errors < 0.25).all()


@pytest.mark.parametrize("wrong", ["best", 3, ["w"]])
def test_a_rule_that_there_is_not_is_refused(wrong):
    with pytest.raises(TypeError, match="sensitivity"):
        compress.plan({"w": np.ones((9, 9))}, SizeBudget("2x"), sensitivity=wrong)


def test_a_damaged_scale_is_a_damaged_file():
    w = (RNG.normal(size=(300, 64)) * np.exp(RNG.normal(size=(300, 1)))).astype("f4")
    data = bytearray(compress.compress(w, SizeBudget("8x"), sensitivity="rows"))
    for at in range(64, 64 + 40):
        broken = bytearray(data)
        broken[at] ^= 0x55
        with pytest.raises(CorruptFileError):
            compress.decompress(bytes(broken))
