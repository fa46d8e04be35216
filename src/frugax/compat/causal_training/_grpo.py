"""Train a policy by group relative policy optimisation (GRPO).

The policy runs a group of campaigns on each of several systems that are known. A
campaign's advantage is its reward minus the mean of its group, so no value network is
needed.

References:
    Shao et al. 2024, arXiv:2402.03300 (GRPO); Schulman et al. 2017, arXiv:1707.06347
    (the clipped ratio); Schulman 2020, 'Approximating KL divergence' (the estimator
    k3).
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

from frugax import train
from frugax.budget import ExperimentBudget
from frugax.causal.campaign import Campaign
from frugax.causal.environments import Environment
from frugax.causal.policy import Outlook, Policy
from frugax.options import check_instance, check_integer, check_number

from ._policy import AcquisitionPolicy, Choice, PolicyWeights, log_policy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """The settings of learning from campaigns.

    Attributes:
        group_size: campaigns on each system; >= 2.
        interventions_per_state: experiments in a campaign; >= 1.
        observations: rows without an experiment before each campaign; >= 2.
        clip_ratio: largest change of a choice's probability in one update, as a share.
        kl_penalty_coeff: weight of the divergence from the policy at the start.
        learning_rate: of Adam.
        ppo_epochs: updates on each batch of campaigns; >= 1.
        total_steps: batches, for training loops to read; >= 1.
    """

    group_size: int = 8
    interventions_per_state: int = 3
    observations: int = 50
    clip_ratio: float = 0.2
    kl_penalty_coeff: float = 0.01
    learning_rate: float = 3e-4
    ppo_epochs: int = 4
    total_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("group_size", "observations"):
            check_integer(name, getattr(self, name), minimum=2)
        for name in ("interventions_per_state", "ppo_epochs", "total_steps"):
            check_integer(name, getattr(self, name))
        for name in ("clip_ratio", "learning_rate"):
            check_number(name, getattr(self, name), above=0)
        check_number("kl_penalty_coeff", self.kl_penalty_coeff, minimum=0)


# A named tuple is a pytree by itself, so the training step takes it as its batch.
class Experience(NamedTuple):
    """The record of campaigns of equal length, group after group.

    Attributes:
        features: of the state before each experiment.
        action: the rule that chose it.
        log_p: its log-probability.
        reward: of each campaign of each group: minus the regret of its recommendation.
    """

    features: Float[np.ndarray, "n s f"]
    action: Int[np.ndarray, "n s"]
    log_p: Float[np.ndarray, "n s"]
    reward: Float[np.ndarray, "groups size"]


def collect_experience(
    policy: AcquisitionPolicy,
    environments: Sequence[Environment],
    config: GRPOConfig,
    *,
    seed: int,
) -> Experience:
    """Run `group_size` campaigns on each system, all from the same observations.

    Args:
        policy: the player; it samples, even if it is greedy in campaigns of its own.
        environments: systems that are known, such as
            `causal.environment_from_scm(scm)`.
        config: sizes.
        seed: of choices and noise.

    Raises:
        TypeError: an argument is of another class.
    """
    check_instance("policy", policy, AcquisitionPolicy)
    check_instance("config", config, GRPOConfig)
    seeds = np.random.default_rng(seed)
    moves: list[list[Choice]] = []
    rewards: list[float] = []
    for environment in environments:
        check_instance("environment", environment, Environment)
        observed = environment.sample(config.observations, seed=_draw(seeds))
        for _ in range(config.group_size):
            game = Campaign(
                variables=environment.ranges,
                target=environment.target,
                minimize=environment.minimize,
                budget=ExperimentBudget(n=config.interventions_per_state),
                policy=_recorded(policy, moves),
                seed=_draw(seeds),
            )
            game.tell_observations(observed)
            while (ask := game.ask()) is not None:
                done = ask.intervention
                answer = environment.sample(1, seed=_draw(seeds), intervention=done)
                game.tell(ask, answer)
            rewards.append(-environment.regret(game.recommend().intervention))
    features, action, log_p = (
        np.array([[getattr(choice, name) for choice in game] for game in moves])
        for name in ("features", "action", "log_p")
    )
    return Experience(
        features, action, log_p, np.reshape(rewards, (-1, config.group_size))
    )


def _recorded(policy: AcquisitionPolicy, moves: list[list[Choice]]) -> Policy:
    game: list[Choice] = []
    moves.append(game)

    def choose(outlook: Outlook, rng: np.random.Generator) -> int:
        game.append(policy.choose(outlook, rng))
        return game[-1].point

    return choose


def _draw(seeds: np.random.Generator) -> int:
    return int(seeds.integers(2**31))


class GRPOTrainer:
    """A policy that learns from campaigns: `update` for each batch.

    Attributes:
        config: the settings.
        policy: after the last update.
        step: the compiled training step.
    """

    def __init__(
        self, policy: AcquisitionPolicy, config: GRPOConfig | None = None
    ) -> None:
        """Start from a policy; its choices are the reference.

        Raises:
            TypeError: `policy` or `config` is of another class.
        """
        config = GRPOConfig() if config is None else config
        check_instance("policy", policy, AcquisitionPolicy)
        check_instance("config", config, GRPOConfig)
        self.config, self.policy = config, policy
        self.step = train.make_train_step(
            functools.partial(_grpo_loss, config, policy.weights),
            optax.adam(config.learning_rate),
            clip=1.0,
            compile_budget=1,
        )
        self._state = self.step.init(policy.weights)

    def update(self, games: Experience) -> dict[str, float]:
        """Learn from campaigns that the current policy has run.

        Args:
            games: from `collect_experience`, always of the same sizes, so that one
                program is compiled.

        Returns:
            `loss`, `kl` (estimated divergence from the reference, nats) and
            `gradient_norm` (before clipping), of the last epoch; and `reward`, the mean
            of the batch.

        Raises:
            BudgetExceededError: its sizes differ from those of the batch before.
        """
        metrics: Any = {}
        # The same batch several times: from the second epoch on the ratio differs from
        # 1, and the clip has something to do.
        for _ in range(self.config.ppo_epochs):
            self._state, metrics = self.step(self._state, games)
        weights = {name: np.asarray(w) for name, w in self._state.params.items()}
        self.policy = AcquisitionPolicy(weights, greedy=self.policy.greedy)
        figures = {name: float(value) for name, value in metrics.items()}
        return {**figures, "reward": float(games.reward.mean())}


def _grpo_loss(
    config: GRPOConfig, reference: PolicyWeights, weights: PolicyWeights, games: Any
) -> tuple[Any, dict[str, Any]]:
    def log_chosen(of: PolicyWeights) -> Any:
        every = log_policy(of, games.features, xp=jnp)
        return jnp.take_along_axis(every, games.action[..., None], 2)[..., 0]

    # The group's mean is the baseline, in place of a value network. A small constant,
    # since all of a group may have the same reward.
    centred = games.reward - games.reward.mean(1, keepdims=True)
    advantage = centred / (games.reward.std(1, keepdims=True) + 1e-4)
    # Every experiment of a campaign gets the advantage of the whole.
    advantage = advantage.reshape(-1, 1)
    log_p = log_chosen(weights)
    ratio = jnp.exp(log_p - games.log_p)
    bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
    # The lower of both: a ratio beyond the bound gives no further gain, but a loss
    # counts in full (Schulman et al. 2017, eq. 7).
    gain = jnp.minimum(ratio * advantage, bounded * advantage).mean()
    # The estimator k3, r - 1 - log r: unbiased, never negative, and of lower variance
    # than -log r.
    apart = log_chosen(reference) - log_p
    kl = (jnp.exp(apart) - apart - 1).mean()
    return config.kl_penalty_coeff * kl - gain, {"kl": kl}
