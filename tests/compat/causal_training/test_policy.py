"""Learned policies: their inputs, their training, and their use in campaigns."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import ExperimentBudget, SizeBudget, causal, compress
from frugax.compat import causal_training as guide
from frugax.compat.causal_training import (
    MAX_SETS,
    PLACES,
    Board,
    Demonstrations,
    apply_answer,
    board_features,
    expert_demonstrations,
    initial_policy_weights,
    log_policy,
    play,
    recommend_place,
)
from frugax.errors import BudgetExceededError, CorruptFileError, OutputError


def _moments(count, seed=0, worlds=8):
    """Boards of four sets; one world is the truth, and the others are near it."""
    rng = np.random.default_rng(seed)
    shape = (count, MAX_SETS, PLACES)
    there = np.zeros(shape, bool)
    there[:, :4] = True
    truth = (rng.standard_normal(shape) * there).astype(np.float32)
    loss = truth[:, None] + rng.standard_normal((count, worlds, *shape[1:]))
    price = rng.uniform(0.5, 2, (count, MAX_SETS)).astype(np.float32)
    board = Board(
        loss=(loss * there[:, None]).astype(np.float32),
        there=there,
        kept=there.astype(np.float32),
        price=price,
        cause=rng.integers(0, 2, (count, worlds, MAX_SETS)).astype(np.float32),
        visits=np.zeros(shape, np.float32),
        purse=np.full(count, 2.5, np.float32),
        noise=np.full(count, 0.1, np.float32),
        point=np.zeros(shape, np.int64),
    )
    choice = np.where(there, truth, np.inf).reshape(count, -1).argmin(1)
    return Demonstrations(board=board, truth=truth, choice=choice)


def _weights(seed=1):
    rng = np.random.default_rng(seed)
    return {
        name: w + 0.3 * rng.standard_normal(w.shape).astype(np.float32)
        for name, w in initial_policy_weights(0, 8).items()
    }


def test_features_know_no_unit_no_currency_and_no_order_of_names():
    board = _moments(3).board
    told = board_features(board)
    other = dataclasses.replace(
        board,
        loss=board.loss * 50 + 7 * board.there[:, None],
        noise=board.noise * 50,
        price=board.price * 3,
        purse=board.purse * 3,
    )
    np.testing.assert_allclose(board_features(other), told, atol=2e-3)
    order = np.random.default_rng(0).permutation(4)
    turn = np.concatenate([order, np.arange(4, MAX_SETS)])
    turned = Board(
        **{
            f.name: getattr(board, f.name).take(
                turn, axis=2 if f.name in ("loss", "cause") else 1
            )
            if f.name not in ("purse", "noise")
            else getattr(board, f.name)
            for f in dataclasses.fields(Board)
        }
    )
    np.testing.assert_allclose(board_features(turned), told[:, turn], atol=1e-4)
    log_p = log_policy(_weights(), told, board.playable)
    same = log_policy(_weights(), board_features(turned), turned.playable)
    np.testing.assert_allclose(same[:, :4], log_p[:, turn][:, :4], atol=1e-4)


def test_numpy_and_jax_agree_and_only_affordable_choices_are_likely():
    board = _moments(4).board
    board = dataclasses.replace(board, purse=np.full(4, 1.0, np.float32))
    told, can = board_features(board), board.playable
    can[2] |= board.there[2]  # nothing could be paid there
    assert not can[:, :4].all()
    here = log_policy(_weights(), told, can)
    there = jax.jit(lambda *of: log_policy(*of, xp=jnp))(_weights(), told, can)
    np.testing.assert_allclose(np.exp(here).sum((1, 2)), 1, rtol=1e-5)
    assert np.exp(here)[~can].max() == 0
    np.testing.assert_allclose(
        np.where(can, here, 0), np.where(can, there, 0), atol=1e-4
    )
    even = log_policy(initial_policy_weights(0, 8), told, can)
    sets = can.any(2).sum(1)
    np.testing.assert_allclose(even.max((1, 2)), -np.log(sets * PLACES), rtol=1e-5)


def test_answers_move_worlds_towards_the_truth_and_cost_their_price():
    moments = _moments(64, worlds=32)
    at = np.full(64, PLACES + 3)
    after = apply_answer(moments.board, moments.truth, at, np.random.default_rng(0))
    off = lambda b: np.abs(b.at(b.loss.mean(1), at) - b.at(moments.truth, at)).mean()
    assert off(after) < 0.15
    assert off(after) < 0.7 * off(moments.board)
    spread = lambda b: b.at(b.loss.std(1), at).mean()
    assert spread(after) < 0.3 * spread(moments.board)
    assert (after.visits.sum((1, 2)) == 1).all()
    paid = moments.board.purse - after.purse
    np.testing.assert_allclose(paid, moments.board.price[:, 1], atol=1e-6)


def test_games_stay_within_the_purse():
    moments = _moments(6)
    rng = np.random.default_rng(0)
    played = play(initial_policy_weights(0, 8), moments.board, moments.truth, 5, rng)
    which = played.action // PLACES
    price = np.take_along_axis(moments.board.price, which, 1)
    assert ((price * played.alive).sum(1) <= moments.board.purse + 1e-4).all()
    assert not played.alive.all()
    assert played.alive.any(1).all()
    # Two games of one policy from one moment differ by chance only.
    again = play(
        initial_policy_weights(0, 8),
        moments.board,
        moments.truth,
        5,
        np.random.default_rng(0),
    )
    np.testing.assert_array_equal(again.action, played.action)
    truth = moments.truth.reshape(6, -1)
    best = truth[np.arange(6), moments.choice]
    now = truth[np.arange(6), recommend_place(moments.board)] - best
    assert played.regret.mean() < now.mean()


@pytest.mark.slow
def test_grpo_learns_within_groups_from_one_program():
    config = guide.GRPOConfig(
        group_size=8, interventions_per_state=2, learning_rate=0.02, entropy_coeff=0.0
    )
    start = guide.create_acquisition_policy(guide.PolicyConfig(hidden_dim=8))
    trainer = guide.create_grpo_trainer(start, config)
    moments = _moments(16)
    rewards: list[float] = []
    update: Any = None
    for index in range(12):
        batch = guide.collect_grpo_batch(trainer.policy, moments, config, seed=index)
        # Relative to the group, and the group begins at one and the same moment.
        np.testing.assert_allclose(batch.advantage.mean(1), 0, atol=1e-5)
        np.testing.assert_array_equal(batch.told[:, 0, 0], batch.told[:, -1, 0])
        update = trainer.update(batch)
        rewards.append(update.reward)
    assert trainer.step.compiles == 1
    assert np.mean(rewards[-3:]) > np.mean(rewards[:3]) + 0.02
    assert update.kl > 0
    assert update.entropy < np.log(4 * PLACES)
    with pytest.raises(BudgetExceededError):
        trainer.update(
            guide.collect_grpo_batch(
                trainer.policy, moments.take(slice(0, 3)), config, seed=0
            )
        )


def test_an_expert_is_copied():
    shown = _moments(64)
    start = guide.create_acquisition_policy(guide.PolicyConfig(hidden_dim=8))
    cloned, result = guide.clone_expert(start, shown, steps=60, batch_size=32)

    def likely(policy):
        log_p = log_policy(
            policy.weights, board_features(shown.board), shown.board.playable
        )
        return log_p.reshape(64, -1)[np.arange(64), shown.choice].mean()

    assert likely(cloned) > likely(start) + 0.5
    assert [spend.measured for spend in result.receipt.spends] == [1]


def test_campaigns_take_it_and_files_keep_it(tmp_path):
    policy = guide.AcquisitionPolicy(_weights())
    policy.save(tmp_path / "policy.fxz")
    kept = guide.AcquisitionPolicy.load(tmp_path / "policy.fxz")
    seen: list[Any] = []

    def watched(outlook, rng):
        seen.append(outlook)
        return kept(outlook, rng)

    scm = causal.SCM.linear({"a": {}, "b": {"a": 1.0}, "y": {"b": -1.0}})
    made = causal.Campaign(
        variables={"a": (-1, 1), "b": (-2, 2)},
        target="y",
        budget=ExperimentBudget(cost=2.0, costs={"a": 1.0, "b": 1.5}),
        policy=watched,
        num_posterior_samples=8,
    )
    made.tell_observations(causal.sample(scm, 30, seed=0))
    while (ask := made.ask()) is not None:
        made.tell(ask, causal.sample(scm, 1, seed=1, intervention=ask.intervention))
    assert 0 < made.spent <= 2.0
    outlook = seen[0]
    choice = guide.sample_intervention_from_policy(
        policy, outlook, np.random.default_rng(0)
    )
    log_p = guide.compute_action_log_probability(policy, outlook, choice)
    entropy = guide.compute_policy_entropy(policy, outlook)
    assert -5 < log_p < 0 < entropy <= np.log(2 * PLACES)
    assert outlook.affordable[choice.point]
    near = guide.compute_action_log_probability(kept, outlook, choice)
    assert near == pytest.approx(log_p, abs=0.01)


def test_a_file_of_another_kind_is_neither_read_nor_replaced(tmp_path):
    policy = guide.create_acquisition_policy(guide.PolicyConfig(hidden_dim=8))
    wrong = {**policy.weights, "which": np.ones((2, 2), np.float32)}
    other = tmp_path / "other.fxz"
    compress.save(other, wrong, SizeBudget(max_abs=0))
    mine = tmp_path / "mine.yaml"
    mine.write_text("precious: true")
    with pytest.raises(CorruptFileError, match=r"no policy: weights\['which'\] must"):
        guide.AcquisitionPolicy.load(other)
    moments = _moments(2)
    for path in (other, mine):
        before = path.read_bytes()
        for save in (policy.save, moments.save):
            with pytest.raises(OutputError, match="is in the way"):
                save(path)
        assert path.read_bytes() == before
    policy.save(tmp_path / "own.fxz")
    policy.save(tmp_path / "own.fxz")  # its own kind it replaces
    moments.save(tmp_path / "moments.npz")
    moments.save(tmp_path / "moments.npz")
    again = Demonstrations.load(tmp_path / "moments.npz")
    np.testing.assert_array_equal(again.truth, moments.truth)
    with pytest.raises(CorruptFileError, match="not a zip"):
        Demonstrations.load(mine)
    with pytest.raises(FileNotFoundError):
        Demonstrations.load(tmp_path / "none")


@pytest.mark.thorough
@pytest.mark.parametrize("expert", ["improvement", "oracle"])
def test_demonstrations_hold_the_choices_of_experts(expert, tmp_path):
    shown = expert_demonstrations(1, seed=3, expert=expert, experiments=2.0)
    flat = lambda x: x.reshape(len(shown), -1)
    assert flat(shown.board.playable)[np.arange(len(shown)), shown.choice].all()
    if expert == "oracle":
        truth = np.where(shown.board.there, shown.truth, np.inf)
        np.testing.assert_array_equal(flat(truth).argmin(1), shown.choice)
    shown.save(tmp_path / "shown.npz")
    again = Demonstrations.load(tmp_path / "shown.npz")
    np.testing.assert_array_equal(again.truth, shown.truth)
    np.testing.assert_array_equal(again.board.loss, shown.board.loss)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: guide.GRPOConfig(group_size=1),
            "group_size must be a whole number >= 2",
        ),
        (lambda: guide.GRPOConfig(clip_ratio=0), "clip_ratio must be > 0"),
        (lambda: guide.GRPOConfig(entropy_coeff=-1), "entropy_coeff must be >= 0"),
        (lambda: guide.PolicyConfig(hidden_dim=0), "hidden_dim must be a whole"),
        (
            lambda: guide.AcquisitionPolicy(
                {n: w * np.nan for n, w in _weights().items()}
            ),
            r"weights\['place'\] has values that are not finite",
        ),
        (
            lambda: guide.clone_expert(
                guide.create_acquisition_policy(), _moments(2), learning_rate=np.nan
            ),
            "learning_rate must be > 0 and finite, got nan",
        ),
        (
            lambda: guide.clone_expert(
                guide.create_acquisition_policy(), _moments(2), batch_size=10**9
            ),
            "batch_size must be <= 65536",
        ),
        (lambda: expert_demonstrations(1, seed=0, expert="me"), "expert must be one"),
        (lambda: expert_demonstrations(0, seed=0), "campaigns must be >= 1"),
    ],
)
def test_invalid_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
