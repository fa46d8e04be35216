"""A learned policy: its input, the games it learns from, and its use in campaigns."""

import dataclasses

import numpy as np
import pytest

from frugax import ExperimentBudget, SizeBudget, causal, compress
from frugax.causal.policy import Outlook, gain, improvement
from frugax.causal.posterior import Points
from frugax.compat import causal_training as guide
from frugax.errors import BudgetExceededError
from refusals import refuses


def _outlook(rng=None, places=24, worlds=32):
    """A random campaign."""
    rng = rng or np.random.default_rng(0)
    # Smooth functions along the list: neighbours have similar effects.
    waves = np.cos(np.outer(np.arange(6), np.linspace(0, np.pi, places)))
    return Outlook(
        points=Points(((0,),), (np.arange(places, dtype=float)[:, None],)),
        loss=rng.standard_normal((worlds, 6)) @ waves,
        allowed=np.ones((worlds, places), bool),
        price=rng.uniform(0.5, 2, places),
        affordable=np.ones(places, bool),
        reached=np.full(worlds, np.inf),
        breach=np.zeros(places),
        noise=0.1,
        done=Points((), ()),
        left=2.5,
    )


def _weights(seed=1):
    rng = np.random.default_rng(seed)
    return {
        name: w + 0.3 * rng.standard_normal(w.shape).astype(np.float32)
        for name, w in guide.create_acquisition_policy(8).weights.items()
    }


def test_features_do_not_depend_on_units_currency_or_order():
    outlook = _outlook()
    turn = np.random.default_rng(0).permutation(24)
    other = dataclasses.replace(
        outlook,
        loss=outlook.loss[:, turn] * 50 + 7,
        noise=outlook.noise * 50,
        price=outlook.price[turn] * 3,
    )
    policy, rng = guide.create_acquisition_policy(8), np.random.default_rng(0)
    one, same = (policy.choose(each, rng).features for each in (outlook, other))
    np.testing.assert_allclose(one, same, atol=1e-5)


def test_numpy_and_jax_agree_and_all_rules_are_likely_at_first():
    rng = np.random.default_rng(0)
    policy = guide.AcquisitionPolicy(_weights())
    # The policy plays in NumPy and learns in JAX: before the first step both give its
    # choices the same probability, and the advantages of a group add up to 0.
    config = guide.GRPOConfig(ppo_epochs=1)
    update = guide.GRPOTrainer(policy, config).update(_experience(policy, rng, 16))
    assert update["loss"] == pytest.approx(0, abs=1e-6)
    assert update["kl"] == pytest.approx(0, abs=1e-6)
    even = guide.create_acquisition_policy(8)
    choices = [even.choose(_outlook(rng), rng) for _ in range(20)]
    np.testing.assert_allclose(
        [choice.log_p for choice in choices], -np.log(2), rtol=1e-5
    )
    assert len({choice.action for choice in choices}) > 1


def test_the_chosen_rule_chooses_the_point():
    outlook = _outlook()
    chosen = set()
    for seed in range(20):
        policy = guide.AcquisitionPolicy(_weights(seed))
        choice = policy.choose(outlook, np.random.default_rng(0), greedy=True)
        rule = (improvement, gain)[choice.action]
        assert choice.point == rule(outlook, np.random.default_rng(0))
        chosen.add(rule)
    assert len(chosen) > 1


def _experience(policy, rng, count):
    """Choices in groups of 8, rewarded for one of the rules."""
    choices = [policy.choose(_outlook(rng), rng) for _ in range(count)]
    column = lambda name: np.array([[getattr(c, name)] for c in choices])
    return guide.Experience(
        features=column("features"),
        action=column("action"),
        log_p=column("log_p"),
        reward=column("action").reshape(-1, 8).astype(float),
    )


def test_the_baseline_is_the_mean_of_the_group_that_was_played():
    policy = guide.create_acquisition_policy(8)
    played = _experience(policy, np.random.default_rng(0), 16)
    # Equal rewards within each group of 4, so nothing is to be learned.
    games = played._replace(reward=np.repeat([[0.0], [1.0], [0.0], [1.0]], 4, axis=1))
    trainer = guide.GRPOTrainer(policy, guide.GRPOConfig(group_size=8))
    assert trainer.update(games)["gradient_norm"] == pytest.approx(0, abs=1e-6)


def test_grpo_learns_what_is_rewarded_within_groups_from_one_program():
    config = guide.GRPOConfig(group_size=8, learning_rate=0.05)
    trainer = guide.GRPOTrainer(guide.create_acquisition_policy(8), config)
    rng = np.random.default_rng(0)
    updates = [trainer.update(_experience(trainer.policy, rng, 64)) for _ in range(12)]
    assert trainer.step.compiles == 1
    rewards = [update["reward"] for update in updates]
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.2
    assert updates[-1]["kl"] > 0
    with pytest.raises(BudgetExceededError):
        trainer.update(_experience(trainer.policy, rng, 8))


def test_campaigns_of_a_group_begin_with_the_same_observations():
    config = guide.GRPOConfig(group_size=2, interventions_per_state=1)
    policy = guide.create_acquisition_policy(8)
    games = guide.collect_experience(policy, [_system()], config, seed=0)
    assert games.features.shape[:2] == (2, 1)
    assert games.action.shape == games.log_p.shape == (2, 1)
    assert np.isfinite(games.log_p).all()
    assert (games.reward <= 1e-6).all()


def _system():
    scm = causal.SCM.linear({"a": {}, "b": {"a": 1.0}, "y": {"b": -1.0}}, target="y")
    return causal.environment_from_scm(scm, (-2.0, 2.0))


def test_campaigns_ask_a_policy_and_files_of_weights_keep_it(tmp_path):
    policy = guide.AcquisitionPolicy(_weights(), greedy=False)
    path = tmp_path / "policy.fxz"
    compress.save(path, policy.weights, SizeBudget(rel_error=0.0005))
    kept = guide.AcquisitionPolicy(dict(compress.load(path)), greedy=False)
    asked = []

    def choose(outlook, rng):
        asked.append(
            [each(outlook, np.random.default_rng(0)) for each in (policy, kept)]
        )
        assert outlook.affordable[asked[-1]].all()
        return policy(outlook, rng)

    environment = _system()
    campaign = causal.Campaign(
        variables=environment.ranges,
        target="y",
        budget=ExperimentBudget(cost=2.0, costs={"a": 1.0, "b": 1.5}),
        policy=choose,
        num_posterior_samples=8,
    )
    campaign.tell_observations(environment.sample(30, seed=0))
    while (ask := campaign.ask()) is not None:
        done = ask.intervention
        campaign.tell(ask, environment.sample(1, seed=1, intervention=done))
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
