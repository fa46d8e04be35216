"""How one variable follows from its parents: a Bayesian regression that may bend.

Columns are a constant, a straight line and sines for each parent, and waves over all
parents together where they interact. How much each part may contribute and over which
length it changes is what explains the data best; the weights stay uncertain, so that a
sampled function shows what is not known, as outside of the data.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._basis import ROUNDING, Basis
from ._drawn import TABLE, Drawn
from ._evidence import NOISE_SCALE, NOISE_SHAPE, coarsened
from ._shape import BENDS, NOTHING, Shape, bends, columns_of, companions, prior_of
from ._shapes import Shapes, likely, search

_WAVES = 24
_WAVE_LENGTHS = (0.5, 1.2)


@dataclasses.dataclass(frozen=True, slots=True)
class Mechanism:
    """The posterior over one variable's function of its parents.

    Attributes:
        parents: their positions among the variables.
        shape: how much each part may contribute.
        weights: posterior mean of the weights, in units of `spread`.
        root: Cholesky root of the weights' precision, in units of the noise.
        used: which columns are used.
        noise_shape: of the noise's posterior.
        noise_scale: of the noise's posterior.
        residuals: what the parents leave unexplained on average, in units of `spread`.
        found: standard deviation of what companions leave unexplained too.
        offset: the variable's mean.
        spread: the variable's standard deviation.
        frequencies: of the waves; `[waves, parents]`.
    """

    parents: tuple[int, ...]
    shape: Shape
    weights: Float[np.ndarray, " k"]
    root: Float[np.ndarray, "k k"]
    used: np.ndarray
    noise_shape: float
    noise_scale: float
    residuals: Float[np.ndarray, " n"]
    found: float
    offset: float
    spread: float
    frequencies: Float[np.ndarray, "waves p"]

    def draw(self, rng: np.random.Generator) -> "Drawn":
        """One function that agrees with the data."""
        variance = self.noise_scale / max(rng.gamma(self.noise_shape), 1e-9)
        z = rng.standard_normal(len(self.weights))
        weights = np.zeros(len(self.used))
        weights[self.used] = self.weights + np.sqrt(variance) * np.linalg.solve(
            self.root.T, z
        )
        return self._with(weights, np.sqrt(variance))

    def mean(self) -> "Drawn":
        """The function expected from the data."""
        weights = np.zeros(len(self.used))
        weights[self.used] = self.weights
        return self._with(weights, float(np.sqrt(self.noise_scale / self.noise_shape)))

    def _with(self, weights: Float[np.ndarray, " k"], noise: float) -> "Drawn":
        p = len(self.parents)
        bent = weights[1 + p : 1 + p + p * BENDS].reshape(p, BENDS)
        tables = bent @ bends(TABLE).T
        # Companions' weights come last and are left out: what shares a hidden cause
        # has no effect, and for whoever sets it that cause is noise.
        waves = weights[1 + p + p * BENDS :][: 2 * len(self.frequencies)]
        return Drawn(
            parents=self.parents,
            constant=self.offset + self.spread * float(weights[0]),
            lines=self.spread * weights[1 : 1 + p],
            tables=self.spread * tables,
            waves=self.spread * waves,
            frequencies=self.frequencies,
            noise=self.spread * noise / self.found * self.residuals
            if self.found > 0
            else np.zeros(1),
        )


def fit_mechanism(
    y: Float[np.ndarray, " n"],
    x: Float[np.ndarray, "n p"],
    parents: tuple[int, ...],
    basis: Basis,
    *,
    known: Shapes | None = None,
    aside: Float[np.ndarray, "n c"] | None = None,
) -> tuple[Shapes, tuple[Mechanism, ...]]:
    """Fit a variable as a function of its parents.

    Args:
        y: the variable, where no intervention set it.
        x: its parents in the same rows.
        parents: their positions among the variables.
        basis: ranges of the variables.
        known: shapes found with earlier data; saves the search if they still hold.
        aside: values of companions in half-widths, NaN where they were set; None for
            no companions. What they explain is no effect of the parents.

    Returns:
        Shapes, and the mechanism for each.
    """
    n, p = x.shape
    offset, spread = (float(y.mean()), float(y.std())) if n else (0.0, 0.0)
    spread = spread if spread > ROUNDING * np.abs(y).max(initial=0.0) else 1.0
    scaled = (y - offset) / spread
    # The same waves for the same parents, whatever was drawn before.
    count = _WAVES if p > 1 else 0
    directions = np.random.default_rng([7, *parents]).standard_normal((count, p))
    u = np.empty((n, p))
    for i, v in enumerate(parents):
        u[:, i] = basis.scaled(x[:, i], v)
    power = coarsened(n)
    square = power * float(scaled @ scaled)
    more, rare = companions(aside)
    sums: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def sums_of(which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if which not in sums:
            columns = columns_of(u, directions / _WAVE_LENGTHS[which])
            columns = np.concatenate([columns, *more], axis=1)
            gram, against = columns.T @ columns, columns.T @ scaled
            sums[which] = columns, power * gram, power * against
        return sums[which]

    if known is None or not known.fits(u):
        visited: dict[Shape, float] = {}
        for which in range(len(_WAVE_LENGTHS) if count else 1):
            _, gram, against = sums_of(which)
            visited |= search(gram, against, square, power * n, p, count, which, rare)
        reach = tuple((float(x.min()), float(x.max())) for x in u.T if n)
        known = likely(visited, n, reach)
    mechanisms: list[Mechanism] = []
    for shape in known.each:
        columns, gram, against = sums_of(shape.waves[0])
        prior = np.concatenate([prior_of(shape, p, count), rare])
        used = prior > NOTHING
        scale = np.sqrt(prior[used])
        precision = gram[np.ix_(used, used)] * scale[:, None] * scale
        root = np.linalg.cholesky(precision + np.eye(len(scale)))
        half = np.linalg.solve(root, against[used] * scale)
        weights = np.linalg.solve(root.T, half)
        left = scaled - columns[:, used] @ (weights * scale)
        beside = np.flatnonzero(used) >= len(prior) - len(rare)
        own = columns[:, -len(rare) :] @ (weights * scale)[beside] if more else 0.0
        residuals = left + own
        rest = max(square - float(half @ half), 1e-12 * max(power * n, 1))
        mechanisms.append(
            Mechanism(
                parents=parents,
                shape=shape,
                weights=weights * scale,
                # Of the weights themselves: S^-1 (precision of w / S) S^-1.
                root=root / scale[:, None],
                used=used,
                noise_shape=NOISE_SHAPE + power * n / 2,
                # Before there are rows a variable is as uncertain as its scale.
                noise_scale=(NOISE_SCALE if n > 2 else 0.5) + rest / 2,
                residuals=residuals - residuals.mean() if n else residuals,
                found=float(left.std()) if n else 0.0,
                offset=offset,
                spread=spread,
                frequencies=directions / _WAVE_LENGTHS[shape.waves[0]],
            )
        )
    return known, tuple(mechanisms)
