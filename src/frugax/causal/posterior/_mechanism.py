"""Fit a variable's mechanism: a Bayesian nonlinear regression on its parents.

The columns are a constant, a straight line and sines for each parent, and waves over
all parents together where they interact. The evidence chooses how much each part may
contribute, and over which length it changes. The weights stay uncertain, so a sampled
function shows how much the data leave open, in particular outside of their range.
"""

import dataclasses
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from ._basis import (
    NEGLIGIBLE,
    NUM_BENDS,
    ROUNDING,
    Domain,
    companion_columns,
    design_matrix,
    evaluate_bends,
)
from ._evidence import NOISE_SCALE, NOISE_SHAPE, tempering_power
from ._hyperparameters import (
    HyperparameterPosterior,
    Hyperparameters,
    search_hyperparameters,
)
from ._posterior_sample import TABLE_POINTS, MechanismSample

# Without waves the last regret of `interaction 1` is 3.0 instead of 0.
_NUM_WAVES = 24
_WAVE_LENGTHS = (0.5, 1.2)


@dataclasses.dataclass(frozen=True, slots=True)
class Mechanism:
    """The posterior of one variable's function, given its hyperparameters.

    Attributes:
        parents: positions of the parents among the variables.
        weights: posterior mean of the weights, in units of `spread`.
        root: Cholesky factor of the weights' precision, in units of the noise.
        used: the columns with weights.
        noise_shape: shape of the noise variance's inverse-gamma posterior.
        noise_scale: scale of the noise variance's inverse-gamma posterior.
        residuals: the part that the parents leave unexplained, in units of `spread`.
        residual_std: standard deviation of what companions leave unexplained too.
        offset: mean of the variable.
        spread: standard deviation of the variable.
        frequencies: frequency vectors of the waves.
    """

    parents: tuple[int, ...]
    weights: Float[np.ndarray, " k"]
    root: Float[np.ndarray, "k k"]
    used: np.ndarray
    noise_shape: float
    noise_scale: float
    residuals: Float[np.ndarray, " n"]
    residual_std: float
    offset: float
    spread: float
    frequencies: Float[np.ndarray, "waves p"]

    def sample(self, rng: np.random.Generator) -> MechanismSample:
        """Draw one function from the posterior."""
        # 1 / gamma is inverse gamma; the floor keeps the variance finite where the
        # shape is near 0.
        variance = self.noise_scale / max(rng.gamma(self.noise_shape), 1e-9)
        z = rng.standard_normal(len(self.weights))
        weights = np.zeros(len(self.used))
        # With precision L L^T, L^-T z has the covariance of the posterior.
        weights[self.used] = self.weights + np.sqrt(variance) * _solve_lower(
            self.root, z, transposed=True
        )
        noise = np.sqrt(variance)
        p = len(self.parents)
        last_bend = 1 + p + p * NUM_BENDS
        bends = weights[1 + p : last_bend].reshape(p, NUM_BENDS)
        # The companions' weights come last and are left out: a variable that shares a
        # hidden cause has no effect, and in an experiment that cause is noise.
        waves = weights[last_bend : last_bend + 2 * len(self.frequencies)]
        residuals = np.zeros(1)
        if self.residual_std > 0:
            # The residuals keep the shape of the noise; its size is the drawn one.
            residuals = self.spread * noise / self.residual_std * self.residuals
        return MechanismSample(
            parents=self.parents,
            constant=self.offset + self.spread * float(weights[0]),
            slopes=self.spread * weights[1 : 1 + p],
            bend_tables=self.spread * (bends @ evaluate_bends(TABLE_POINTS).T),
            waves=self.spread * waves,
            frequencies=self.frequencies,
            noise=residuals,
        )


def fit_mechanism(
    y: Float[np.ndarray, " n"],
    x: Float[np.ndarray, "n p"],
    parents: tuple[int, ...],
    domain: Domain,
    *,
    companions: Float[np.ndarray, "n c"] | None = None,
) -> tuple[HyperparameterPosterior, tuple[Mechanism, ...]]:
    """Fit a variable as a function of its parents."""
    n, p = x.shape
    offset = spread = 0.0
    if n:
        offset, spread = float(y.mean()), float(y.std())
    if not spread > ROUNDING * np.abs(y).max(initial=0.0):
        spread = 1.0
    scaled = (y - offset) / spread
    # A generator of their own: the same parents have the same waves in every fit.
    num_waves = _NUM_WAVES if p > 1 else 0
    directions = np.random.default_rng([7, *parents]).standard_normal((num_waves, p))
    u = np.empty((n, p))
    for i, v in enumerate(parents):
        u[:, i] = domain.normalize(x[:, i], v)
    power = tempering_power(n)
    square = power * float(scaled @ scaled)
    extra, companion_prior = companion_columns(companions)
    cache: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def sufficient_statistics(
        wave_length: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if wave_length not in cache:
            columns = design_matrix(u, directions / _WAVE_LENGTHS[wave_length])
            columns = np.concatenate([columns, *extra], axis=1)
            gram, against = columns.T @ columns, columns.T @ scaled
            # A Gaussian likelihood to a power is one with the sums times that power.
            cache[wave_length] = columns, power * gram, power * against
        return cache[wave_length]

    visited: dict[Hyperparameters, float] = {}
    for wave_length in range(len(_WAVE_LENGTHS) if num_waves else 1):
        _, gram, against = sufficient_statistics(wave_length)
        visited |= search_hyperparameters(
            gram,
            against,
            square,
            power * n,
            p,
            num_waves,
            wave_length,
            companion_prior,
        )
    found = HyperparameterPosterior.from_log_odds(visited)
    mechanisms: list[Mechanism] = []
    for candidate in found.candidates:
        columns, gram, against = sufficient_statistics(candidate.waves[0])
        own_prior = candidate.prior_variances(p, num_waves)
        prior = np.concatenate([own_prior, companion_prior])
        used = prior > NEGLIGIBLE
        # Whitened as in `log_evidence`: S (X^T X) S + I with S the prior deviations.
        scale = np.sqrt(prior[used])
        precision = gram[np.ix_(used, used)] * scale[:, None] * scale
        root = np.linalg.cholesky(precision + np.eye(len(scale)))
        half = _solve_lower(root, against[used] * scale)
        weights = _solve_lower(root, half, transposed=True)
        unexplained = scaled - columns[:, used] @ (weights * scale)
        residuals = unexplained
        if extra:
            # What companions explain is noise for an experiment: it is added back.
            is_companion = np.flatnonzero(used) >= len(own_prior)
            shared = columns[:, -len(companion_prior) :]
            residuals = unexplained + shared @ (weights * scale)[is_companion]
        rest = max(square - float(half @ half), 1e-12 * max(power * n, 1))
        residual_std = 0.0
        if n:
            residuals = residuals - residuals.mean()
            residual_std = float(unexplained.std())
        mechanisms.append(
            Mechanism(
                parents=parents,
                weights=weights * scale,
                # Back to the precision of the weights themselves: S^-1 (...) S^-1.
                root=root / scale[:, None],
                used=used,
                noise_shape=NOISE_SHAPE + power * n / 2,
                # With two rows or fewer the fit is exact and says nothing of the noise:
                # the variable is then as uncertain as its scale.
                noise_scale=(NOISE_SCALE if n > 2 else 0.5) + rest / 2,
                residuals=residuals,
                residual_std=residual_std,
                offset=offset,
                spread=spread,
                frequencies=directions / _WAVE_LENGTHS[candidate.waves[0]],
            )
        )
    return found, tuple(mechanisms)


def _solve_lower(
    root: Float[np.ndarray, "k k"],
    right: Float[np.ndarray, " k"],
    *,
    transposed: bool = False,
) -> Float[np.ndarray, " k"]:
    # np.linalg.solve would factorise the triangle anew. Checkers infer a list from
    # SciPy's source, which has no annotations.
    solved: Any = scipy.linalg.solve_triangular(
        root, right, trans=int(transposed), lower=True, check_finite=False
    )
    return solved
