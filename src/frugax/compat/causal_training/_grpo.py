"""Train a policy by group relative policy optimisation (GRPO).

From each state of a campaign the policy plays a group of games, in which the truth
answers. A game's advantage is its reward minus the mean of its group, so no value
network is needed. Games are played in NumPy.

References:
    Shao et al. 2024, arXiv:2402.03300 (GRPO); Schulman et al. 2017, arXiv:1707.06347
    (the clipped ratio); Schulman 2020, 'Approximating KL divergence' (the estimator
    k3); Evensen 2003, Ocean Dynamics 53:343-367; Burgers, van Leeuwen & Evensen 1998,
    Monthly Weather Review 126:1719-1724 (the ensemble Kalman filter, and why
    observations are perturbed).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from frugax import train
from frugax.causal.checks import check_kind, check_real, check_whole
from frugax.causal.environments import Environment
from frugax.causal.policy import Outlook

from ._policy import (
    PLACES,
    AcquisitionPolicy,
    PolicyWeights,
    candidate_features,
    log_policy,
    shortlist,
)

# All worlds may be wrong: they are off by this share of the loss's scale.
_WORLD_ERROR = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GRPOConfig:
    """The settings of learning from games.

    Attributes:
        group_size: games from each state; >= 2.
        interventions_per_state: experiments in a game, if the budget allows; >= 1.
        clip_ratio: largest change of a choice's probability in one update, as a share.
        kl_penalty_coeff: weight of the divergence from the policy at the start.
        learning_rate: of Adam.
        ppo_epochs: updates on each batch of games; >= 1.
        total_steps: batches of games, for training loops to read; >= 1.
    """

    group_size: int = 64
    interventions_per_state: int = 3
    clip_ratio: float = 0.2
    kl_penalty_coeff: float = 0.01
    learning_rate: float = 3e-4
    ppo_epochs: int = 4
    total_steps: int = 100

    def __post_init__(self) -> None:
        check_whole("group_size", self.group_size, 2)
        for name in ("interventions_per_state", "ppo_epochs", "total_steps"):
            check_whole(name, getattr(self, name), 1)
        for name in ("clip_ratio", "learning_rate"):
            check_real(name, getattr(self, name))
        check_real("kl_penalty_coeff", self.kl_penalty_coeff, zero=True)


@dataclasses.dataclass(frozen=True, slots=True)
class GameState:
    """A campaign before an experiment, with the truth.

    Attributes:
        candidates: the experiments to choose from.
        truth: the target's true mean at each of them; less is better.
    """

    candidates: Outlook
    truth: Float[np.ndarray, " k"]


def game_state(environment: Environment, outlook: Outlook) -> GameState:
    """Record the state of a campaign on a system that is known.

    Args:
        environment: the system, such as `causal.environment_from_scm(scm)`.
        outlook: what a policy of a campaign on it is called with.

    Raises:
        TypeError: `environment` is not an `Environment`.
    """
    check_kind("environment", environment, Environment)
    candidates, _ = shortlist(outlook)
    points = candidates.points
    means: list[np.ndarray] = []
    for targets, values in zip(points.targets, points.values, strict=True):
        names = [environment.variables[v] for v in targets]
        mean = environment.mean(dict(zip(names, values.T, strict=True)))
        means.append(np.broadcast_to(mean, len(values)))
    truth = np.concatenate(means)
    return GameState(candidates, truth if environment.minimize else -truth)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """The record of games of equal length, group after group.

    Attributes:
        features: of the candidates, before each experiment.
        affordable: the candidates that could be paid for.
        action: the chosen candidate.
        log_p: its log-probability.
        alive: whether the budget still allowed an experiment.
        reward: of the whole game; 0 if the best was recommended throughout.
    """

    features: Float[np.ndarray, "n s k f"]
    affordable: Bool[np.ndarray, "n s k"]
    action: Int[np.ndarray, "n s"]
    log_p: Float[np.ndarray, "n s"]
    alive: Bool[np.ndarray, "n s"]
    reward: Float[np.ndarray, " n"]


def collect_experience(
    policy: AcquisitionPolicy,
    states: Sequence[GameState],
    config: GRPOConfig,
    *,
    seed: int | list[int],
) -> Experience:
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
    rng = np.random.default_rng(seed)
    games = [
        _play(policy, state, config.interventions_per_state, rng)
        for state in states
        for _ in range(config.group_size)
    ]
    return Experience(**{name: np.stack([g[name] for g in games]) for name in games[0]})


def _play(
    policy: AcquisitionPolicy, state: GameState, steps: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Play one game; the reward is minus the regret of what is recommended."""
    candidates, truth = state.candidates, state.truth
    # Lists have one length, so that games can be stacked.
    missing = PLACES - len(truth)
    moves: dict[str, list[Any]] = {
        name: [] for name in ("features", "affordable", "action", "log_p", "alive")
    }
    regrets: list[float] = []
    for _ in range(steps):
        features, affordable = candidate_features(candidates), candidates.affordable
        log_p = log_policy(policy.weights, features, affordable)
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        action = int((log_p + rng.gumbel(size=len(log_p))).argmax())
        alive = bool(affordable.any())
        if alive:
            candidates = answer_experiment(candidates, truth, action, rng)
        moves["features"].append(np.pad(features, ((0, missing), (0, 0))))
        moves["affordable"].append(np.pad(affordable, (0, missing)))
        moves["action"].append(action)
        moves["log_p"].append(log_p[action])
        moves["alive"].append(alive)
        regrets.append(truth[candidates.best] - truth.min())
    scale = float(state.candidates.loss.std()) or 1.0
    # Half on the end and half on the way: with the end alone an early good choice and a
    # late one would count the same.
    reward = -(regrets[-1] + np.mean(regrets)) / (2 * scale)
    return {name: np.array(each) for name, each in moves.items()} | {"reward": reward}


def answer_experiment(
    candidates: Outlook,
    truth: Float[np.ndarray, " k"],
    action: int,
    rng: np.random.Generator,
) -> Outlook:
    """Compute the outlook after an experiment, by an ensemble Kalman update.

    A campaign would sample new graphs; this moves the worlds that there are.
    """
    loss, usual = candidates.loss, candidates.price.mean()
    error = np.hypot(candidates.noise, _WORLD_ERROR * loss.std()) or 1.0
    here = loss[:, action]
    # Every candidate moves by its covariance with the tried one over the worlds.
    deviations = loss - loss.mean(0)
    gain = deviations[:, action] @ deviations / len(loss) / (here.var() + error**2)
    # One draw for the answer itself and one for each world. Without the latter the
    # ensemble would lose its spread too fast (Burgers et al. 1998).
    answer = truth[action] + candidates.noise * rng.standard_normal()
    surprise = answer + error * rng.standard_normal(len(loss)) - here
    left = candidates.left - candidates.price[action] / usual
    assert candidates.repeats is not None  # set by `shortlist`
    return dataclasses.replace(
        candidates,
        loss=loss + np.outer(surprise, gain),
        left=left,
        # A share of the price for rounding, whatever the currency.
        affordable=candidates.affordable
        & (candidates.price * (1 - 1e-6) <= left * usual),
        repeats=candidates.repeats + (np.arange(len(truth)) == action),
    )


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
        """Start from a policy; its choices are the reference.

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
            clip=1.0,
            compile_budget=1,
        )
        self._state = self.step.init(policy.weights)

    def update(self, games: Experience) -> dict[str, float]:
        """Learn from games that the current policy has played.

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
        # The group's mean is the baseline, in place of a value network. A small
        # constant, since all games of a group may have the same reward.
        groups = games.reward.reshape(-1, self.config.group_size)
        centred = groups - groups.mean(1, keepdims=True)
        advantage = centred / (groups.std(1, keepdims=True) + 1e-4)
        reference = log_policy(
            self._reference.weights, games.features, games.affordable
        )
        chosen = np.take_along_axis(reference, games.action[..., None], 2)[..., 0]
        batch = {
            "features": games.features,
            "affordable": games.affordable,
            "action": games.action,
            "log_p": games.log_p.astype(np.float32),
            "alive": games.alive.astype(np.float32),
            # Every experiment of a game gets the advantage of the whole game.
            "advantage": advantage.reshape(-1, 1).astype(np.float32),
            "reference": chosen.astype(np.float32),
        }
        metrics: Any = {}
        # The same games several times: from the second epoch on the ratio differs from
        # 1, and the clip has something to do.
        for _ in range(self.config.ppo_epochs):
            self._state, metrics = self.step(self._state, batch)
        weights = {name: np.asarray(w) for name, w in self._state.params.items()}
        self.policy = AcquisitionPolicy(weights, greedy=self.policy.greedy)
        figures = {name: float(value) for name, value in metrics.items()}
        return {**figures, "reward": float(games.reward.mean())}


def _grpo_loss(config: GRPOConfig) -> Callable[[PolicyWeights, dict[str, Any]], Any]:
    def loss(
        weights: PolicyWeights, batch: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        every = log_policy(weights, batch["features"], batch["affordable"], xp=jnp)
        log_p = jnp.take_along_axis(every, batch["action"][..., None], 2)[..., 0]
        count = jnp.maximum(batch["alive"].sum(), 1.0)
        mean = lambda x: (x * batch["alive"]).sum() / count
        ratio = jnp.exp(log_p - batch["log_p"])
        bounded = jnp.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        # The lower of both: a ratio beyond the bound gives no further gain, but a loss
        # counts in full (Schulman et al. 2017, eq. 7).
        advantage = batch["advantage"]
        gain = mean(jnp.minimum(ratio * advantage, bounded * advantage))
        # The estimator k3, r - 1 - log r: unbiased, never negative, and of lower
        # variance than -log r.
        apart = batch["reference"] - log_p
        kl = mean(jnp.exp(apart) - apart - 1)
        return config.kl_penalty_coeff * kl - gain, {"kl": kl}

    return loss
