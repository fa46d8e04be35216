"""Answers and observations that lack columns."""

import numpy as np
import pytest

from chain_campaigns import CHAIN, campaign_of
from frugax import ExperimentBudget, causal
from frugax.causal.campaign import Integer
from frugax.causal.campaign.preparation import find_imputed_values


def measured(ask):
    return causal.sample(CHAIN, 1, seed=ask.id, intervention=ask.intervention)


@pytest.mark.parametrize("observed", [20, 0])
def test_a_single_number_informs_the_recommendation(observed):
    campaign = campaign_of(budget=ExperimentBudget(n=2 if observed else 8), seed=2)
    if observed:
        campaign.tell_observations(causal.sample(CHAIN, observed, seed=1))
    while (ask := campaign.ask()) is not None:
        campaign.tell(ask, float(measured(ask)["y"][0]))
    best = campaign.recommend()
    (value,) = best.value.values()
    assert best.expected == pytest.approx(-value, abs=0.4)
    assert best.expected < -1.5
    assert best.high - best.low < 2.0


def test_a_column_that_answers_lack_does_not_hide_them():
    campaign = campaign_of(budget=ExperimentBudget(n=2))
    rows = causal.sample(CHAIN, 20, seed=1)
    age = np.random.default_rng(0).normal(size=20)
    campaign.tell_observations({**{n: rows[n] for n in rows.variables}, "age": age})
    while (ask := campaign.ask()) is not None:
        campaign.tell(ask, measured(ask))
    best = campaign.recommend()
    assert best.value == {"z": pytest.approx(3.0, abs=0.3)}
    assert best.expected == pytest.approx(-3.0, abs=0.3)


def test_an_imputed_constant_is_reported():
    told = {"x": (-2.0, 2.0), "q": (-3.0, 5.0)}
    campaign = campaign_of(variables=told, budget=ExperimentBudget(n=2))
    campaign.tell_observations(causal.sample(CHAIN, 20, seed=1))
    known = campaign.infer()
    assert known.imputed == {"q": 1.0}
    # Observations of the other variables count although no row has q.
    y, z = known.names.index("y"), known.names.index("z")
    assert known.ensemble.edges[y, z] + known.ensemble.edges[z, y] > 0.8
    assert "they count as q = 1." in campaign.advise().reason


@pytest.mark.parametrize(
    ("column", "usual"),
    [
        ([np.nan, np.nan, 3.0], {"x": 0.0}),  # measured only where it was set
        ([2.0, np.nan, 3.0], {"x": 2.0}),
        ([2.0, 1.0, np.nan], {}),  # an answer leaves it out, observed rows do not
        ([2.0, 1.0, 3.0], {}),
    ],
)
def test_only_missing_constants_are_imputed(column, usual):
    values = np.array([column, [1.0, 2.0, 3.0]]).T
    intervened = np.zeros((3, 2), bool)
    intervened[2, 0] = True
    settings = campaign_of(budget=ExperimentBudget(n=2)).settings
    assert find_imputed_values(values, intervened, ("x", "y"), settings) == usual


@pytest.mark.parametrize(("size", "may_have_causes"), [(100, True), (1, False)])
def test_whole_numbers_of_a_wide_range_may_have_causes(size, may_have_causes):
    # A few values decide a target without noise, and would look like its effect.
    rows = causal.sample(CHAIN, 60, seed=1)
    scaled = {"x": rows["x"], "z": np.round(size * rows["z"]), "y": rows["y"]}
    settable = {"x": (-2.0, 2.0), "z": Integer(-3 * size, 3 * size)}
    campaign = campaign_of(variables=settable, budget=ExperimentBudget(n=2))
    campaign.tell_observations(scaled)
    known = campaign.infer()
    into_z = known.ensemble.edges[:, known.names.index("z")]
    assert (into_z.max() > 0) == may_have_causes


def test_more_causes_may_be_required_than_are_sought():
    rows = np.random.default_rng(0).normal(size=(40, 5))
    campaign = campaign_of(
        variables={"p": (-2.0, 2.0)},
        required=[(cause, "y") for cause in "pqrs"],
        budget=ExperimentBudget(n=2),
    )
    campaign.tell_observations(dict(zip("pqrsy", rows.T, strict=True)))
    assert campaign.infer().ensemble.edges[:, 4].tolist() == [1, 1, 1, 1, 0]
