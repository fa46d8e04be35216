"""A learned policy: its input, the games it learns from, and its use in campaigns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import ExperimentBudget, SizeBudget, causal, compress
from frugax.causal.policy import POLICIES, Outlook
from frugax.causal.posterior import Points
from frugax.compat import causal_training as guide
from frugax.compat.causal_training._grpo import answer_experiment
from frugax.compat.causal_training._policy import (
    PLACES,
    candidate_features,
    log_policy,
    shortlist,
)
from frugax.errors import BudgetExceededError
from refusals import refuses


def _outlook(rng, places=24, worlds=32):
    """A random campaign: worlds agree with each other more than with the truth."""
    # Smooth functions along the list: neighbours have similar effects.
    waves = np.cos(np.outer(np.arange(6), np.linspace(0, np.pi, places)))
    drawn = rng.standard_normal((2 + worlds, 6)) @ waves / 2
    every = np.ones(places, bool)
    outlook = Outlook(
        points=Points(((0,),), (np.arange(places, dtype=float)[:, None],)),
        loss=drawn[0] + drawn[1] + drawn[2:],
        allowed=np.ones((worlds, places), bool),
        price=rng.uniform(0.5, 2, places),
        affordable=every,
        causes=np.zeros(worlds, int),
        reached=np.full(worlds, np.inf),
        breach=np.zeros(places),
        noise=0.1,
        done=Points((), ()),
        left=2.5,
    )
    return outlook, drawn[0]


def _states(count, **more):
    rng = np.random.default_rng(0)
    pairs = [_outlook(rng, **more) for _ in range(count)]
    return [guide.GameState(shortlist(o)[0], truth) for o, truth in pairs]


def _weights(seed=1):
    rng = np.random.default_rng(seed)
    return {
        name: w + 0.3 * rng.standard_normal(w.shape).astype(np.float32)
        for name, w in guide.create_acquisition_policy(8).weights.items()
    }


def test_a_shortlist_has_the_recommendation_and_the_best_of_each_part():
    outlook, _ = _outlook(np.random.default_rng(0), places=500)
    affordable = np.arange(500) % 3 > 0
    outlook = dataclasses.replace(outlook, affordable=affordable)
    candidates, places = shortlist(outlook)
    assert len(places) in (PLACES - 1, PLACES)
    assert affordable[places[places != outlook.best]].all()
    assert places[candidates.best] == outlook.best
    np.testing.assert_array_equal(candidates.points.values[0][:, 0], places)
    np.testing.assert_array_equal(candidates.loss, outlook.loss[:, places])


def test_features_do_not_depend_on_units_currency_or_order():
    candidates = _states(1)[0].candidates
    features = candidate_features(candidates)
    other = dataclasses.replace(
        candidates,
        loss=candidates.loss * 50 + 7,
        noise=candidates.noise * 50,
        price=candidates.price * 3,
    )
    np.testing.assert_allclose(candidate_features(other), features, atol=1e-5)
    turn = np.random.default_rng(0).permutation(24)
    turned = dataclasses.replace(
        candidates, loss=candidates.loss[:, turn], price=candidates.price[turn]
    )
    np.testing.assert_allclose(candidate_features(turned), features[turn], atol=1e-6)


def test_numpy_and_jax_agree_and_only_affordable_candidates_are_likely():
    features = candidate_features(_states(1)[0].candidates)
    affordable = np.arange(24) % 2 > 0
    in_numpy = log_policy(_weights(), features, affordable)
    in_jax = jax.jit(lambda *of: log_policy(*of, xp=jnp))(
        _weights(), features, affordable
    )
    assert np.exp(in_numpy).sum() == pytest.approx(1, rel=1e-5)
    assert np.exp(in_numpy)[~affordable].max() == 0
    np.testing.assert_allclose(in_numpy[affordable], in_jax[affordable], atol=1e-5)
    untrained = guide.create_acquisition_policy(8).weights
    even = log_policy(untrained, features, affordable)
    np.testing.assert_allclose(even[affordable], -np.log(12), rtol=1e-5)


def test_games_stay_within_the_budget():
    states = _states(16)
    config = guide.GRPOConfig(group_size=4, interventions_per_state=5)
    policy = guide.create_acquisition_policy(8)
    games = guide.collect_experience(policy, states, config, seed=0)
    price = np.repeat([s.candidates.price for s in states], 4, axis=0)
    paid = np.take_along_axis(price, games.action, 1) * games.alive
    assert (paid.sum(1) <= 2.5 * price.mean(1) + 1e-4).all()
    assert not games.alive.all()
    assert games.alive[:, 0].all()
    again = guide.collect_experience(policy, states, config, seed=0)
    np.testing.assert_array_equal(again.action, games.action)


def test_answers_move_worlds_towards_the_truth_and_cost_their_price():
    rng = np.random.default_rng(0)
    states = _states(40)
    after = [answer_experiment(s.candidates, s.truth, 3, rng) for s in states]
    off = lambda each: np.mean(
        [
            abs(o.loss[:, 3].mean() - s.truth[3])
            for o, s in zip(each, states, strict=True)
        ]
    )
    before = [s.candidates for s in states]
    assert off(after) < 0.3 * off(before)
    for new, old in zip(after, before, strict=True):
        assert new.loss[:, 3].std() < 0.5 * old.loss[:, 3].std()
        paid = (old.left - new.left) * old.price.mean()
        assert paid == pytest.approx(old.price[3])


@pytest.mark.slow
def test_grpo_learns_within_groups_from_one_program():
    config = guide.GRPOConfig(
        group_size=8, interventions_per_state=2, learning_rate=0.05
    )
    trainer = guide.GRPOTrainer(guide.create_acquisition_policy(8), config)
    states = _states(16, places=60)
    updates = []
    for index in range(14):
        games = guide.collect_experience(trainer.policy, states, config, seed=index)
        # All games of a group begin at one and the same state.
        groups = games.features.reshape(16, 8, *games.features.shape[1:])
        np.testing.assert_array_equal(groups[:, 0, 0], groups[:, -1, 0])
        updates.append(trainer.update(games))
    rewards = [update["reward"] for update in updates]
    assert trainer.step.compiles == 1
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.02
    assert updates[-1]["kl"] > 0
    fewer = guide.collect_experience(trainer.policy, states[:3], config, seed=0)
    with pytest.raises(BudgetExceededError):
        trainer.update(fewer)


def _campaign(policy):
    scm = causal.SCM.linear({"a": {}, "b": {"a": 1.0}, "y": {"b": -1.0}}, target="y")
    environment = causal.environment_from_scm(scm, (-2.0, 2.0))
    campaign = causal.Campaign(
        variables=environment.ranges,
        target="y",
        budget=ExperimentBudget(cost=2.0, costs={"a": 1.0, "b": 1.5}),
        policy=lambda outlook, rng: policy(environment, outlook, rng),
        num_posterior_samples=8,
    )
    campaign.tell_observations(causal.sample(scm, 30, seed=0))
    while (ask := campaign.ask()) is not None:
        done = ask.intervention
        campaign.tell(ask, causal.sample(scm, 1, seed=1, intervention=done))
    return campaign


def test_a_state_of_a_campaign_has_the_true_means_of_its_candidates():
    states = []

    def record(environment, outlook, rng):
        states.append((guide.game_state(environment, outlook), environment))
        return POLICIES["improvement"](outlook, rng)

    _campaign(record)
    state, environment = states[0]
    points = state.candidates.points
    for k in range(0, len(state.truth), 9):
        where, values = points.at(k)
        do = {environment.variables[v]: x for v, x in zip(where, values, strict=True)}
        expected = environment.expected(causal.intervene(**do))
        assert state.truth[k] == pytest.approx(expected, abs=1e-4)


def test_campaigns_ask_a_policy_and_files_of_weights_keep_it(tmp_path):
    policy = guide.AcquisitionPolicy(_weights(), greedy=False)
    path = tmp_path / "policy.fxz"
    compress.save(path, policy.weights, SizeBudget(rel_error=0.0005))
    kept = guide.AcquisitionPolicy(dict(compress.load(path)), greedy=False)
    asked = []

    def choose(environment, outlook, rng):
        asked.append(
            [each(outlook, np.random.default_rng(0)) for each in (policy, kept)]
        )
        assert outlook.affordable[asked[-1]].all()
        return policy(outlook, rng)

    campaign = _campaign(choose)
    assert 0 < campaign.spent <= 2.0
    assert asked[0][0] == asked[0][1]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: guide.GRPOConfig(group_size=1), ("group_size", 1)),
        (lambda: guide.GRPOConfig(clip_ratio=0), ("clip_ratio", 0)),
        (lambda: guide.GRPOConfig(kl_penalty_coeff=-1), ("kl_penalty_coeff", -1)),
        (lambda: guide.create_acquisition_policy(0), ("hidden_dim", 0)),
        (
            lambda: guide.AcquisitionPolicy(
                {name: w * np.nan for name, w in _weights().items()}
            ),
            ("weights['embed']",),
        ),
    ],
)
def test_settings_out_of_range_are_refused(make, named):
    with refuses(ValueError, *named):
        make()
