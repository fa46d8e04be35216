"""Train a policy by group relative policy optimisation (GRPO).

From each state of a campaign the policy plays a group of games. A game's advantage is
its reward minus the mean of its group, so no value network is needed.

References:
    Shao et al. 2024, arXiv:2402.03300 (GRPO); Schulman et al. 2017, arXiv:1707.06347
    (the clipped ratio); Schulman 2020, 'Approximating KL divergence' (the estimator
    k3).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from frugax import train
from frugax.causal.checks import check_kind, check_real, check_whole

from ._games import Games, GameState, play_games
from ._policy import AcquisitionPolicy, PolicyWeights, log_policy


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
        check_whole("group_size", self.group_size, 2)
        for name in ("interventions_per_state", "ppo_epochs", "num_iterations"):
            check_whole(name, getattr(self, name), 1)
        for name in ("clip_ratio", "max_grad_norm", "learning_rate"):
            check_real(name, getattr(self, name))
        for name in ("entropy_coeff", "kl_penalty_coeff"):
            check_real(name, getattr(self, name), zero=True)


def collect_grpo_batch(
    policy: AcquisitionPolicy,
    states: Sequence[GameState],
    config: GRPOConfig,
    *,
    seed: int | list[int],
) -> Games:
    """Play `group_size` games from each state.

    Args:
        policy: the player; it samples, even if it is greedy in campaigns.
        states: of campaigns with known truth, from `game_state`.
        config: sizes.
        seed: of choices and answers.

    Raises:
        TypeError: an argument is of another class.
    """
    check_kind("policy", policy, AcquisitionPolicy)
    check_kind("config", config, GRPOConfig)
    # Groups are contiguous, so a reshape separates them again.
    each = [state for state in states for _ in range(config.group_size)]
    rng = np.random.default_rng(seed)
    return play_games(policy.weights, each, config.interventions_per_state, rng)


class GRPOTrainer:
    """A policy that learns from games: `update` for each batch.

    Attributes:
        config: the settings.
        policy: after the last update.
        step: the compiled training step.
    """

    def __init__(
        self, policy: AcquisitionPolicy, config: GRPOConfig | None = None
    ) -> None:
        """Start from a policy; it is its own first reference.

        Raises:
            TypeError: `policy` or `config` is of another class.
        """
        config = GRPOConfig() if config is None else config
        check_kind("policy", policy, AcquisitionPolicy)
        check_kind("config", config, GRPOConfig)
        self.config, self.policy, self._reference = config, policy, policy
        self.step = train.make_train_step(
            _grpo_loss(config),
            optax.adam(config.learning_rate),
            clip=config.max_grad_norm,
            compile_budget=1,
        )
        self._state = self.step.init(policy.weights)
        self._batches = 0

    def update(self, games: Games) -> dict[str, float]:
        """Learn from games that the current policy has played.

        Args:
            games: from `collect_grpo_batch`, always of the same sizes, so that one
                program is compiled.

        Returns:
            `loss`, `kl` (estimated divergence from the reference, nats), `entropy`
            (of choices, nats), `clipped` (share of choices whose ratio was out of
            bounds) and `gradient_norm` (before clipping), of the last epoch; and
            `reward`, the mean of the batch.

        Raises:
            BudgetExceededError: its sizes differ from those of the batch before.
        """
        # A reference that follows slowly bounds the drift over several batches, while
        # the clipped ratio bounds one update.
        if self._batches % self.config.num_iterations == 0:
            self._reference = self.policy
        self._batches += 1
        steps = games.action.shape[1]
        flat = lambda x: x.reshape(-1, *x.shape[2:])
        batch = {
            "features": flat(games.features),
            "affordable": flat(games.affordable),
            "action": flat(games.action),
            "log_p": flat(games.log_p).astype(np.float32),
            "alive": flat(games.alive).astype(np.float32),
            # Every experiment of a game gets the advantage of the whole game.
            "advantage": np.repeat(advantages(games.reward, self.config), steps),
        }
        # Once for all epochs, as the reference does not change within an update.
        reference = log_policy(
            self._reference.weights, batch["features"], batch["affordable"]
        )
        chosen = np.take_along_axis(reference, batch["action"][:, None], 1)[:, 0]
        batch["reference"] = chosen.astype(np.float32)
        metrics: Any = {}
        # The same games several times: from the second epoch on the ratio differs from
        # 1, and the clip has something to do.
        for _ in range(self.config.ppo_epochs):
            self._state, metrics = self.step(self._state, batch)
        weights = {name: np.asarray(w) for name, w in self._state.params.items()}
        self.policy = AcquisitionPolicy(weights, greedy=self.policy.greedy)
        figures = {name: float(value) for name, value in metrics.items()}
        return {**figures, "reward": float(games.reward.mean())}


def advantages(
    reward: Float[np.ndarray, " n"], config: GRPOConfig
) -> Float[np.ndarray, " n"]:
    """Compare each game's reward with the mean of its group."""
    groups = reward.reshape(-1, config.group_size)
    # The group's mean is the baseline, in place of a value network.
    found = groups - groups.mean(1, keepdims=True)
    if config.scale_rewards:
        # A small constant, since all games of a group may have the same reward.
        found = found / (groups.std(1, keepdims=True) + 1e-4)
    return found.reshape(-1).astype(np.float32)


def _grpo_loss(config: GRPOConfig) -> Callable[[PolicyWeights, dict[str, Any]], Any]:
    def loss(
        weights: PolicyWeights, batch: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        every = log_policy(weights, batch["features"], batch["affordable"], xp=jnp)
        log_p = jnp.take_along_axis(every, batch["action"][:, None], axis=1)[:, 0]
        count = jnp.maximum(batch["alive"].sum(), 1.0)
        mean = lambda x: (x * batch["alive"]).sum() / count
        ratio = jnp.exp(log_p - batch["log_p"])
        bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        advantage = batch["advantage"]
        # The lower of both: a ratio beyond the bound gives no further gain, but a loss
        # counts in full (Schulman et al. 2017, eq. 7).
        gain = mean(jnp.minimum(ratio * advantage, bounded * advantage))
        # The estimator k3, r - 1 - log r: unbiased, never negative, and of lower
        # variance than -log r.
        apart = batch["reference"] - log_p
        kl = mean(jnp.exp(apart) - apart - 1)
        # exp(-1e9) is 0, and so is its product with -1e9.
        entropy = mean(-(jnp.exp(every) * every).sum(1))
        total = config.kl_penalty_coeff * kl - config.entropy_coeff * entropy - gain
        clipped = mean((bounded != ratio).astype(jnp.float32))
        return total, {"kl": kl, "entropy": entropy, "clipped": clipped}

    return loss
