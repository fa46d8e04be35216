"""Ways to choose the next experiment from what is known.

Each takes an outlook and a source of randomness and gives the position of an experiment
that is affordable. All weigh what they hope for by its price.
"""

from collections.abc import Callable
from math import erfc, pi, sqrt
from typing import TypeAlias

import numpy as np
from jaxtyping import Float

from ._outlook import Outlook
from ._value import totals

Policy: TypeAlias = Callable[[Outlook, np.random.Generator], int]

# Experiments whose worth is computed in full; it takes a millisecond each.
_LOOKED_AT = 24


def improvement(outlook: Outlook, rng: np.random.Generator) -> int:
    """The most expected improvement on today's recommendation, per cost.

    Args:
        outlook: what is known.
        rng: breaks ties.
    """
    return _most(_expected_improvement(outlook) / outlook.price, outlook, rng)


def thompson(outlook: Outlook, rng: np.random.Generator) -> int:
    """What would be best per cost in one world, picked at random.

    Args:
        outlook: what is known.
        rng: picks the world.
    """
    world = int(rng.integers(len(outlook.loss)))
    loss = np.where(outlook.allowed[world], outlook.loss[world], np.inf)
    worst = float(np.max(outlook.loss[world]))
    today = loss[outlook.best] if np.isfinite(loss[outlook.best]) else worst
    gain = np.maximum(today - loss, 0.0) / outlook.price
    if not (gain[outlook.affordable] > 0).any():
        # This world agrees with the recommendation: look there again if that fits.
        gain = np.maximum(worst - loss, 0.0)
    return _most(gain, outlook, rng)


def gain(outlook: Outlook, rng: np.random.Generator) -> int:
    """The experiment whose answer is worth most per cost.

    Args:
        outlook: what is known.
        rng: breaks ties.
    """
    hoped = _expected_improvement(outlook) / outlook.price
    fits = np.flatnonzero(outlook.affordable)
    unsure = outlook.loss.std(0) / outlook.price
    looked = np.unique(
        np.concatenate(
            [
                fits[np.argsort(-hoped[fits], kind="stable")[: _LOOKED_AT // 2]],
                fits[np.argsort(-unsure[fits], kind="stable")[: _LOOKED_AT // 4]],
                fits[rng.integers(0, len(fits), _LOOKED_AT // 4)],
            ]
        )
    )
    worth = np.full(len(outlook.price), -np.inf)
    worth[looked] = totals(outlook, looked) / outlook.price[looked]
    if worth[looked].max() <= 0:
        return improvement(outlook, rng)
    return _most(worth, outlook, rng)


def ucb(outlook: Outlook, rng: np.random.Generator) -> int:
    """The best that may be hoped for: two deviations better than the mean.

    Args:
        outlook: what is known.
        rng: breaks ties.
    """
    hoped = outlook.mean - 2.0 * outlook.loss.std(0)
    today = float(outlook.mean[outlook.best])
    return _most(np.maximum(today - hoped, 0.0) / outlook.price, outlook, rng)


def random(outlook: Outlook, rng: np.random.Generator) -> int:
    """Any affordable experiment; first which variables, then the values.

    Args:
        outlook: what is known.
        rng: picks it.
    """
    group = outlook.points.group
    which = rng.choice(np.unique(group[outlook.affordable]))
    return int(rng.choice(np.flatnonzero(outlook.affordable & (group == which))))


OWN = "own"  # what settings say of a function that is not among these

POLICIES: dict[str, Policy] = {
    "improvement": improvement,
    "thompson": thompson,
    "gain": gain,
    "ucb": ucb,
    "random": random,
}


def _normal(z: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """The normal distribution function; NumPy has none."""
    each = [0.5 * erfc(-x * sqrt(0.5)) for x in z.ravel().tolist()]
    return np.array(each).reshape(z.shape)


def _expected_improvement(outlook: Outlook) -> Float[np.ndarray, " points"]:
    # What experiments under way will give counts as reached, world by world.
    today = np.minimum(float(outlook.mean[outlook.best]), outlook.reached)
    ahead = today[:, None] - outlook.loss
    better = np.maximum(ahead, 0.0)
    if outlook.misfit.any():
        # Worlds that agree may all be wrong, where they were before.
        size = np.maximum(outlook.misfit, 1e-9 * float(outlook.misfit.max()))
        z = np.clip(ahead / size, -30.0, 30.0)
        better = np.maximum(
            ahead * _normal(z) + size * np.exp(-0.5 * z**2) / sqrt(2 * pi), 0.0
        )
    return np.where(outlook.allowed, better, 0.0).mean(0)


def _most(
    score: Float[np.ndarray, " points"], outlook: Outlook, rng: np.random.Generator
) -> int:
    fits = outlook.affordable & ~outlook.refuted
    fits = fits if fits.any() else outlook.affordable
    score = np.where(fits & ~np.isnan(score), score, -np.inf)
    if not score.max() > 0:
        # Nothing promises anything: what is least known.
        least = outlook.loss.std(0) / outlook.price
        tie = 1e-12 * (float(least.max()) or 1.0) * rng.random(len(least))
        score = np.where(fits, least + tie, -1)
    return int(np.argmax(score))
