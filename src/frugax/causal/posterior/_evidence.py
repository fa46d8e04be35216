"""Marginal likelihood (evidence) of Bayesian linear regressions, and its tempering."""

from math import lgamma
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from ._basis import NEGLIGIBLE

# Inverse-gamma prior on the variance of the noise; variables are scaled to variance 1.
# The scale is small on purpose: with a larger one the prior hides a mechanism that has
# no noise, and one that runs backwards and is nearly as exact looks just as good.
NOISE_SHAPE, NOISE_SCALE = 1.0, 5e-4
# The limit that the effective number of rows approaches.
_MAX_EFFECTIVE_ROWS = 1000.0


def log_evidence(
    gram: Float[np.ndarray, "*#sets k k"],
    against: Float[np.ndarray, "*#sets k"],
    square: float,
    rows: float,
    prior: Float[np.ndarray, "*#sets k"],
) -> Float[np.ndarray, "*sets"]:
    """Compute the log marginal likelihood of many regressions at once.

    The weights (normal) and the variance of the noise (inverse gamma) are integrated
    out. With straight lines as columns this is the counterpart of the BGe score with a
    ridge prior (Geiger & Heckerman 2002, Annals of Statistics 30:1412-1440).

    References:
        Bishop 2006, Pattern Recognition and Machine Learning, eq. 3.118 (exercise).
    """
    # Whitened: with weights in units of their prior deviation the prior precision is
    # the identity, and the Cholesky factorisation cannot fail on collinear columns.
    scale = np.sqrt(prior)
    k = scale.shape[-1]
    # Bordered by the right-hand side, one factorisation also solves for it: the last
    # row of its root is the part that the columns explain. Its square is at most
    # `square`, so the corner keeps the matrix positive definite.
    shape = np.broadcast_shapes(gram.shape[:-2], scale.shape[:-1])
    bordered = np.zeros((*shape, k + 1, k + 1))
    outer = scale[..., :, None] * scale[..., None, :]
    np.multiply(gram, outer, out=bordered[..., :k, :k])
    bordered[..., range(k), range(k)] += 1.0
    bordered[..., k, :k] = against * scale
    bordered[..., k, k] = 2 * square + 1.0
    root = np.linalg.cholesky(bordered)
    diagonal = np.diagonal(root, axis1=-2, axis2=-1)[..., :k]
    half_rows = NOISE_SHAPE + rows / 2
    # An exact fit leaves a residual that rounding can make negative.
    rest = np.maximum(
        square - np.sum(root[..., k, :k] ** 2, axis=-1), 1e-12 * max(square, 1.0)
    )
    return np.asarray(
        -np.sum(np.log(diagonal), axis=-1)
        - half_rows * np.log(NOISE_SCALE + rest / 2)
        + NOISE_SHAPE * np.log(NOISE_SCALE)
        + lgamma(half_rows)
        - lgamma(NOISE_SHAPE)
        - rows / 2 * np.log(2 * np.pi)
    )


def log_evidence_of_block(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: float,
    prior: Float[np.ndarray, " k"],
    block: slice,
    options: Float[np.ndarray, "options block"],
) -> Float[np.ndarray, " options"]:
    """Compute the log marginal likelihood for several priors of some columns.

    `prior` holds for all columns outside of `block`. They are eliminated once (a Schur
    complement), so each option costs a factorisation of the block alone.
    """
    fixed = prior > NEGLIGIBLE
    fixed[block] = False
    scale = np.sqrt(prior[fixed])
    root = np.linalg.cholesky(
        gram[np.ix_(fixed, fixed)] * scale[:, None] * scale + np.eye(len(scale))
    )
    cross = np.concatenate([gram[fixed, block], against[fixed, None]], axis=1)
    # Checkers infer a list from SciPy's source, which has no annotations.
    explained: Any = scipy.linalg.solve_triangular(
        root, scale[:, None] * cross, lower=True, check_finite=False
    )
    by_block, by_fixed = explained[:, :-1], explained[:, -1]
    rest = log_evidence(
        gram[block, block] - by_block.T @ by_block,
        against[block] - by_block.T @ by_fixed,
        max(square - float(by_fixed @ by_fixed), 0.0),
        rows,
        options,
    )
    return np.asarray(rest - np.log(np.diagonal(root)).sum())


def tempering_power(rows: int) -> float:
    """Return the power to which the likelihood of this number of rows is raised.

    Every mechanism is misspecified. With enough rows the posterior would collapse on
    the least-wrong one, and bend it as far as it must to pass through the mean of each
    experiment. With this power the rows never count as more than a thousand.

    References:
        Miller & Dunson 2019, J. American Statistical Association 114:1113-1125: the
        coarsened posterior is close to a likelihood to the power a / (a + n), with a
        as the number of rows at which the misspecification starts to show.
    """
    return 1 / (1 + rows / _MAX_EFFECTIVE_ROWS)
