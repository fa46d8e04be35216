"""The rules that say which errors matter: calibrated, equal, by the size of rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from forged_files import rewritten
from frugax import (
    CorruptFileError,
    InfeasibleBudgetError,
    SizeBudget,
    compress,
)
from refusals import refuses

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
        outputs = lambda w, n=name: apply(NET | {n: w}, BATCH)
        jacobian = np.asarray(jax.jit(jax.jacobian(outputs))(NET[name]))
        exact = float((jacobian**2).sum()) / NET[name].size
        assert found[name] == pytest.approx(exact, rel=0.15)


@pytest.mark.parametrize(
    ("batches", "draws", "match"),
    [
        ([], 1, "calibrate"),
        ([BATCH], 0, "draws"),
        ([BATCH, BATCH * np.nan], 1, "batches[1]"),
    ],
)
def test_calibration_that_cannot_be_is_refused(batches, draws, match):
    with refuses(ValueError, match):
        compress.calibrate(apply, NET, batches, draws=draws)


def test_calibration_names_weights_that_are_not_finite():
    name = next(iter(NET))
    bad = NET | {name: NET[name] * np.nan}
    with refuses(ValueError, name):
        compress.calibrate(apply, bad, [BATCH])


def test_rows_of_one_size_need_no_exponents():
    even = RNG.normal(size=(50, 64)).astype("f4")
    plan = compress.plan(even, SizeBudget("8x"), sensitivity="rows")
    assert plan.tensors[0].codec == "trellis"


def errors_of_rows(w, rule):
    data = compress.compress(w, SizeBudget("8x"), sensitivity=rule)
    gap = np.linalg.norm(compress.decompress(data) - w, axis=1)
    return gap / np.linalg.norm(w, axis=1), data.report.tensors[0].codec


@pytest.mark.parametrize("rule", ["default", "rows"])
def test_rows_of_a_table_have_about_one_relative_error(rule):
    # Tables are read row by row, and rows compared by their angles.
    rng = np.random.default_rng(6)
    sizes = np.exp(rng.normal(size=(2000, 1)))
    w = (rng.normal(size=(2000, 64)) * sizes).astype("f4")
    errors, codec = errors_of_rows(w, rule)
    assert codec == "trellis scaled"
    small, large = (errors[of] for of in (sizes[:, 0] < 0.5, sizes[:, 0] > 2))
    assert 1.2 < small.mean() / large.mean() < 2.5  # 7 with one step
    before, codec = errors_of_rows(w, "equal")
    assert codec == "trellis"
    assert before[sizes[:, 0] < 0.5].mean() > 4 * before[sizes[:, 0] > 2].mean()


def test_a_table_whose_large_rows_are_the_near_ones_has_one_step():
    # As the input weights of a dense layer, and words whose frequency is their size:
    # errors of large rows are those that count, and the same rows under one step.
    rng = np.random.default_rng(6)
    sizes = np.exp(0.5 * rng.normal(size=(2000, 1)))
    common = 0.7 * (sizes > 1) * rng.normal(size=64)
    w = ((rng.normal(size=(2000, 64)) + common) * sizes).astype("f4")
    errors, codec = errors_of_rows(w, "default")
    assert codec == "trellis"
    assert (errors == errors_of_rows(w, "equal")[0]).all()
    assert errors_of_rows(w, "rows")[1] == "trellis scaled"


def test_tables_have_one_step_where_their_total_error_is_limited():
    rng = np.random.default_rng(6)
    w = rng.normal(size=(2000, 64)) * np.exp(rng.normal(size=(2000, 1)))
    files = [
        compress.compress(w.astype("f4"), SizeBudget(rel_error=0.05), sensitivity=rule)
        for rule in ("default", "equal")
    ]
    assert files[0] == files[1]


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
def test_an_unknown_rule_is_refused(wrong):
    with refuses(TypeError, "sensitivity"):
        compress.plan({"w": np.ones((9, 9))}, SizeBudget("2x"), sensitivity=wrong)


def test_a_damaged_scale_is_a_damaged_file():
    w = (RNG.normal(size=(300, 64)) * np.exp(RNG.normal(size=(300, 1)))).astype("f4")
    data = bytearray(compress.compress(w, SizeBudget("8x"), sensitivity="rows"))
    for at in range(64, 64 + 40):
        broken = bytearray(data)
        broken[at] ^= 0x55
        with pytest.raises(CorruptFileError):
            compress.decompress(bytes(broken))


def correlated(seed, shape):
    """Inputs whose channels differ in size and move together."""
    rng = np.random.default_rng(7)
    mix = rng.normal(size=(shape[-1], shape[-1])) * np.exp(rng.normal(size=shape[-1]))
    return (np.random.default_rng(seed).normal(size=shape) @ mix).astype("f4")


LAYOUTS = {
    "trellis scaled": ((64, 128), lambda w, x: x @ w["w"] + w["b"][None]),
    "trellis columns scaled": ((128, 64), lambda w, x: x @ w["w"].T + w["b"][None]),
}


@functools.cache
def calibrated(codec):
    shape, outputs = LAYOUTS[codec]
    rng = np.random.default_rng(1)
    net = {"w": rng.normal(size=shape).astype("f4"), "b": np.ones(128, "f4")}
    batches, others = correlated(1, (4, 96, 64)), correlated(2, (2, 96, 64))
    rule = compress.calibrate(outputs, net, [*batches], held_out=[*others], draws=4)
    return codec, net, rule


@pytest.fixture(params=[*LAYOUTS])
def layer(request):
    """The codec, the weights and the calibration of a layer, in both layouts."""
    return calibrated(request.param)


@pytest.fixture
def columns():
    """One of these layers, where the layout does not matter."""
    return calibrated("trellis columns scaled")


def test_a_calibrated_matrix_changes_outputs_of_new_inputs_less(layer):
    codec, net, rule = layer
    errors = []
    for sensitivity in (dict(rule), rule):
        data = compress.compress(net, SizeBudget("9x"), sensitivity=sensitivity)
        assert data.receipt.verdict == "kept"
        errors.append(rule.output_error(compress.decompress(data)))
    assert data.report.tensors[1].codec == codec
    assert errors[1] < 0.7 * errors[0]


def test_errors_of_some_channels_make_up_for_those_of_others(layer):
    _, net, rule = layer
    fed = compress.compress(net, SizeBudget("9x"), sensitivity=rule)
    views = {
        name: {n: dataclasses.replace(m, gram=None) for n, m in view.items()}
        for name, view in (("rows", rule.rows), ("columns", rule.columns))
    }
    alone = compress.compress(
        net, SizeBudget("9x"), sensitivity=dataclasses.replace(rule, **views)
    )
    fed, alone = (rule.output_error(compress.decompress(data)) for data in (fed, alone))
    assert fed < 0.92 * alone


def test_a_calibrated_file_is_read_in_every_way(layer, tmp_path):
    codec, net, rule = layer
    path = tmp_path / "net.fxz"
    report = compress.save(path, net, SizeBudget("8x"), sensitivity=rule)
    assert compress.verify(path, against=net).ok
    with compress.open(path) as file:
        whole = file["w"]
        np.testing.assert_array_equal(file.tree()["w"], whole)
        found = file.integers("w")
        assert found is not None
        integers, steps = found
        assert steps.shape == ((64, 1) if codec == "trellis scaled" else (1, 64))
        np.testing.assert_array_equal(integers.astype("f4") * steps, whole)
    assert report.tensors[1].codec == codec


def test_a_plan_asks_for_its_calibration_again(columns):
    _, net, rule = columns
    plan = compress.plan(net, SizeBudget("8x"), sensitivity=rule)
    plan = compress.CompressPlan.from_json(plan.to_json())
    data = compress.apply(net, plan, sensitivity=rule)
    assert data == compress.compress(net, SizeBudget("8x"), sensitivity=rule)
    assert data.receipt.verdict == "kept"
    with refuses(ValueError):
        compress.apply(net, plan)
    other = dataclasses.replace(rule, sensitivity={n: 2 * rule[n] for n in rule})
    with refuses(ValueError):
        compress.apply(net, plan, sensitivity=other)
    plain = compress.plan(net, SizeBudget("8x"))
    with refuses(ValueError, "sensitivity"):
        compress.apply(net, plain, sensitivity=rule)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3, 3, 8, 24), "f4"),
        ((40, 33), "f8"),
        ((7, 5001), "f2"),
        ((1030, 2), ml_dtypes.bfloat16),
        pytest.param((5001, 7), "f4", marks=pytest.mark.thorough),
        pytest.param((1, 2000), "f8", marks=pytest.mark.thorough),
    ],
)
def test_any_shape_and_dtype_can_be_calibrated(shape, dtype):
    net = {"w": RNG.normal(size=shape).astype(dtype)}
    outputs = lambda w, x: jnp.sum(w["w"].astype(jnp.float32) * x)
    inputs = [RNG.normal(size=shape).astype("f4") for _ in range(3)]
    rule = compress.calibrate(outputs, net, inputs, draws=1)
    data = compress.compress(net, SizeBudget("3x"), sensitivity=rule)
    assert data.receipt.verdict == "kept"
    assert compress.decompress(data)["w"].dtype == dtype


def test_chunks_of_a_large_matrix_have_columns_of_their_own(monkeypatch):
    monkeypatch.setattr("frugax.compress.codecs._blocks.BLOCK", 2048)
    net = {"w": np.random.default_rng(1).normal(size=(100, 64)).astype("f4")}
    rule = compress.calibrate(lambda w, x: x @ w["w"].T, net, [correlated(1, (99, 64))])
    data = compress.compress(net, SizeBudget("6x"), sensitivity=rule)
    with compress.CompressedFile(data, place="x") as file:
        assert file.record("w").codec == "trellis columns scaled"
        assert len(file.record("w").chunks) == 4
        whole = file["w"]
        found = file.integers("w")
        assert found is not None
        integers, steps = found
        np.testing.assert_array_equal(integers.astype("f4") * steps, whole)
    np.testing.assert_array_equal(compress.decompress(data)["w"], whole)


def test_columns_of_a_vector_are_a_damaged_file(columns):
    _, net, _ = columns
    data = compress.compress(net["w"][:40].reshape(-1), SizeBudget("6x"))

    def change(header):
        header["tensors"][0]["codec"] = "trellis columns"

    with refuses(CorruptFileError):
        compress.decompress(rewritten(data, change))


def test_a_budget_of_the_outputs_error_is_kept_on_other_inputs(columns, tmp_path):
    _, net, rule = columns
    limit = 0.05
    budget = SizeBudget(output_error=limit)
    report = compress.save(tmp_path / "w.fxz", net, budget, sensitivity=rule)
    (spend,) = report.spends
    # Measured again, on inputs that were not calibrated on, from the file.
    with compress.open(tmp_path / "w.fxz") as file:
        found = rule.output_error(dict(file))
    assert spend.measured == pytest.approx(found)
    assert spend.verdict == "kept"
    assert 0.8 * limit < found <= limit
    assert "held out" in spend.source
    assert spend.predicted != spend.measured
    exact = compress.compress(net, SizeBudget(output_error=0), sensitivity=rule)
    assert compress.decompress(exact)["w"].tobytes() == net["w"].tobytes()


def test_without_held_out_inputs_the_verdict_is_cannot_tell(columns):
    _, net, rule = columns
    rule = dataclasses.replace(rule, output_error=None)
    budget = SizeBudget(output_error=0.1)
    plan = compress.plan(net, budget, sensitivity=rule)
    assert 0 < plan.predicted <= 0.1
    data = compress.apply(net, plan, sensitivity=rule)
    (spend,) = data.report.spends
    assert (spend.measured, str(spend.verdict)) == (None, "cannot tell")
    assert "held_out=" in spend.source


def test_a_size_and_an_error_of_outputs_both_hold_or_neither_does(columns):
    _, net, rule = columns
    with pytest.raises(InfeasibleBudgetError) as caught:
        compress.plan(net, SizeBudget("8x", output_error=0.001), sensitivity=rule)
    within = SizeBudget(bytes=int(caught.value.needed), output_error=0.001)
    assert compress.compress(net, within, sensitivity=rule).receipt.verdict == "kept"
    error = caught.value.reachable["output_error"]
    found = compress.compress(
        net, SizeBudget("8x", output_error=error), sensitivity=rule
    )
    assert found.receipt.verdict == "kept"


def test_an_error_of_outputs_needs_a_calibration(columns):
    net = columns[1]
    with refuses(ValueError, "plan"):
        compress.plan(net, SizeBudget(output_error=0.1))
