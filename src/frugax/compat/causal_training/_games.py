"""Games: a policy goes on from a campaign's state, where the truth is known.

Answers come from the truth, and the posterior samples move towards them by an ensemble
Kalman update, which costs a product of small matrices where a campaign would sample new
graphs. Everything is NumPy.

References:
    Evensen 2003, Ocean Dynamics 53:343-367; Burgers, van Leeuwen & Evensen 1998,
    Monthly Weather Review 126:1719-1724 (the ensemble Kalman filter, and why
    observations are perturbed).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from frugax.causal.checks import check_kind
from frugax.causal.environments import Environment
from frugax.causal.policy import Outlook

from ._policy import PolicyWeights, log_policy
from ._shortlist import (
    Shortlist,
    loss_scale,
    recommend,
    shortlist_features,
    shortlist_of,
    stack_shortlists,
)

# All worlds may be wrong: they are off by this share of the loss's scale.
_WORLD_ERROR = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class GameState:
    """A campaign before an experiment, with the truth.

    Attributes:
        shortlist: the candidates.
        truth: the target's true mean at each of them; less is better.
    """

    shortlist: Shortlist
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
    shortlist = shortlist_of(outlook)
    truth = np.zeros(len(shortlist.point), np.float32)
    group = outlook.points.group[shortlist.point]
    # All candidates of a group set the same variables, so one call computes them.
    for g in np.unique(group):
        at = [outlook.points.at(int(i))[1] for i in shortlist.point[group == g]]
        names = [environment.variables[v] for v in outlook.points.targets[g]]
        values = dict(zip(names, np.stack(at, 1), strict=True))
        truth[group == g] = environment.mean(values)
    return GameState(shortlist, truth if environment.minimize else -truth)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Games:
    """The record of games of equal length.

    Attributes:
        features: of the candidates, before each experiment.
        affordable: the candidates that could be paid for.
        action: the chosen candidate.
        log_p: its log-probability.
        alive: whether the budget still allowed an experiment.
        reward: of the whole game; 0 if the best was recommended throughout.
        regret: of the last recommendation, in the target's unit.
    """

    features: Float[np.ndarray, "n s k f"]
    affordable: Bool[np.ndarray, "n s k"]
    action: Int[np.ndarray, "n s"]
    log_p: Float[np.ndarray, "n s"]
    alive: Bool[np.ndarray, "n s"]
    reward: Float[np.ndarray, " n"]
    regret: Float[np.ndarray, " n"]


def play_games(
    weights: PolicyWeights,
    states: Sequence[GameState],
    steps: int,
    rng: np.random.Generator,
) -> Games:
    """Play one game from each state until the budget or the steps are over.

    The reward is minus the regret of the recommendation, in the scale of the first
    shortlist: half of it after the last experiment, half the mean over all.

    Args:
        weights: of the policy, which samples its experiments.
        states: at least one; one state may occur several times.
        steps: the most experiments in a game.
        rng: of choices and answers.
    """
    lists = stack_shortlists([state.shortlist for state in states])
    truth = np.stack([state.truth for state in states])
    scale = loss_scale(lists)
    best = np.where(lists.there, truth, np.inf).min(1)
    moves: list[tuple[np.ndarray, ...]] = []
    regrets: list[np.ndarray] = []
    for _ in range(steps):
        affordable = lists.affordable
        alive = np.asarray(affordable.any(1))
        # A game that is over keeps its row in the arrays, with all candidates open;
        # `alive` leaves it out of the loss.
        affordable = affordable | ~alive[:, None]
        features = shortlist_features(lists)
        log_p = log_policy(weights, features, affordable)
        # Gumbel noise on log-probabilities makes argmax a sample from them.
        action = (log_p + rng.gumbel(size=log_p.shape)).argmax(1)
        lists = apply_answer(lists, truth, action, alive, rng)
        moves.append((features, affordable, action, _at(log_p, action), alive))
        regrets.append(_at(truth, recommend(lists)) - best)
    regret = np.stack(regrets, 1)
    names = ("features", "affordable", "action", "log_p", "alive")
    columns = (np.stack(column, 1) for column in zip(*moves, strict=True))
    return Games(
        **dict(zip(names, columns, strict=True)),
        # Half on the end and half on the way: with the end alone an early good choice
        # and a late one would count the same.
        reward=-(0.5 * regret[:, -1] + 0.5 * regret.mean(1)) / scale,
        regret=regret[:, -1],
    )


def apply_answer(
    lists: Shortlist,
    truth: Float[np.ndarray, "n k"],
    action: Int[np.ndarray, " n"],
    alive: Bool[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Shortlist:
    """Compute the shortlists after one experiment each.

    Args:
        lists: several shortlists, stacked.
        truth: the target's true mean at each candidate.
        action: the candidate that is tried.
        alive: lists without an experiment stay as they are.
        rng: of the answers' noise.
    """
    n, worlds, k = lists.loss.shape
    tried = (np.arange(k) == action[:, None]) & alive[:, None]
    here = np.take_along_axis(lists.loss, action[:, None, None], 2)  # [n, worlds, 1]
    apart = here - here.mean(1, keepdims=True)
    error = ((_WORLD_ERROR * loss_scale(lists)) ** 2)[:, None, None]
    noise = lists.noise[:, None, None]
    variance = (apart**2).mean(1, keepdims=True) + noise**2 + error
    # One draw for the answer itself and one for each world. Without the latter the
    # ensemble would lose its spread too fast.
    drawn = noise * rng.standard_normal((n, worlds + 1, 1))
    answer = _at(truth, action)[:, None, None] + drawn[:, :1]
    surprise = (answer + drawn[:, 1:] - here) / variance
    # Every candidate moves by its covariance with the tried one over the worlds.
    deviations = lists.loss - lists.loss.mean(1, keepdims=True)
    gain = (apart * deviations).mean(1, keepdims=True) + error * tried[:, None]
    moved = lists.loss + surprise * gain * alive[:, None, None]
    paid = _at(lists.price, action) * alive
    return dataclasses.replace(
        lists,
        loss=moved.astype(np.float32),
        visits=lists.visits + tried,
        money=np.maximum(lists.money - paid, 0).astype(np.float32),
    )


def _at(values: np.ndarray, action: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, action[:, None], 1)[:, 0]
