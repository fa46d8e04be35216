"""How well columns explain a variable, all weights and the noise integrated out."""

from math import lgamma

import numpy as np
from jaxtyping import Float

# The noise's variance has an inverse-gamma prior; the variable is scaled to variance 1.
# The scale is small: what the prior adds must not drown a mechanism without noise, or
# one that runs backwards and is nearly as exact would look just as good.
NOISE_SHAPE, NOISE_SCALE = 1.0, 5e-4
_ENOUGH = 1000.0  # rows with which a mechanism is as well known as it can be


def log_evidence(
    gram: Float[np.ndarray, "*sets k k"],
    against: Float[np.ndarray, "*sets k"],
    square: float,
    rows: float,
    prior: Float[np.ndarray, " k"],
) -> Float[np.ndarray, "*sets"]:
    """Log marginal likelihood of Bayesian linear regressions, many at once.

    Args:
        gram: inner products of the columns.
        against: inner products of the columns with the variable.
        square: inner product of the variable with itself.
        rows: how many rows these sum over; a fraction where they count for less.
        prior: variance of each weight, in units of the noise's variance; > 0.

    References:
        Bishop 2006, Pattern Recognition and Machine Learning, eq. 3.118 (exercise).
    """
    # Weights in units of their prior's deviation: the prior's precision is then one.
    scale = np.sqrt(prior)
    precision = gram * scale[:, None] * scale + np.eye(len(prior))
    root = np.linalg.cholesky(precision)
    half = np.linalg.solve(root, (against * scale)[..., None])[..., 0]
    diagonal = np.diagonal(root, axis1=-2, axis2=-1)
    shape = NOISE_SHAPE + rows / 2
    rest = np.maximum(square - np.sum(half**2, axis=-1), 1e-12 * max(square, 1.0))
    return np.asarray(
        -np.sum(np.log(diagonal), axis=-1)
        - shape * np.log(NOISE_SCALE + rest / 2)
        + NOISE_SHAPE * np.log(NOISE_SCALE)
        + lgamma(shape)
        - lgamma(NOISE_SHAPE)
        - rows / 2 * np.log(2 * np.pi)
    )


def coarsened(rows: int) -> float:
    """To which power the likelihood of so many rows is raised.

    No mechanism is quite right. With enough rows the least wrong one would be certain,
    and it would bend as far as it must to pass through each experiment's mean. To this
    power rows never count as more than a thousand.

    Args:
        rows: how many there are.

    References:
        Miller & Dunson 2019, J. American Statistical Association 114:1113-1125.
    """
    return 1 / (1 + rows / _ENOUGH)
