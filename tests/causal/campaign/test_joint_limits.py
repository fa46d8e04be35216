"""Limits on variables that one experiment sets together."""

from typing import Any

import numpy as np
import pytest

from frugax import ExperimentBudget
from frugax.causal.campaign import Campaign, Categorical, Integer, JointLimit
from frugax.causal.campaign.candidates import make_grid
from refusals import refuses

VARIABLES = {
    "heat": (20.0, 120.0),
    "load": (0.0, 1.0),
    "solvent": Categorical(("water", "toluene")),
    "cycles": Integer(1, 6),
}
COLD = JointLimit(weights={"heat": 1.0}, high=90.0, when={"solvent": "water"})
MIXED = JointLimit(weights={"load": 10.0, "cycles": 1.0}, low=3.0, high=3.2)


def campaign_of(*limits, **more):
    told: dict[str, Any] = {"variables": VARIABLES, "target": "y", "max_targets": 2}
    told |= {"budget": ExperimentBudget(n=3), "num_posterior_samples": 8}
    return Campaign(joint_limits=limits, **{**told, **more})


def test_no_candidate_breaks_a_limit(tmp_path):
    campaign = campaign_of(COLD, MIXED)
    names = tuple(sorted(VARIABLES))
    settings = campaign.settings
    points = make_grid(settings, names, np.random.default_rng(0))
    at = {
        tuple(names[v] for v in targets): values
        for targets, values in zip(points.targets, points.values, strict=True)
    }
    heat, solvent = at["heat", "solvent"].T
    assert heat[solvent == 0].max() <= 90 < heat[solvent == 1].max()
    load, cycles = at["load", "cycles"].T
    assert len(load) > 20  # few points of a grid are in so narrow a band
    assert np.abs(10 * load + cycles - 3.1).max() <= 0.1 + 1e-6
    assert at["heat",].max() == 120  # set alone, heat is free
    campaign.save(tmp_path / "campaign")
    assert Campaign.load(tmp_path / "campaign").settings == settings


def test_questions_and_the_recommendation_keep_the_limits():
    rng = np.random.default_rng(0)
    campaign = campaign_of(
        JointLimit(weights={"a": 1.0, "b": 1.0}, high=1.0),
        variables={"a": (0.0, 1.0), "b": (0.0, 1.0)},
    )
    a, b = rng.random((2, 40))
    campaign.tell_observations({"a": a, "b": b, "y": -a - b + 0.1 * rng.random(40)})
    asked = campaign.ask(3)
    assert any(len(one.actions) == 2 for one in asked)
    for one in asked:
        values = one.intervention.values
        assert len(values) < 2 or sum(values.values()) <= 1 + 1e-6
        gave = -sum(values.get(n, 0.5) for n in "ab")
        campaign.tell(one, gave)
    best = campaign.recommend().value
    assert len(best) < 2 or sum(best.values()) <= 1 + 1e-6


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        (JointLimit(weights={"heat": 1.0}, high=9.0), "variables"),
        (JointLimit(weights={"heat": 1.0, "lxad": 1.0}, high=9.0), "lxad"),
        (JointLimit(weights={"heat": 1.0, "load": 1.0}), "high"),
        (JointLimit(weights={"solvent": 1.0, "load": 1.0}, high=1.0), "level"),
        (JointLimit(weights={"heat": 1, "load": 1}, low=1, high=1), "high"),
        (
            JointLimit(weights={"heat": 1}, high=1, when={"solvent": "oil"}),
            "toluene",
        ),
    ],
)
def test_a_limit_that_does_not_fit_is_refused(limit, named):
    with refuses(ValueError, named):
        campaign_of(limit)


@pytest.mark.parametrize("ends", [{"low": 17.0}, {"high": 0.5}])
def test_a_limit_that_nothing_keeps_is_refused(ends):
    limit = JointLimit(weights={"load": 10.0, "cycles": 1.0}, **ends)
    with refuses(ValueError, 16):
        campaign_of(limit)
    at_end = JointLimit(weights={"load": 0.1, "cycles": 0.1}, low=0.7)
    assert campaign_of(at_end).settings.joint_limits == (at_end,)
