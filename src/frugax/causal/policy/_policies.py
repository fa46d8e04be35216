"""Acquisition policies: choose a campaign's next experiment among its candidates.

Each takes an outlook and a random generator and returns the position of an affordable
point. All divide their acquisition function by the price of the experiment.

References:
    Jones et al. 1998, J. Global Optimization 13:455-492 (expected improvement);
    Thompson 1933, Biometrika 25:285-294; Srinivas et al. 2010, ICML (upper confidence
    bounds); Frazier et al. 2009, INFORMS J. Computing 21:599-613 (knowledge gradient).
"""

import dataclasses
from collections.abc import Callable
from math import erfc, pi, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from ._outlook import Outlook
from ._value import total_values

Policy: TypeAlias = Callable[[Outlook, np.random.Generator], int]

_FILL_EVERY = 3  # every third experiment goes to the least explored point
_UNEXPLORED = 0.5  # share of the first uncertainty that a point must have left
_FOUND = 0.5  # improvement on doing nothing, in standard deviations of the target
_SEARCH_FRAC = 0.6  # of the budget, until which nothing else is done before
_MAX_REPEATS = 1.5
_WORTHWHILE = 0.05
_RETEST = 0.1
# Candidates of the knowledge gradient, which takes a millisecond for each.
_CANDIDATES = 24


def improvement(outlook: Outlook, rng: np.random.Generator) -> int:
    """Maximize the expected improvement on the recommendation, per cost, and explore.

    Every third experiment goes where the outcomes so far say least, as all models may
    agree on a region that none of them has seen; and every one in the first 60 % of the
    budget, as long as nothing was found that is better than to do nothing. The
    recommendation is tried again if that is worth more than the most promising point.
    No point is tried a third time while a better one may be where nothing was tried.
    """
    ei = expected_improvement(outlook)
    if outlook.unexplored is None or outlook.repeats is None:
        return _select_max(ei / outlook.price, outlook, rng)
    fits = outlook.affordable & ~outlook.refuted
    new = fits & (outlook.unexplored > _UNEXPLORED)
    if _explores(outlook) and new.any():
        # Where several points are as unexplored, the most promising one.
        hope = ei / (float(ei[new].max()) or 1.0)
        score = outlook.unexplored * (1 + 0.3 * hope)
        return _select_max(np.where(new, score, 0.0), outlook, rng)
    often = outlook.repeats > _MAX_REPEATS
    best = outlook.best
    if new.any() and (fits & ~often).any():
        now = outlook.loss[:, best]
        better = outlook.loss[:, new].min(1) < now - _WORTHWHILE * outlook.loss.std()
        if better.mean() > _WORTHWHILE:
            fits &= ~often
            outlook = dataclasses.replace(outlook, affordable=fits)
    pick = _select_max(ei / outlook.price, outlook, rng)
    if not fits[best] or often[best]:
        return pick
    # The best of many candidates is often a lucky one, and its expected improvement on
    # itself is 0: the worth of another outcome decides whether it is tried again.
    both = np.array([best, pick])
    worth = total_values(outlook, both) / outlook.price[both]
    return best if worth[0] > worth[1] else pick


def _explores(outlook: Outlook) -> bool:
    """Return whether the next experiment goes to the least explored point."""
    turn = outlook.asked % _FILL_EVERY == 1
    if () not in outlook.points.targets:
        return turn
    gain = outlook.loss[:, -1] - outlook.loss[:, outlook.best]
    spent = outlook.asked / max(outlook.asked + outlook.left, 1.0)
    found = float(gain.mean()) >= _FOUND * outlook.scale
    return turn or (not found and outlook.asked > 1 and spent < _SEARCH_FRAC)


def thompson(outlook: Outlook, rng: np.random.Generator) -> int:
    """Maximize the improvement per cost in one posterior sample (Thompson sampling)."""
    world = int(rng.integers(len(outlook.loss)))
    loss = np.where(outlook.allowed[world], outlook.loss[world], np.inf)
    worst = float(np.max(outlook.loss[world]))
    today = min(float(loss[outlook.best]), worst)  # infinite if not allowed
    gain = np.maximum(today - loss, 0.0) / outlook.price
    if not (gain[outlook.affordable] > 0).any():
        # The sample agrees with the recommendation: repeat it if that is affordable.
        gain = np.maximum(worst - loss, 0.0)
    return _select_max(gain, outlook, rng)


def gain(outlook: Outlook, rng: np.random.Generator) -> int:
    """Maximize the value of information per cost (the knowledge gradient)."""
    ei = expected_improvement(outlook) / outlook.price
    fits = np.flatnonzero(outlook.affordable)
    unsure = outlook.loss.std(0) / outlook.price
    looked = np.unique(
        np.concatenate(
            [
                fits[np.argsort(-ei[fits], kind="stable")[: _CANDIDATES // 2]],
                fits[np.argsort(-unsure[fits], kind="stable")[: _CANDIDATES // 4]],
                fits[rng.integers(0, len(fits), _CANDIDATES // 4)],
            ]
        )
    )
    worth = np.full(len(outlook.price), -np.inf)
    worth[looked] = total_values(outlook, looked) / outlook.price[looked]
    if worth[looked].max() <= 0:
        return improvement(outlook, rng)
    return _select_max(worth, outlook, rng)


def ucb(outlook: Outlook, rng: np.random.Generator) -> int:
    """Minimize the lower confidence bound of the loss: mean minus two deviations."""
    # Two standard deviations below the mean lies the 2 % quantile of a normal loss.
    bound = outlook.mean - 2.0 * outlook.loss.std(0)
    today = float(outlook.mean[outlook.best])
    return _select_max(np.maximum(today - bound, 0.0) / outlook.price, outlook, rng)


def random(outlook: Outlook, rng: np.random.Generator) -> int:
    """Choose at random: first the variables, then an affordable point."""
    group = outlook.points.group
    which = rng.choice(np.unique(group[outlook.affordable]))
    return int(rng.choice(np.flatnonzero(outlook.affordable & (group == which))))


OWN = "own"  # the name of user-defined policies in settings

POLICIES: dict[str, Policy] = {
    "improvement": improvement,
    "thompson": thompson,
    "gain": gain,
    "ucb": ucb,
    "random": random,
}


def _normal(z: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The standard normal distribution function."""
    each = [0.5 * erfc(-x * sqrt(0.5)) for x in z.ravel().tolist()]
    return np.array(each).reshape(z.shape)


def expected_improvement(outlook: Outlook) -> Float[np.ndarray, " points"]:
    """Compute the expected improvement on the current recommendation, before cost."""
    # In each world the recommendation has another value. Compared with that, repeating
    # it improves nothing, however uncertain its mean; compared with its mean, points
    # that would show whether it is as good as it seems have a chance too.
    now = outlook.loss[:, outlook.best]
    mean = np.full(len(now), outlook.mean[outlook.best])
    return (1 - _RETEST) * _improvement_on(now, outlook) + _RETEST * _improvement_on(
        mean, outlook
    )


def _improvement_on(
    now: Float[np.ndarray, " worlds"], outlook: Outlook
) -> Float[np.ndarray, " points"]:
    # Pending experiments count as done, with the outcome that each world predicts:
    # the next experiment then differs from them.
    today = np.minimum(now, outlook.reached)
    ahead = today[:, None] - outlook.loss
    better = np.maximum(ahead, 0.0)
    if outlook.misfit.any():
        # Worlds may agree and all be wrong, as past forecasts were: add that error.
        size = np.maximum(outlook.misfit, 1e-9 * float(outlook.misfit.max()))
        # Jones et al. 1998, eq. 15: for a standard normal N the mean of
        # max(ahead + size * N, 0) is ahead * Phi(z) + size * phi(z). Beyond 30
        # deviations the tail no longer counts, and z**2 could overflow.
        z = np.clip(ahead / size, -30.0, 30.0)
        better = np.maximum(
            ahead * _normal(z) + size * np.exp(-0.5 * z**2) / sqrt(2 * pi), 0.0
        )
    return np.where(outlook.allowed, better, 0.0).mean(0)


def _select_max(
    score: Float[np.ndarray, " points"], outlook: Outlook, rng: np.random.Generator
) -> int:
    fits = outlook.affordable & ~outlook.refuted
    if not fits.any():
        fits = outlook.affordable
    score = np.where(fits & ~np.isnan(score), score, -np.inf)
    if not score.max() > 0:
        # No candidate promises an improvement: take the most uncertain per cost.
        least = outlook.loss.std(0) / outlook.price
        tie = 1e-12 * (float(least.max()) or 1.0) * rng.random(len(least))
        score = np.where(fits, least + tie, -1)
    return int(np.argmax(score))
