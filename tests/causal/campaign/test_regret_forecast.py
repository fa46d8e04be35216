"""The regret that a plan forecasts, from campaigns on the posterior samples."""

import numpy as np
import pytest

from frugax import ExperimentBudget, causal
from frugax.budget import Verdict
from frugax.causal import Campaign
from frugax.causal.campaign.regret_forecast import simulate_regret
from frugax.causal.policy import Outlook
from frugax.causal.posterior import Points


def outlook_of(loss, noise, price=1.0):
    worlds, count = loss.shape
    half = count // 2
    points = Points(
        ((0,), (1,)),
        (np.linspace(-1, 1, half)[:, None], np.linspace(-1, 1, count - half)[:, None]),
    )
    return Outlook(
        points=points,
        loss=loss,
        allowed=np.ones(loss.shape, bool),
        price=np.full(count, price),
        affordable=np.ones(count, bool),
        reached=np.full(worlds, np.inf),
        breach=np.zeros(count),
        noise=noise,
        done=Points((), ()),
    )


def test_the_regret_falls_with_the_budget_and_less_with_noise():
    loss = np.random.default_rng(0).standard_normal((40, 6))
    exact = simulate_regret(outlook_of(loss, 1e-3), 12.0, np.inf, seed=0)
    # Before any experiment: the recommendation's mean distance from the best.
    best = int((loss.mean(0) + 0.5 * loss.std(0)).argmin())
    expected = float((loss[:, best] - loss.min(1)).mean())
    assert exact[0].expected == pytest.approx(expected)
    # Twelve exact experiments on six points leave nothing unknown.
    assert exact[-1].expected < 0.01 < exact[1].expected < exact[0].expected
    noisy = simulate_regret(outlook_of(loss, 3.0), 12.0, np.inf, seed=0)
    assert noisy[-1].expected > 0.2
    # A price of six leaves two experiments, and so does a limit of two.
    dear = simulate_regret(outlook_of(loss, 1e-3, 6.0), 12.0, np.inf, seed=0)
    few = simulate_regret(outlook_of(loss, 1e-3), 12.0, 2, seed=0)
    assert dear[-1] == few[-1]
    assert dear[1].expected == dear[0].expected  # a quarter pays for none


def test_a_forecast_within_the_targets_spread_has_a_verdict():
    model = causal.SCM.linear({"x": {}, "y": {"x": -1.0}}, noise_scale=0.1)
    campaign = Campaign(
        variables={"x": (-1.0, 1.0)},
        target="y",
        budget=ExperimentBudget(n=3),
        num_posterior_samples=8,
    )
    campaign.tell_observations(causal.sample(model, 100, seed=1))
    while (one := campaign.ask()) is not None:
        rows = causal.sample(model, 1, seed=one.id, intervention=one.intervention)
        campaign.tell(one, rows)
    best = campaign.recommend()
    regret = campaign.receipt.spends[-1]
    assert regret.limit < 1.0
    assert regret.measured == pytest.approx(best.expected_regret)
    assert regret.verdict == Verdict.KEPT


def test_no_forecast_is_given_without_data():
    campaign = Campaign(
        variables={"x": (0.0, 1.0)}, target="y", budget=ExperimentBudget(n=2)
    )
    assert campaign.forecast_regret() == ()
    (first,) = campaign.ask(1)
    campaign.tell(first, 1.0)
    assert len(campaign.receipt.spends) == 2
    timed = Campaign(
        variables={"x": (0.0, 1.0)}, target="y", budget=ExperimentBudget(seconds=60)
    )
    timed.tell_observations({"x": [0.0, 0.5, 1.0], "y": [0.0, 1.0, 1.0]})
    assert timed.forecast_regret() == ()
