"""Campaigns: their questions, their inference, and their accounts."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from chain_campaigns import CHAIN, campaign_of
from frugax import ExperimentBudget, causal
from frugax.causal.campaign import (
    Campaign,
    ExperimentRecord,
    FailedExperiment,
    _file,
    drive,
    make_simulator_runner,
    prediction_interval,
)
from frugax.causal.campaign.candidates import select_promising
from frugax.causal.posterior import ActionSpace, Points
from frugax.causal.posterior._action_process import _Prior
from frugax.errors import CorruptFileError, FrugaxError, OutputError
from refusals import refuses


def answer(campaign, ask, rows=1):
    data = causal.sample(CHAIN, rows, seed=ask.id, intervention=ask.intervention)
    campaign.tell(ask, data)


def test_a_campaign_finds_the_best_intervention_of_a_chain():
    campaign = campaign_of(seed=1)
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        assert ask.low <= ask.expected <= ask.high
        assert ask.value.total >= 0
        answer(campaign, ask)
    best = campaign.recommend()
    assert best.value == {"z": pytest.approx(3.0, abs=0.3)}
    assert best.low <= -3.0 + 0.2
    assert best.high >= -3.0 - 0.2
    assert best.prob_optimal > 0.5
    assert campaign.spent <= 6.0
    assert campaign.advise().stop
    assert "pays for no more" in campaign.advise().reason


def test_the_target_can_be_maximised():
    campaign = campaign_of(minimize=False, budget=ExperimentBudget(n=3))
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        answer(campaign, ask)
    assert campaign.recommend().value == {"z": pytest.approx(-3.0, abs=0.3)}
    assert campaign.recommend().expected > 2.5


def test_a_campaign_resumed_from_its_file_asks_the_same_questions(tmp_path):
    straight, broken = campaign_of(), campaign_of()
    for campaign in (straight, broken):
        campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    for _ in range(2):
        broken.save(tmp_path / "c")
        broken = Campaign.load(tmp_path / "c")
        one, other = straight.ask(), broken.ask()
        assert one == other
        if one is None or other is None:
            break
        answer(straight, one)
        broken.save(tmp_path / "c")
        broken = Campaign.load(tmp_path / "c")
        assert [e.id for e in broken.pending] == [other.id]
        answer(broken, other)
    assert straight.recommend() == broken.recommend()
    assert straight.experiments == broken.experiments


def test_nothing_is_recommended_before_the_target_is_measured():
    campaign = campaign_of()
    with refuses(FrugaxError, "y"):
        campaign.recommend()
    ask = campaign.ask()
    assert ask is not None
    campaign.tell(ask, math.nan)  # it took place, and nothing was measured
    with refuses(FrugaxError, "y"):
        campaign.recommend()
    assert not campaign.advise().stop
    ask = campaign.ask()
    assert ask is not None
    campaign.tell(ask, 1.5)  # a number is the target
    assert campaign.recommend().low <= campaign.recommend().high


def test_the_cost_of_pending_experiments_is_set_aside():
    campaign = campaign_of(budget=ExperimentBudget(n=4))
    campaign.tell_observations(causal.sample(CHAIN, 30, seed=0))
    asks = [campaign.ask() for _ in range(4)]
    assert campaign.ask() is None
    assert campaign.reserved == sum(a.cost for a in asks if a is not None)
    assert campaign.spent == 0
    first = asks[0]
    assert first is not None
    campaign.tell_failed(first, "power cut", charged=False)
    assert campaign.spent == 0
    assert campaign.ask() is not None  # a failed experiment may be proposed again
    with refuses(ValueError, 0):
        campaign.tell(first, 1.0)
    with refuses(TypeError, "True"):
        campaign.tell(True, 1.0)
    with refuses(ValueError, 9):
        campaign.tell(9, 1.0)


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_failures_never_overdraw_a_budget(seed, tmp_path):
    # Not 0.1 + 0.2: a sum of rounded prices must not pass the limit either.
    rng = np.random.default_rng([seed, 11])
    costs = {n: float(rng.choice([0.1, 0.2, 0.3, 0.7])) for n in ("x", "z")}
    limit = float(rng.choice([0.3, 0.6, 0.9]))
    campaign = campaign_of(
        budget=ExperimentBudget(cost=limit, costs=costs),
        max_targets=2,
        num_posterior_samples=8,
        rows_per_experiment=2,
        seed=seed,
    )
    path = tmp_path / "campaign"
    if rng.random() < 0.7:
        campaign.tell_observations(causal.sample(CHAIN, 12, seed=seed))
    paid = Fraction()
    while (ask := campaign.ask()) is not None:
        match rng.integers(5):
            case 0:
                campaign.tell_failed(ask, "broken")
            case 1:
                campaign.tell(ask, math.nan)
            case 2:
                campaign.tell(ask, {"y": [1.0, math.nan], "x": math.nan})
            case 3:
                campaign.save(path)
                campaign = Campaign.load(path)
                campaign.tell(ask.id, 2.0)
            case _:
                answer(campaign, ask)
        paid += sum(Fraction(repr(costs[n])) for n in ask.intervention.values)
    assert paid <= Fraction(repr(limit))
    assert campaign.spent == float(paid)
    if campaign.measured:
        best = campaign.recommend()
        assert best.low <= best.expected <= best.high


@pytest.mark.thorough
def test_forbidden_sets_are_never_proposed():
    scm = causal.SCM.linear(
        {"a": {}, "b": {}, "c": {}, "y": {"a": 1.0, "b": 1.0, "c": 1.0}}
    )
    campaign = Campaign(
        variables={"a": (-1, 1), "b": (-1, 1), "c": (-1, 1)},
        target="y",
        budget=ExperimentBudget(n=4),
        max_targets=3,
        forbidden_sets=[("a", "b")],
        num_posterior_samples=8,
        rows_per_experiment=5,
    )
    campaign.tell_observations(causal.sample(scm, 60, seed=0))
    while (ask := campaign.ask()) is not None:
        assert not {"a", "b"} <= set(ask.intervention.targets)
        campaign.tell(ask, causal.sample(scm, 5, seed=1, intervention=ask.intervention))
    best = campaign.recommend()
    assert set(best.value) in ({"a", "c"}, {"b", "c"})
    assert best.expected == pytest.approx(-2.0, abs=0.5)


def test_a_constraint_restricts_the_recommendation():
    scm = causal.SCM.linear(
        {"x": {}, "harm": {"x": 1.0}, "y": {"x": -1.0}}, noise_scale=0.2
    )
    told: dict[str, Any] = {
        "variables": {"x": (-3.0, 3.0)},
        "target": "y",
        "budget": ExperimentBudget(n=3),
        "num_posterior_samples": 16,
    }
    found = {}
    for name, constraints in (("free", {}), ("safe", {"harm": (None, 1.0)})):
        campaign = Campaign(**told, constraints=constraints)
        campaign.tell_observations(causal.sample(scm, 200, seed=0))
        found[name] = campaign.recommend()
    assert found["free"].value["x"] == pytest.approx(3.0, abs=0.2)
    assert 0.5 < found["safe"].value["x"] < 1.1
    assert found["safe"].prob_feasible >= 0.9
    # Nothing that is as safe is better; that a bolder one might be does not count.
    assert found["safe"].prob_optimal > 0.5
    assert found["safe"].expected_regret < 0.1


def test_the_grid_is_refined_around_feasible_candidates():
    # A choice that no model allows is best in all; next, one that half of them allow.
    loss = np.tile([0.0, -1.0, -9.0, -5.0, -2.0, 1.0], (4, 1))
    allowed = np.ones(loss.shape, bool)
    allowed[:, 2] = False
    allowed[:2, 3] = False
    centres = select_promising(loss, allowed, np.zeros(6))
    assert centres[:3] == [4, 1, 0]
    assert 2 not in centres
    assert 3 in centres  # there is something to hope for


@pytest.mark.parametrize("minimize", [True, False])
def test_intervals_reach_the_ends_of_a_few_samples(minimize):
    campaign = campaign_of(minimize=minimize)
    campaign.tell_observations(causal.sample(CHAIN, 10, seed=0))
    outlook = campaign.infer().outlook
    worlds = len(outlook.loss)
    loss = np.tile(np.arange(float(worlds))[:, None], (1, len(outlook.points)))
    outlook = dataclasses.replace(outlook, loss=loss if minimize else -loss)
    middle, margin = (worlds - 1) / 2, 0.05 * (worlds + 1) - 1
    assert prediction_interval(outlook, 0, campaign.settings) == pytest.approx(
        (middle, margin, worlds - 1 - margin)
    )
    # Of a few that are equally likely none is beyond the ends.
    few = dataclasses.replace(
        outlook,
        **{name: getattr(outlook, name)[:8] for name in ("loss", "allowed", "reached")},
    )
    _, low, high = prediction_interval(few, 0, campaign.settings)
    assert (low, high) == (0.0, 7.0)


def test_a_constraint_may_be_on_a_variable_that_is_set():
    campaign = campaign_of(constraints={"z": (None, 1.0)}, sets=[("x", "z")])
    ask = campaign.ask()  # before anything is known
    assert ask is not None
    campaign.tell_observations(causal.sample(CHAIN, 40, seed=0))
    best = campaign.recommend()
    assert best.prob_feasible >= 0.9
    assert best.value.get("z", 0.0) <= 1.0


def test_required_edges_are_in_every_sample():
    campaign = campaign_of(required=[("x", "y")], forbidden=[("z", "y")])
    campaign.tell_observations(causal.sample(CHAIN, 60, seed=0))
    known = campaign.infer()
    x, y, z = (known.names.index(n) for n in ("x", "y", "z"))
    assert known.ensemble.edges[x, y] == 1
    assert known.ensemble.edges[z, y] == 0


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "c"
    campaign = campaign_of()
    campaign.tell_observations(causal.sample(CHAIN, 5, seed=0))
    campaign.ask()
    campaign.save(path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 60):
        path.write_bytes(whole[:at])
        with refuses(CorruptFileError):
            Campaign.load(path)
        bent = bytearray(whole)
        bent[at] ^= 255
        path.write_bytes(bytes(bent))
        try:
            again = Campaign.load(path)
        except CorruptFileError:
            continue
        # A byte that is never read, such as the archive's dates.
        assert (again.experiments, again.spent) == (
            campaign.experiments,
            campaign.spent,
        )
    for junk in (b"", b"junk", b"PK"):
        path.write_bytes(junk)
        with refuses(CorruptFileError):
            Campaign.load(path)
    with refuses(FileNotFoundError, "none"):
        Campaign.load(tmp_path / "none")
    with refuses(OutputError, "new"):
        campaign.keep(tmp_path / "new" / "c")
    # Edited by hand: a limit below the reserved amount.
    plain = campaign._state
    two = (*plain.experiments, dataclasses.replace(plain.experiments[0], id=1))
    less = dataclasses.replace(plain.settings, budget=ExperimentBudget(n=1))
    _file.write_state(path, dataclasses.replace(plain, settings=less, experiments=two))
    with refuses(CorruptFileError):
        Campaign.load(path)


def test_drive_answers_pending_experiments_first():
    truth = causal.environment_from_scm(CHAIN, {"x": (-2.0, 2.0), "z": (-3.0, 3.0)})
    campaign = campaign_of(budget=ExperimentBudget(n=3), rows_per_experiment=2)
    campaign.tell_observations(truth.sample(30, seed=0))
    waiting = campaign.ask()
    assert waiting is not None
    told = []
    simulator = make_simulator_runner(truth, rows=2, seed=0)
    advice = drive(
        campaign,
        lambda e: FailedExperiment("broken") if e.id == 1 else simulator(e),
        on_answer=lambda e: told.append((e.id, e.status)),
    )
    assert told == [(0, "answered"), (1, "failed"), (2, "answered")]
    assert advice.stop
    assert truth.regret(campaign.recommend().intervention) < 0.5


def test_outcomes_that_no_graph_explains_are_believed():
    system = causal.SCM.linear({"x": {}, "w": {}, "y": {"x": -1.0}})
    campaign = campaign_of(
        variables={"x": (-2.0, 2.0)},
        forbidden=[("x", "y")],  # and nothing goes through w: no world explains it
        budget=ExperimentBudget(n=4),
        rows_per_experiment=400,
    )
    campaign.tell_observations(causal.sample(system, 50, seed=0))
    tried = (-2.0, 0.0, 1.0, 2.0)
    entries = tuple(
        ExperimentRecord(id=i, values={"x": x}) for i, x in enumerate(tried)
    )
    campaign._commit(
        dataclasses.replace(campaign._state, experiments=entries)
    )  # asked for, in an order that is known
    for i, x in enumerate(tried):
        do = causal.intervene(x=x)
        campaign.tell(i, causal.sample(system, 400, seed=i, intervention=do))
    known = campaign.infer()
    for x in tried:
        g = known.outlook.points.targets.index((known.names.index("x"),))
        off = np.abs(known.outlook.points.values[g][:, 0] - x)
        at = np.flatnonzero(known.outlook.points.group == g)[np.argmin(off)]
        # Four standard errors of the mean of 400 rows, and as much for the samples.
        assert known.outlook.mean[at] == pytest.approx(-x, abs=0.4)


def test_the_covariance_is_that_of_the_drawn_functions():
    space = ActionSpace(
        (0, 1, 2),
        np.array([-1.0, 0.0, 1.0]),
        np.array([1.0, 2.0, 9.0]),
        np.array([0.0, 0.0, 3.0]),
        frozenset({1}),
        {2: np.array([1.0, 3.0, 9.0])},
        largest=3,
    )
    at = space.embed(
        Points(
            ((0,), (1,), (0, 1), (0, 1, 2)),
            (
                np.array([[-1.0], [0.1], [1.0]]),
                np.array([[0.0], [2.0]]),
                np.array([[1.0, 2.0], [-1.0, 2.0], [1.0, 0.0]]),
                np.array([[1.0, 2.0, 9.0], [-1.0, 2.0, 9.0]]),
            ),
        )
    )
    prior = _Prior(space, 0.3)
    theta = prior._centre[None] + 0.2
    rng = np.random.default_rng(0)
    # The features are random too, so that a few draws of each are averaged.
    drawn = np.concatenate([prior.draw(theta, at, 4, rng) for _ in range(3000)])
    expected = prior.kernel(theta, at, at)[0]
    assert drawn.T @ drawn / len(drawn) == pytest.approx(
        expected, abs=0.06 * expected.max()
    )
