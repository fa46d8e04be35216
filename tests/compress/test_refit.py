"""A plan is fitted to weights that were trained since, without another search."""

import numpy as np
import pytest

from frugax import SizeBudget, compress
from refusals import refuses


def weights(scale):
    rng = np.random.default_rng(0)
    return {name: scale * rng.normal(size=(64, 64)).astype("f4") for name in "ab"}


@pytest.mark.parametrize("scale", [0.25, 1.0, 4.0])
def test_scaled_steps_fill_the_size_of_the_plan(tmp_path, scale):
    plan = compress.plan(weights(1.0), SizeBudget(ratio=6))
    trained = weights(scale)
    report = compress.save(tmp_path / "a.fxz", trained, plan, refit=True)
    limit = sum(w.nbytes for w in trained.values()) / 6
    assert 0.95 * limit < (tmp_path / "a.fxz").stat().st_size <= limit
    assert report.verdict == "kept"
    searched = compress.save(tmp_path / "b.fxz", trained, SizeBudget(ratio=6))
    assert report.rel_error < 1.2 * searched.rel_error


@pytest.mark.parametrize("scale", [0.5, 1e4])
@pytest.mark.parametrize("budget", [SizeBudget(ratio=6), SizeBudget(rel_error=0.05)])
def test_a_plan_is_refused_for_weights_of_another_size(budget, scale):
    tree = weights(1.0)
    plan = compress.plan(tree, budget)
    other = {"a": tree["a"], "b": tree["b"] * np.float32(scale)}
    with refuses(ValueError, "b", "Plan"):
        compress.apply(other, plan)
    with refuses(ValueError, "b", "Plan"):
        compress.compress(other, compress.CompressPlan.from_json(plan.to_json()))


def test_refitted_steps_follow_each_tensor(tmp_path):
    tree = weights(1.0)
    plan = compress.plan(tree, SizeBudget(ratio=6))
    tree["b"] *= np.float32(0.01)
    report = compress.save(tmp_path / "a.fxz", tree, plan, refit=True)
    assert all(t.rel_error < 0.06 for t in report.tensors)


def test_a_size_that_stays_unused_is_a_warning_in_the_receipt(tmp_path):
    # One number so large that all others become zeros, or the tensor is exact.
    tree = weights(1.0)
    tree["a"][0, 0] = tree["b"][0, 0] = 1e30
    for size, warned in (("3x", True), ("1.1x", False)):
        report = compress.save(tmp_path / "a.fxz", tree, SizeBudget(size))
        assert report.verdict == "kept"
        (spend,) = report.receipt.spends
        assert ("%" in spend.problems) == warned
        assert (spend.problems in str(report)) == warned or not spend.problems
