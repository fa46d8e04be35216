"""A learned policy: its input, the games it learns from, and its use in campaigns."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import ExperimentBudget, SizeBudget, causal, compress
from frugax.causal.policy import POLICIES
from frugax.compat import causal_training as guide
from frugax.compat.causal_training import (
    PLACES,
    Shortlist,
    apply_answer,
    log_policy,
    recommend,
    shortlist_features,
    stack_shortlists,
)
from frugax.errors import BudgetExceededError
from refusals import refuses

_HERE = 24  # candidates; the rest of a shortlist is padding


def _states(count, seed=0, worlds=8):
    """Random states: worlds agree with each other more than with the truth."""
    rng = np.random.default_rng(seed)
    # Smooth functions along the list: neighbours have similar effects.
    waves = np.cos(np.outer(np.arange(6), np.linspace(0, 2 * np.pi, PLACES)))
    states = []
    for _ in range(count):
        drawn = rng.standard_normal((2 + worlds, 6)) @ waves / 2
        truth = drawn[0].astype(np.float32)
        loss = (truth + drawn[1] + drawn[2:]).astype(np.float32)
        shortlist = Shortlist(
            loss=loss,
            there=np.arange(PLACES) < _HERE,
            kept=np.ones(PLACES, np.float32),
            price=rng.uniform(0.5, 2, PLACES).astype(np.float32),
            visits=np.zeros(PLACES, np.float32),
            money=np.array(2.5, np.float32),
            noise=np.array(0.1, np.float32),
            point=np.arange(PLACES),
        )
        states.append(guide.GameState(shortlist, truth))
    return states


def _lists(count, **more):
    return stack_shortlists([state.shortlist for state in _states(count, **more)])


def _weights(seed=1):
    rng = np.random.default_rng(seed)
    return {
        name: w + 0.3 * rng.standard_normal(w.shape).astype(np.float32)
        for name, w in guide.create_acquisition_policy(8).weights.items()
    }


def test_features_do_not_depend_on_units_currency_or_order():
    lists = _lists(3)
    features = shortlist_features(lists)
    other = dataclasses.replace(
        lists,
        loss=lists.loss * 50 + 7,
        noise=lists.noise * 50,
        price=lists.price * 3,
        money=lists.money * 3,
    )
    np.testing.assert_allclose(shortlist_features(other), features, atol=2e-3)
    turn = np.random.default_rng(0).permutation(PLACES)
    turned = dataclasses.replace(
        lists,
        **{
            name: getattr(lists, name)[..., turn]
            for name in ("loss", "there", "kept", "price", "visits", "point")
        },
    )
    np.testing.assert_allclose(shortlist_features(turned), features[:, turn], atol=1e-4)
    log_p = log_policy(_weights(), features, lists.affordable)
    same = log_policy(_weights(), shortlist_features(turned), turned.affordable)
    there = turned.affordable
    np.testing.assert_allclose(same[there], log_p[:, turn][there], atol=1e-4)


def test_numpy_and_jax_agree_and_only_affordable_candidates_are_likely():
    lists = dataclasses.replace(_lists(4), money=np.full(4, 1.0, np.float32))
    features, affordable = shortlist_features(lists), lists.affordable
    assert not affordable[:, :_HERE].all()
    in_numpy = log_policy(_weights(), features, affordable)
    in_jax = jax.jit(lambda *of: log_policy(*of, xp=jnp))(
        _weights(), features, affordable
    )
    np.testing.assert_allclose(np.exp(in_numpy).sum(1), 1, rtol=1e-5)
    assert np.exp(in_numpy)[~affordable].max() == 0
    np.testing.assert_allclose(in_numpy[affordable], in_jax[affordable], atol=1e-4)
    untrained = guide.create_acquisition_policy(8).weights
    even = log_policy(untrained, features, affordable)
    np.testing.assert_allclose(even.max(1), -np.log(affordable.sum(1)), rtol=1e-5)


def test_answers_move_worlds_towards_the_truth_and_cost_their_price():
    states = _states(64, worlds=32)
    lists = stack_shortlists([state.shortlist for state in states])
    truth = np.stack([state.truth for state in states])
    at, rows = np.full(64, 3), np.arange(64)
    alive = rows != 5
    after = apply_answer(lists, truth, at, alive, np.random.default_rng(0))
    off = lambda each: np.abs(each.loss.mean(1) - truth)[rows, at][alive].mean()
    assert off(after) < 0.15
    assert off(after) < 0.7 * off(lists)
    spread = lambda each: each.loss.std(1)[rows, at][alive].mean()
    assert spread(after) < 0.3 * spread(lists)
    np.testing.assert_array_equal(after.visits.sum(1), alive)
    np.testing.assert_array_equal(after.loss[5], lists.loss[5])
    paid = lists.money - after.money
    np.testing.assert_allclose(paid, lists.price[:, 3] * alive, atol=1e-6)


def test_games_stay_within_the_budget_and_lower_the_regret():
    states = _states(32, worlds=32)
    config = guide.GRPOConfig(group_size=4, interventions_per_state=5)
    policy = guide.create_acquisition_policy(8)
    games = guide.collect_grpo_batch(policy, states, config, seed=0)
    price = np.repeat([state.shortlist.price for state in states], 4, axis=0)
    paid = np.take_along_axis(price, games.action, 1) * games.alive
    assert (paid.sum(1) <= 2.5 + 1e-4).all()
    assert not games.alive.all()
    assert games.alive.any(1).all()
    again = guide.collect_grpo_batch(policy, states, config, seed=0)
    np.testing.assert_array_equal(again.action, games.action)
    truth = np.stack([state.truth for state in states])
    today = recommend(stack_shortlists([state.shortlist for state in states]))
    now = truth[np.arange(32), today] - truth[:, :_HERE].min(1)
    assert games.regret.mean() < now.mean()


@pytest.mark.slow
def test_grpo_learns_within_groups_from_one_program():
    config = guide.GRPOConfig(
        group_size=8, interventions_per_state=2, learning_rate=0.02, entropy_coeff=0.0
    )
    trainer = guide.GRPOTrainer(guide.create_acquisition_policy(8), config)
    states = _states(16)
    updates = []
    for index in range(12):
        games = guide.collect_grpo_batch(trainer.policy, states, config, seed=index)
        # All games of a group begin at one and the same state.
        groups = games.features.reshape(16, 8, *games.features.shape[1:])
        np.testing.assert_array_equal(groups[:, 0, 0], groups[:, -1, 0])
        updates.append(trainer.update(games))
    rewards = [update["reward"] for update in updates]
    assert trainer.step.compiles == 1
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.02
    assert updates[-1]["kl"] > 0
    assert updates[-1]["entropy"] < np.log(_HERE)
    fewer = guide.collect_grpo_batch(trainer.policy, states[:3], config, seed=0)
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
        states.append((guide.game_state(environment, outlook), outlook, environment))
        return POLICIES["improvement"](outlook, rng)

    _campaign(record)
    state, outlook, environment = states[0]
    shortlist = state.shortlist
    assert shortlist.money == pytest.approx(2.0)
    assert shortlist.there.all()  # a campaign has more candidates than places
    assert outlook.affordable[shortlist.point].all()
    for k in (0, PLACES - 1):
        where, values = outlook.points.at(int(shortlist.point[k]))
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
        (lambda: guide.GRPOConfig(entropy_coeff=-1), ("entropy_coeff", -1)),
        (lambda: guide.create_acquisition_policy(0), ("hidden_dim", 0)),
        (lambda: guide.AcquisitionPolicy({"embed": np.ones(3)}), ("weights", (3,))),
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
