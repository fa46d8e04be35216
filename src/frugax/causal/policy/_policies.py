"""Acquisition functions: choose a campaign's next experiment among its candidates.

A campaign asks by `improvement` and advises by `gain`. Both take an outlook and a
random generator, divide by the price of the experiment, and return the position of an
affordable point. `benchmarks/causal_policy.py compare` at commit ff222437 compared them
with Thompson sampling, upper confidence bounds and random choice, none of which was
shown better than expected improvement.

References:
    Jones et al. 1998, J. Global Optimization 13:455-492 (expected improvement);
    Frazier et al. 2009, INFORMS J. Computing 21:599-613 (knowledge gradient).
"""

import dataclasses
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from ._knowledge_gradient import total_values
from ._outlook import Outlook

Policy: TypeAlias = Callable[[Outlook, np.random.Generator], int]

_MAX_REPEATS = 1.5
# Each third experiment fills space until a quarter of the budget is left. Without, the
# last regret was 0.10 instead of 0.15 on one half of the golden campaigns (by 0.05 +-
# 0.04), but on the other 0.33 instead of 0.12: in `interaction 3` two levers that act
# together alone were never found.
_FILL_EVERY, _FILL_UNTIL = 3, 3
_EMPTY = 0.05  # experiments nearby, fewer than which leave a place empty
_RETEST = 0.1
# Candidates of the knowledge gradient, which takes a millisecond for each.
_CANDIDATES = 24


def improvement(outlook: Outlook, rng: np.random.Generator) -> int:
    """Maximize the expected improvement on the recommendation, per cost.

    The recommendation is tried again if that is worth more than the most promising
    point, but no point a third time while another one may be better. Each third
    experiment is where none was done yet, as far as that is known.
    """
    is_due = outlook.asked % _FILL_EVERY == _FILL_EVERY - 1
    if is_due and outlook.asked + 1 < _FILL_UNTIL * outlook.left:
        point = _fill_space(outlook, rng)
        if point is not None:
            return point
    ei = expected_improvement(outlook) / outlook.price
    if outlook.repeats is None:
        return _select_max(ei, outlook, rng)
    fits = outlook.affordable & ~outlook.refuted
    rare = fits & (outlook.repeats < _MAX_REPEATS)
    if (ei[rare] > 0).any():
        fits = rare
        outlook = dataclasses.replace(outlook, affordable=fits)
    pick, best = _select_max(ei, outlook, rng), outlook.best
    if not rare[best]:
        return pick
    # The best of many candidates is often a lucky one, and its expected improvement on
    # itself is 0: the worth of another outcome decides whether it is tried again.
    both = np.array([best, pick])
    worth = total_values(outlook, both) / outlook.price[both]
    return best if worth[0] > worth[1] else pick


def _fill_space(outlook: Outlook, rng: np.random.Generator) -> int | None:
    """Draw a point without an experiment nearby, if one is left.

    Every model may be wrong where no data are, and smooth ones ask for the ends of
    ranges only. Variables with large or uncertain effects are likelier.
    """
    if outlook.repeats is None:
        return None
    empty = outlook.affordable & ~outlook.refuted & np.isfinite(outlook.mean)
    empty &= outlook.repeats < _EMPTY
    if not empty.any():
        return None
    # As many experiments on single variables as on pairs, of which there are more.
    sizes = np.array([len(each) for each in outlook.points.targets])
    sizes = sizes[outlook.points.group]
    empty &= sizes == rng.choice(np.unique(sizes[empty]))
    # The largest mean square effect of each group, per cost.
    effect = ((outlook.loss - np.median(outlook.loss)) ** 2).mean(0) / outlook.price
    if outlook.success is not None:
        effect = effect * outlook.success
    group = outlook.points.group
    found = np.zeros(len(outlook.points.targets))
    np.maximum.at(found, group[empty], effect[empty])
    if not found.sum() > 0:
        return None
    chosen = rng.choice(len(found), p=found / found.sum())
    return int(rng.choice(np.flatnonzero(empty & (group == chosen))))


def gain(outlook: Outlook, rng: np.random.Generator) -> int:
    """Maximize the knowledge gradient per cost."""
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


# In settings: the default, and a function of the user's own.
DEFAULT, OWN = "improvement", "own"


def expected_improvement(outlook: Outlook) -> Float[np.ndarray, " points"]:
    """Compute the expected improvement on the current recommendation, before cost."""
    # In each world the recommendation has another value. Compared with that, repeating
    # it improves nothing, however uncertain its mean; compared with its mean, points
    # that would show whether it is as good as it seems have a chance too.
    now = outlook.loss[:, outlook.best]
    mean = np.full(len(now), outlook.mean[outlook.best])
    found = (1 - _RETEST) * _improvement_on(now, outlook)
    found += _RETEST * _improvement_on(mean, outlook)
    # Gelbart et al. 2014, UAI, "Bayesian optimization with unknown constraints".
    return found if outlook.success is None else found * outlook.success


def _improvement_on(
    now: Float[np.ndarray, " worlds"], outlook: Outlook
) -> Float[np.ndarray, " points"]:
    # Pending experiments count as done, with the outcome that each world predicts:
    # the next experiment then differs from them.
    today = np.minimum(now, outlook.reached)
    return mean_improvement(today, outlook.loss, outlook.allowed)


def mean_improvement(
    now: Float[np.ndarray, " worlds"],
    loss: Float[np.ndarray, "worlds points"],
    allowed: Bool[np.ndarray, "worlds points"],
) -> Float[np.ndarray, " points"]:
    """Compute the mean over worlds of how much better than `now` each point is.

    A point that breaks a constraint improves nothing.
    """
    better = np.maximum(now[:, None] - loss, 0.0)
    return np.where(allowed, better, 0.0).mean(0)


def _select_max(
    score: Float[np.ndarray, " points"], outlook: Outlook, rng: np.random.Generator
) -> int:
    fits = outlook.affordable & ~outlook.refuted
    if not fits.any():
        fits = outlook.affordable
    score = np.where(fits & ~np.isnan(score), score, -np.inf)
    if not score.max() > 0:
        # No candidate is expected to improve: take the most uncertain per cost.
        least = outlook.loss.std(0) / outlook.price
        tie = 1e-12 * (float(least.max()) or 1.0) * rng.random(len(least))
        score = np.where(fits, least + tie, -1)
    return int(np.argmax(score))
