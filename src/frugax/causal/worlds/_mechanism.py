"""How one variable follows from its parents: a Bayesian regression that may bend.

Columns are a constant, a straight line and sines for each parent, and waves over all
parents together where they interact. How much each part may contribute and over which
length it changes is what explains the data best; the weights stay uncertain, so that a
sampled function shows what is not known, as outside of the data.
"""

import dataclasses

import numpy as np
from jaxtyping import Float

from ._basis import ROUNDING, Basis, sines, spectrum
from ._evidence import NOISE_SCALE, NOISE_SHAPE, log_evidence

_SINES = 20  # resolve lengths down to an eighth of half the range
_LENGTHS = (0.13, 0.22, 0.4, 0.7, 1.3)
_GAINS = (0.3, 3.0, 30.0, 300.0)
_LINE_GAINS = (1.0, 10.0, 100.0, 1000.0)
_WAVES = 24
_WAVE_LENGTHS = (0.5, 1.2)
_NOTHING = 1e-10  # prior variance below which a column is left out
_KEPT = 6  # shapes that are kept: some bend where there is no data, some do not
_UNLIKELY = 4.0  # log odds against the best from which a shape is left out
_STALE = 0.8  # share of today's rows with which a shape was found that still holds
_NEAR = 0.1  # half-widths outside of those rows where it still holds
_ASIDE = (10.0, 0.4)  # gain and length of companions' columns
_TABLE = np.linspace(-1.15, 1.15, 116)


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What was found to explain a variable best; the slow part of a fit.

    Attributes:
        line: gain of the straight lines.
        bends: for each parent the length and gain of its sines; gain 0 for none.
        waves: which length of waves, and their gain; gain 0 for none.
    """

    line: float
    bends: tuple[tuple[float, float], ...]
    waves: tuple[int, float]


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
        bends = weights[1 + p : 1 + p + p * _SINES].reshape(p, _SINES)
        tables = bends @ sines(_TABLE, _SINES).T
        # Companions' weights come last and are left out: what shares a hidden cause
        # has no effect, and for whoever sets it that cause is noise.
        waves = weights[1 + p + p * _SINES :][: 2 * len(self.frequencies)]
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


@dataclasses.dataclass(frozen=True, slots=True)
class Drawn:
    """One function of a variable's parents, and its noise.

    Attributes:
        parents: their positions among the variables.
        constant: its constant part.
        lines: slope for each parent, per half-width.
        tables: bend of each parent, at `_TABLE`.
        waves: weights of sines, then of cosines over all parents.
        frequencies: of the waves.
        noise: values the noise takes, all equally likely.
    """

    parents: tuple[int, ...]
    constant: float
    lines: Float[np.ndarray, " p"]
    tables: Float[np.ndarray, "p points"]
    waves: Float[np.ndarray, " k"]
    frequencies: Float[np.ndarray, "waves p"]
    noise: Float[np.ndarray, " n"]

    def __call__(
        self, scaled: list[Float[np.ndarray, "_ _"]]
    ) -> Float[np.ndarray, "rows draws"]:
        """Its value without noise.

        Args:
            scaled: the parents' values, as `Basis.scaled` gives them; one row or draw
                counts for all.
        """
        value: np.ndarray = np.full((1, 1), self.constant)
        for u, slope, table in zip(scaled, self.lines, self.tables, strict=True):
            value = value + slope * u
            if table.any():
                value = value + np.interp(u, _TABLE, table)
        if self.waves.any():
            count = len(self.frequencies)
            sine, cosine = self.waves[:count], self.waves[count:]
            # One cosine for both, and in 32 bits: these are most of a campaign's time.
            size, phase = np.hypot(sine, cosine), np.arctan2(sine, cosine)
            clipped = [
                np.clip(u, _TABLE[0], _TABLE[-1]).astype(np.float32) for u in scaled
            ]
            for row, r, p in zip(
                self.frequencies.tolist(), size.tolist(), phase.tolist(), strict=True
            ):
                angle = sum(f * u for f, u in zip(row, clipped, strict=True))
                value = value + r * np.cos(angle - p)
        return value


@dataclasses.dataclass(frozen=True, slots=True)
class Shapes:
    """Shapes that explain a variable about as well as each other.

    Attributes:
        each: the shapes.
        odds: how likely each is; they sum to 1.
        rows: how many rows they were found with.
        reach: least and greatest value of each parent in these rows, in half-widths.
    """

    each: tuple[Shape, ...]
    odds: Float[np.ndarray, " shapes"]
    rows: int
    reach: tuple[tuple[float, float], ...]

    def fits(self, u: Float[np.ndarray, "n p"]) -> bool:
        """Whether they are still good enough for more rows, scaled."""
        if not len(u) or self.rows < _STALE * len(u):
            return False
        # One row far outside says more about a shape than all that came before.
        return all(
            x.min() > low - _NEAR and x.max() < high + _NEAR
            for x, (low, high) in zip(u.T, self.reach, strict=True)
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
    square = float(scaled @ scaled)
    more, rare = _beside(aside)
    sums: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def sums_of(which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if which not in sums:
            columns = _columns(u, directions / _WAVE_LENGTHS[which])
            columns = np.concatenate([columns, *more], axis=1)
            sums[which] = columns, columns.T @ columns, columns.T @ scaled
        return sums[which]

    if known is None or not known.fits(u):
        visited: dict[Shape, float] = {}
        for which in range(len(_WAVE_LENGTHS) if count else 1):
            _, gram, against = sums_of(which)
            visited |= _search(gram, against, square, n, p, count, which, rare)
        reach = tuple((float(x.min()), float(x.max())) for x in u.T if n)
        known = _likely(visited, n, reach)
    mechanisms: list[Mechanism] = []
    for shape in known.each:
        columns, gram, against = sums_of(shape.waves[0])
        prior = np.concatenate([_prior(shape, p, count), rare])
        used = prior > _NOTHING
        scale = np.sqrt(prior[used])
        precision = gram[np.ix_(used, used)] * scale[:, None] * scale
        root = np.linalg.cholesky(precision + np.eye(len(scale)))
        half = np.linalg.solve(root, against[used] * scale)
        weights = np.linalg.solve(root.T, half)
        left = scaled - columns[:, used] @ (weights * scale)
        beside = np.flatnonzero(used) >= len(prior) - len(rare)
        own = columns[:, -len(rare) :] @ (weights * scale)[beside] if more else 0.0
        residuals = left + own
        rest = max(square - float(half @ half), 1e-12 * max(n, 1))
        mechanisms.append(
            Mechanism(
                parents=parents,
                shape=shape,
                weights=weights * scale,
                # Of the weights themselves: S^-1 (precision of w / S) S^-1.
                root=root / scale[:, None],
                used=used,
                noise_shape=NOISE_SHAPE + n / 2,
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


def _beside(
    aside: Float[np.ndarray, "n c"] | None,
) -> tuple[list[np.ndarray], Float[np.ndarray, " k"]]:
    """Companions' columns, if there are any, and their prior variances."""
    if aside is None or not aside.shape[1]:
        return [], np.empty(0)
    gain, length = _ASIDE
    prior = gain * np.concatenate([np.ones(1), spectrum(_SINES, length)])
    kept = prior > _NOTHING
    found: list[np.ndarray] = []
    for u in aside.T:
        free = np.isfinite(u)
        u = np.nan_to_num(u)
        columns = np.concatenate([u[:, None], sines(u, _SINES)], axis=1)[:, kept]
        if free.any():
            columns = columns - columns[free].mean(0)
        found.append(np.where(free[:, None], columns, 0.0))
    return found, np.tile(prior[kept], len(found))


def _likely(
    visited: dict[Shape, float], rows: int, reach: tuple[tuple[float, float], ...]
) -> Shapes:
    """The most likely of the shapes that were tried."""
    best = sorted(visited, key=lambda shape: -visited[shape])[:_KEPT]
    best = [shape for shape in best if visited[shape] > visited[best[0]] - _UNLIKELY]
    odds = np.exp(np.array([visited[shape] - visited[best[0]] for shape in best]))
    return Shapes(tuple(best), odds / odds.sum(), rows, reach)


def _columns(
    u: Float[np.ndarray, "n p"], frequencies: Float[np.ndarray, "waves p"]
) -> Float[np.ndarray, "n k"]:
    n, p = u.shape
    bends = sines(u, _SINES).reshape(n, p * _SINES)
    angles = np.clip(u, _TABLE[0], _TABLE[-1]) @ frequencies.T
    return np.concatenate(
        [np.ones((n, 1)), u, bends, np.sin(angles), np.cos(angles)], axis=1
    )


def _prior(shape: Shape, p: int, count: int) -> Float[np.ndarray, " k"]:
    parts = [np.full(1, 100.0), np.full(p, shape.line)]
    parts += [gain * spectrum(_SINES, length) for length, gain in shape.bends]
    parts.append(np.full(2 * count, shape.waves[1] / max(count, 1)))
    return np.concatenate(parts)


def _search(
    gram: Float[np.ndarray, "k k"],
    against: Float[np.ndarray, " k"],
    square: float,
    rows: int,
    p: int,
    count: int,
    which: int,
    rare: Float[np.ndarray, " r"],
) -> dict[Shape, float]:
    """Log odds of shapes, from climbing one part after the other, twice."""
    visited: dict[Shape, float] = {}

    def climb(here: Shape, options: list[Shape]) -> Shape:
        for shape in [here, *options]:
            if shape not in visited:
                prior = np.concatenate([_prior(shape, p, count), rare])
                used = prior > _NOTHING
                visited[shape] = float(
                    log_evidence(
                        gram[np.ix_(used, used)],
                        against[used],
                        square,
                        rows,
                        prior[used],
                    )
                )
        return max([here, *options], key=lambda shape: visited[shape])

    here = Shape(10.0, ((_LENGTHS[-1], 0.0),) * p, (which, 0.0))
    bends = [(_LENGTHS[-1], 0.0), *((a, g) for a in _LENGTHS for g in _GAINS)]
    for _ in range(2):
        before = here
        for i in range(p):
            here = climb(
                here,
                [
                    dataclasses.replace(
                        here, bends=(*here.bends[:i], bend, *here.bends[i + 1 :])
                    )
                    for bend in bends
                ],
            )
        waves = [(which, gain) for gain in (0.0, *_GAINS)] if count else []
        here = climb(here, [dataclasses.replace(here, waves=w) for w in waves])
        lines = _LINE_GAINS if p else ()
        here = climb(here, [dataclasses.replace(here, line=gain) for gain in lines])
        if here == before:
            break
    return visited
