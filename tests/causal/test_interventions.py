"""Interventions: the edges they cut, their composition and their text."""

import numpy as np
import pytest

from frugax import causal
from frugax.causal import (
    SCM,
    Intervention,
    VariableIntervention,
    intervene,
    intervene_imperfectly,
    scale,
    shift,
)
from refusals import refuses

N = 2000


@pytest.fixture(scope="module")
def chain():
    return SCM.linear({"x": {}, "y": {"x": 2.0}, "z": {"y": 1.0}}, noise_scale=0.1)


@pytest.fixture(scope="module")
def base(chain):
    return causal.sample(chain, N, seed=0)


def draw(chain, intervention):
    return causal.sample(chain, N, seed=0, intervention=intervention)


def test_setting_cuts_from_the_causes_and_reaches_the_effects(chain, base):
    data = draw(chain, intervene(y=5.0))
    np.testing.assert_array_equal(data["x"], base["x"])
    np.testing.assert_array_equal(data["y"], 5.0)
    np.testing.assert_allclose(data["z"] - 5, base["z"] - base["y"], atol=1e-6)
    np.testing.assert_array_equal(data.intervened, [[False, True, False]] * N)


def test_shifting_and_scaling_keep_the_causes(chain, base):
    shifted, scaled = draw(chain, shift(y=1.0)), draw(chain, scale(y=-0.5))
    np.testing.assert_allclose(shifted["y"] - base["y"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(shifted["z"] - base["z"], 1.0, rtol=1e-5)
    np.testing.assert_allclose(scaled["y"], -0.5 * base["y"], rtol=1e-6)
    assert shifted.intervened[:, 1].all()
    assert scaled.intervened[:, 1].all()


def test_an_imperfect_intervention_misses_and_at_times_fails(chain, base):
    data = draw(chain, intervene_imperfectly({"y": 5.0}, sd=0.2, hit=0.7))
    failed = data["y"] == base["y"]
    # Four standard errors of a share, then of a mean and of a deviation.
    assert (1 - failed.mean()) == pytest.approx(0.7, abs=4 * (0.21 / N) ** 0.5)
    reached = data["y"][~failed]
    assert reached.mean() == pytest.approx(5.0, abs=4 * 0.2 / len(reached) ** 0.5)
    assert reached.std() == pytest.approx(0.2, rel=4 / (2 * len(reached)) ** 0.5)
    assert data.intervened[:, 1].all(), (
        "what was tried is marked, as only that is known"
    )
    np.testing.assert_array_equal(data["x"], base["x"])


def test_interventions_combine_and_describe_themselves(chain, base):
    both = intervene(x=1.0) | shift(z=-2.0)
    assert both.targets == ("x", "z")
    assert both.values == {"x": 1.0, "z": -2.0}
    assert (both.kind, intervene(x=1.0).kind, Intervention().kind) == (
        "mixed",
        "perfect",
        "none",
    )
    assert str(both) == "do(x = 1, z += -2)"
    assert both == shift(z=-2.0) | intervene(x=1.0)
    assert hash(both) == hash(shift(z=-2.0) | intervene(x=1.0))
    data = draw(chain, both)
    np.testing.assert_allclose(
        data["z"], base["z"] + 2 * (1 - base["x"]) - 2, atol=1e-5
    )
    with refuses(ValueError, "x"):
        _ = intervene(x=1.0) | shift(x=1.0)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: intervene(x=float("nan")), "nan"),
        (
            lambda: intervene_imperfectly({"x": 1.0}, hit=1.5),
            "hit",
        ),
        (lambda: intervene_imperfectly({"x": 1.0}, sd=-1.0), "sd"),
        (lambda: VariableIntervention("x", "perfekt", 1.0), "perfekt"),
    ],
)
def test_impossible_changes_are_refused(make, named):
    with refuses(ValueError, named):
        make()


def test_unknown_and_hidden_targets_are_refused():
    scm = SCM.linear({"u": {}, "x": {"u": 1.0}}, hidden=["u"])
    with refuses(ValueError, "q"):
        causal.sample(scm, 5, seed=0, intervention=intervene(q=1.0))
    with refuses(ValueError, "u"):
        causal.sample(scm, 5, seed=0, intervention=intervene(u=1.0))
    assert causal.sample(scm, 5, seed=0).variables == ("x",)
