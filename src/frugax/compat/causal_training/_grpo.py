"""Train a policy by group relative policy optimisation (GRPO).

From each state of a campaign the policy plays many games. A game's advantage is its
reward minus the mean of its group, in standard deviations of the group, so no value
network is needed, and hard models do not outweigh easy ones.

References:
    Shao et al. 2024, arXiv:2402.03300 (GRPO); Schulman et al. 2017, arXiv:1707.06347
    (the clipped ratio); Schulman 2020, 'Approximating KL divergence' (the estimator
    k3).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from frugax import train
from frugax.causal.checks import check_kind, check_real, check_whole

from ._board import Board, board_features, recommend_place, unit
from ._demonstrations import Demonstrations
from ._policy import AcquisitionPolicy, PolicyWeights, entropy_of, log_policy

# Worlds may all be wrong: they are off by this share of the spread next to a place.
_DEVIATION = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The record of games of equal length.

    Attributes:
        told: the features before each experiment.
        playable: the affordable places.
        action: the chosen place, `set * places + place`.
        log_p: its log-probability.
        alive: whether the budget still allowed an experiment.
        reward: of the whole game; 0 if the best was recommended throughout.
        regret: of the last recommendation, in the target's unit.
    """

    told: Float[np.ndarray, "n steps v k f"]
    playable: Bool[np.ndarray, "n steps v k"]
    action: Int[np.ndarray, "n steps"]
    log_p: Float[np.ndarray, "n steps"]
    alive: Bool[np.ndarray, "n steps"]
    reward: Float[np.ndarray, " n"]
    regret: Float[np.ndarray, " n"]


def play(
    weights: PolicyWeights,
    board: Board,
    truth: Float[np.ndarray, "n v k"],
    steps: int,
    rng: np.random.Generator,
    *,
    greedy: bool = False,
) -> Played:
    """Play from each of some boards until the budget or the steps are over.

    The reward is minus the regret of the recommendation, in the unit of the first
    board: half of it after the last experiment, half the mean over all.

    Args:
        weights: of the policy.
        board: several, stacked.
        truth: the target's true mean at each place, where less is better.
        steps: the most experiments in a game.
        rng: of choices and answers.
        greedy: whether the most probable experiment is chosen each time.
    """
    n, v, k = truth.shape
    best = np.where(board.there, truth, np.inf).min((1, 2))
    size, told, playable, actions, logs, alive, regrets = (
        unit(board), [], [], [], [], [], [],
    )  # fmt: skip
    for _ in range(steps):
        can = board.playable
        goes_on = np.asarray(can.any((1, 2)))
        # A game that is over keeps its row in the arrays, with all places open; `alive`
        # leaves it out of the loss.
        can = np.where(goes_on[:, None, None], can, True)  # of no consequence
        seen = board_features(board)
        log_p = log_policy(weights, seen, can).reshape(n, v * k)
        # Gumbel noise on log-probabilities makes argmax a sample from them (the
        # Gumbel-max trick), for all boards at once.
        luck = 0.0 if greedy else rng.gumbel(size=log_p.shape)
        action = (log_p + luck).argmax(1)
        after = apply_answer(board, truth, action, rng)
        board = _where(goes_on, after, board)
        told.append(seen)
        playable.append(can)
        actions.append(action)
        logs.append(np.take_along_axis(log_p, action[:, None], 1)[:, 0])
        alive.append(goes_on)
        regrets.append(board.at(truth, recommend_place(board)) - best)
    regret = np.stack(regrets, 1)
    return Played(
        told=np.stack(told, 1),
        playable=np.stack(playable, 1),
        action=np.stack(actions, 1),
        log_p=np.stack(logs, 1),
        alive=np.stack(alive, 1),
        # Half on the end and half on the way: with the end alone an early good choice
        # and a late one would count the same.
        reward=-(0.5 * regret[:, -1] + 0.5 * regret.mean(1)) / size,
        regret=regret[:, -1],
    )


def apply_answer(
    board: Board,
    truth: Float[np.ndarray, "n v k"],
    action: Int[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Board:
    """Compute the boards after one experiment each.

    Args:
        board: several, stacked.
        truth: the target's true mean at each place.
        action: where, `set * places + place`.
        rng: of the answers' noise.
    """
    n, worlds, v, k = board.loss.shape
    flat = board.loss.reshape(n, worlds, v * k)
    here = np.take_along_axis(flat, action[:, None, None], 2)  # [n, worlds, 1]
    # An ensemble Kalman update with perturbed observations (Evensen 2003): every world
    # moves towards the answer by its covariance with this place.
    apart = here - here.mean(1, keepdims=True)
    near = _near(action, v, k) * (_DEVIATION * unit(board)[:, None]) ** 2
    variance = (apart**2).mean(1) + board.noise[:, None] ** 2
    variance += (_DEVIATION * unit(board)[:, None]) ** 2
    # One draw for the answer itself and one for each world. Without the latter the
    # ensemble would lose its spread too fast (Burgers, van Leeuwen & Evensen 1998).
    shaken = board.noise[:, None, None] * rng.standard_normal((n, worlds + 1, 1))
    answer = board.at(truth, action)[:, None, None] + shaken[:, :1]
    surprise = (answer + shaken[:, 1:] - here) / variance[:, None]
    moved = flat + surprise * ((apart * (flat - flat.mean(1, keepdims=True))).mean(
        1, keepdims=True
    ) + near[:, None])  # fmt: skip
    causes = board.cause - board.cause.mean(1, keepdims=True)
    cause = board.cause + surprise * (apart * causes).mean(1, keepdims=True)
    # A copy, because the board before the answer is still in use.
    visits = board.visits.reshape(n, -1).copy()
    visits[np.arange(n), action] += 1
    paid = board.price[np.arange(n), action // k]
    return dataclasses.replace(
        board,
        loss=moved.reshape(board.loss.shape).astype(np.float32),
        # The update is linear and may leave [0, 1], where causes are shares.
        cause=np.clip(cause, 0, 1).astype(np.float32),
        visits=visits.reshape(board.visits.shape),
        purse=np.maximum(board.purse - paid, 0).astype(np.float32),
    )


def _near(action: np.ndarray, v: int, k: int) -> Float[np.ndarray, "n places"]:
    """Correlate deviations with those at a place: along its own range."""
    place = np.arange(v * k)
    apart = (place % k - action[:, None] % k).astype(np.float32)
    return np.exp(-(apart**2) / 2) * (place // k == action[:, None] // k)


def _where(which: np.ndarray, one: Board, other: Board) -> Board:
    """Take the boards of one where `which` is true, and of the other elsewhere."""
    choose = lambda a, b: np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)
    return Board(
        **{
            f.name: choose(getattr(one, f.name), getattr(other, f.name))
            for f in dataclasses.fields(Board)
        }
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """The settings of learning from games.

    Attributes:
        group_size: games from each state; >= 2.
        interventions_per_state: the most experiments in a game; >= 1.
        clip_ratio: largest change of a choice's probability in one update, as a share.
        entropy_coeff: weight of the entropy bonus.
        kl_penalty_coeff: weight of the divergence from the reference.
        max_grad_norm: gradients are scaled down to it.
        learning_rate: of Adam.
        ppo_epochs: updates on each batch of games; >= 1.
        num_iterations: batches until the current policy becomes the reference; >= 1.
        scale_rewards: whether advantages are in standard deviations of their group.
    """

    group_size: int = 64
    interventions_per_state: int = 3
    clip_ratio: float = 0.2
    entropy_coeff: float = 0.01
    kl_penalty_coeff: float = 0.01
    max_grad_norm: float = 1.0
    learning_rate: float = 3e-4
    ppo_epochs: int = 4
    num_iterations: int = 4
    scale_rewards: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("group_size", 2),
            ("interventions_per_state", 1),
            ("ppo_epochs", 1),
            ("num_iterations", 1),
        ):
            check_whole(name, getattr(self, name), least)
        for name in ("clip_ratio", "max_grad_norm", "learning_rate"):
            check_real(name, getattr(self, name))
        for name in ("entropy_coeff", "kl_penalty_coeff"):
            check_real(name, getattr(self, name), zero=True)
        if not isinstance(self.scale_rewards, bool):
            raise ValueError(
                f"scale_rewards must be True or False, got {self.scale_rewards!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GRPOBatch:
    """Games in groups from the same states; arrays by state, game and step.

    Attributes:
        told: the features.
        playable: the affordable places.
        action: the chosen place.
        log_p: its log-probability.
        alive: whether the budget still allowed an experiment.
        advantage: of each game in its group; each group's mean is 0.
        reward: of each game.
    """

    told: Float[np.ndarray, "m g s v k f"]
    playable: Bool[np.ndarray, "m g s v k"]
    action: Int[np.ndarray, "m g s"]
    log_p: Float[np.ndarray, "m g s"]
    alive: Bool[np.ndarray, "m g s"]
    advantage: Float[np.ndarray, "m g"]
    reward: Float[np.ndarray, "m g"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GRPOUpdate:
    """The result of learning from one batch; means over the last of its epochs.

    Attributes:
        policy: after the update.
        loss: the minimised value.
        kl: estimated divergence from the reference, nats.
        entropy: of choices, nats.
        clipped: share of choices whose ratio was out of bounds.
        gradient_norm: before clipping.
        reward: mean of the batch, before learning from it.
    """

    policy: AcquisitionPolicy
    loss: float
    kl: float
    entropy: float
    clipped: float
    gradient_norm: float
    reward: float


def collect_grpo_batch(
    policy: AcquisitionPolicy,
    moments: Demonstrations,
    config: GRPOConfig,
    *,
    seed: int | list[int],
) -> GRPOBatch:
    """Play `group_size` games from each state.

    Args:
        policy: the player; it samples, even if it is greedy in campaigns.
        moments: states of campaigns on models with known truth.
        config: sizes.
        seed: of choices and answers.

    Raises:
        TypeError: an argument is of another class.
    """
    check_kind("policy", policy, AcquisitionPolicy)
    check_kind("moments", moments, Demonstrations)
    check_kind("config", config, GRPOConfig)
    group = config.group_size
    # Groups are contiguous, so a reshape separates them again.
    each = moments.take(np.repeat(np.arange(len(moments)), group))
    played = play(
        policy.weights,
        each.board,
        each.truth,
        config.interventions_per_state,
        np.random.default_rng(seed),
    )
    reward = played.reward.reshape(-1, group)
    # The group's mean is the baseline, in place of a value network (Shao et al. 2024).
    advantage = reward - reward.mean(1, keepdims=True)
    if config.scale_rewards:
        # A small constant, since all games of a group may have the same reward.
        advantage = advantage / (reward.std(1, keepdims=True) + 1e-4)
    grouped = lambda x: x.reshape(-1, group, *x.shape[1:])
    return GRPOBatch(
        told=grouped(played.told),
        playable=grouped(played.playable),
        action=grouped(played.action),
        log_p=grouped(played.log_p),
        alive=grouped(played.alive),
        advantage=advantage.astype(np.float32),
        reward=reward,
    )


class GRPOTrainer:
    """A policy that learns from games: `update` for each batch.

    Attributes:
        config: the settings.
        policy: after the last update.
        step: the compiled training step.
    """

    def __init__(self, policy: AcquisitionPolicy, config: GRPOConfig) -> None:
        """Start from a policy; it is its own first reference."""
        self.config, self.policy, self._reference = config, policy, policy
        self.step = train.make_train_step(
            grpo_loss(config),
            optax.adam(config.learning_rate),
            clip=config.max_grad_norm,
            compile_budget=1,
        )
        self._state = self.step.init(policy.weights)
        self._batches = 0

    def update(self, batch: GRPOBatch) -> GRPOUpdate:
        """Learn from games that the current policy has played.

        Args:
            batch: always of the same sizes, so that one program is compiled.

        Raises:
            BudgetExceededError: its sizes differ from those of the batch before.
        """
        # A reference that follows slowly bounds the drift over several batches, while
        # the clipped ratio bounds one update.
        if self._batches % self.config.num_iterations == 0:
            self._reference = self.policy
        self._batches += 1
        flat = lambda x: x.reshape(-1, *x.shape[3:])
        told, playable = flat(batch.told), flat(batch.playable)
        # Once for all epochs and in NumPy, as the reference does not change within an
        # update.
        before = log_policy(self._reference.weights, told, playable)
        action = flat(batch.action)
        steps = batch.action.shape[2]
        arrays = {
            "told": told,
            "playable": playable,
            "action": action,
            "log_p": flat(batch.log_p).astype(np.float32),
            "reference": _chosen(before, action, np).astype(np.float32),
            "alive": flat(batch.alive).astype(np.float32),
            # Every experiment of a game gets the advantage of the whole game.
            "advantage": np.repeat(batch.advantage.reshape(-1), steps),
        }
        metrics: Any = {}
        # The same games several times: from the second epoch on the ratio differs from
        # 1, and the clip has something to do.
        for _ in range(self.config.ppo_epochs):
            self._state, metrics = self.step(self._state, arrays)
        weights = {name: np.asarray(w) for name, w in self._state.params.items()}
        self.policy = AcquisitionPolicy(weights, greedy=self.policy.greedy)
        told_of = {name: float(value) for name, value in metrics.items()}
        return GRPOUpdate(
            policy=self.policy,
            loss=told_of["loss"],
            kl=told_of["kl"],
            entropy=told_of["entropy"],
            clipped=told_of["clipped"],
            gradient_norm=told_of["gradient_norm"],
            reward=float(batch.reward.mean()),
        )


def create_grpo_trainer(
    policy: AcquisitionPolicy, config: GRPOConfig | None = None
) -> GRPOTrainer:
    """Make a trainer that starts from a policy.

    Args:
        policy: untrained, or cloned from an expert.
        config: the settings; `GRPOConfig()` by default.

    Raises:
        TypeError: `policy` or `config` is of another class.
    """
    config = GRPOConfig() if config is None else config
    check_kind("policy", policy, AcquisitionPolicy)
    check_kind("config", config, GRPOConfig)
    return GRPOTrainer(policy, config)


def grpo_loss(config: GRPOConfig) -> Callable[[PolicyWeights, dict[str, Any]], Any]:
    """Build the loss of one update."""

    def loss(
        weights: PolicyWeights, batch: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        every = log_policy(weights, batch["told"], batch["playable"], xp=jnp)
        log_p = _chosen(every, batch["action"], jnp)
        count = jnp.maximum(batch["alive"].sum(), 1.0)
        mean = lambda x: (x * batch["alive"]).sum() / count
        ratio = jnp.exp(log_p - batch["log_p"])
        bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        # The lower of both: a ratio beyond the bound gives no further gain, but a loss
        # counts in full (Schulman et al. 2017, eq. 7).
        gain = mean(
            jnp.minimum(ratio * batch["advantage"], bounded * batch["advantage"])
        )
        # The estimator k3, r - 1 - log r: unbiased, never negative, and of lower
        # variance than -log r (Schulman 2020).
        apart = batch["reference"] - log_p
        kl = mean(jnp.exp(apart) - apart - 1)
        entropy = mean(entropy_of(every, xp=jnp))
        total = config.kl_penalty_coeff * kl - config.entropy_coeff * entropy - gain
        clipped = mean((bounded != ratio).astype(jnp.float32))
        return total, {"kl": kl, "entropy": entropy, "clipped": clipped}

    return loss


def _chosen(log_p: Any, action: Any, xp: Any) -> Any:
    flat = log_p.reshape(len(log_p), -1)
    return xp.take_along_axis(flat, action[:, None], axis=1)[:, 0]
