"""Campaigns played in a cheap way, many at once, for a policy to learn from.

Play begins on boards of real campaigns, whose true means are known. An answer is drawn
from the truth, and each world moves towards it as an ensemble Kalman filter does: as
far as the worlds' covariance says. That costs a product of small matrices, where a real
campaign would draw new graphs; what a board tells the policy is computed in the same
way in both.

References:
    Evensen 2003, Ocean Dynamics 53:343-367 (the filter).
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from ._board import Board
from ._features import features, recommended, unit
from ._network import Weights, log_policy

# Worlds may all be wrong: so much of the spread they are off next to a place.
_DEVIATION = 0.1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened in games of equal length.

    Attributes:
        told: what the policy saw before each experiment.
        playable: what it could choose.
        action: what it chose, `set * places + place`.
        log_p: how likely that was, as a logarithm.
        alive: whether the budget still paid for an experiment.
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
    weights: Weights,
    board: Board,
    truth: Float[np.ndarray, "n v k"],
    steps: int,
    rng: np.random.Generator,
    *,
    greedy: bool = False,
) -> Played:
    """Play from each of some boards until the budget or the steps are over.

    The reward is minus the regret of what is recommended, in the unit of the first
    board: half of it after the last experiment, half the mean over all.

    Args:
        weights: of the policy.
        board: several, stacked.
        truth: the target's true mean at each place, where less is better.
        steps: experiments at most.
        rng: of choices and answers.
        greedy: whether the likeliest experiment is done each time.
    """
    n, v, k = truth.shape
    best = np.where(board.there, truth, np.inf).min((1, 2))
    size, told, playable, actions, logs, alive, regrets = (
        unit(board), [], [], [], [], [], [],
    )  # fmt: skip
    for _ in range(steps):
        can = board.playable
        goes_on = np.asarray(can.any((1, 2)))
        can = np.where(goes_on[:, None, None], can, True)  # of no consequence
        seen = features(board)
        log_p = log_policy(weights, seen, can).reshape(n, v * k)
        luck = 0.0 if greedy else rng.gumbel(size=log_p.shape)
        action = (log_p + luck).argmax(1)
        after = answered(board, truth, action, rng)
        board = _where(goes_on, after, board)
        told.append(seen)
        playable.append(can)
        actions.append(action)
        logs.append(np.take_along_axis(log_p, action[:, None], 1)[:, 0])
        alive.append(goes_on)
        regrets.append(board.at(truth, recommended(board)) - best)
    regret = np.stack(regrets, 1)
    return Played(
        told=np.stack(told, 1),
        playable=np.stack(playable, 1),
        action=np.stack(actions, 1),
        log_p=np.stack(logs, 1),
        alive=np.stack(alive, 1),
        reward=-(0.5 * regret[:, -1] + 0.5 * regret.mean(1)) / size,
        regret=regret[:, -1],
    )


def answered(
    board: Board,
    truth: Float[np.ndarray, "n v k"],
    action: Int[np.ndarray, " n"],
    rng: np.random.Generator,
) -> Board:
    """The boards after an experiment each.

    Args:
        board: several, stacked.
        truth: the target's true mean at each place.
        action: where, `set * places + place`.
        rng: of the answers' noise.
    """
    n, worlds, v, k = board.loss.shape
    flat = board.loss.reshape(n, worlds, v * k)
    here = np.take_along_axis(flat, action[:, None, None], 2)  # [n, worlds, 1]
    apart = here - here.mean(1, keepdims=True)
    near = _near(action, v, k) * (_DEVIATION * unit(board)[:, None]) ** 2
    variance = (apart**2).mean(1) + board.noise[:, None] ** 2
    variance += (_DEVIATION * unit(board)[:, None]) ** 2
    shaken = board.noise[:, None, None] * rng.standard_normal((n, worlds + 1, 1))
    answer = board.at(truth, action)[:, None, None] + shaken[:, :1]
    surprise = (answer + shaken[:, 1:] - here) / variance[:, None]
    moved = flat + surprise * ((apart * (flat - flat.mean(1, keepdims=True))).mean(
        1, keepdims=True
    ) + near[:, None])  # fmt: skip
    causes = board.cause - board.cause.mean(1, keepdims=True)
    cause = board.cause + surprise * (apart * causes).mean(1, keepdims=True)
    visits = board.visits.reshape(n, -1).copy()
    visits[np.arange(n), action] += 1
    paid = board.price[np.arange(n), action // k]
    return dataclasses.replace(
        board,
        loss=moved.reshape(board.loss.shape).astype(np.float32),
        cause=np.clip(cause, 0, 1).astype(np.float32),
        visits=visits.reshape(board.visits.shape),
        purse=np.maximum(board.purse - paid, 0).astype(np.float32),
    )


def _near(action: np.ndarray, v: int, k: int) -> Float[np.ndarray, "n places"]:
    """How far deviations go together with those at a place: along its own range."""
    place = np.arange(v * k)
    apart = (place % k - action[:, None] % k).astype(np.float32)
    return np.exp(-(apart**2) / 2) * (place // k == action[:, None] // k)


def _where(which: np.ndarray, one: Board, other: Board) -> Board:
    """The boards of one where it says so, else of the other."""
    choose = lambda a, b: np.where(which.reshape(-1, *[1] * (a.ndim - 1)), a, b)
    return Board(
        **{
            f.name: choose(getattr(one, f.name), getattr(other, f.name))
            for f in dataclasses.fields(Board)
        }
    )
