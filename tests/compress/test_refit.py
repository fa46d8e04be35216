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


def test_without_refit_larger_weights_break_the_plan(tmp_path):
    plan = compress.plan(weights(1.0), SizeBudget(ratio=6))
    with refuses(ValueError, "Plan"):
        compress.save(tmp_path / "a.fxz", weights(4.0), plan)
