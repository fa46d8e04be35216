"""Gaussian process of experiments' outcomes; causal models may serve as its prior.

The process knows no graph. The effect of an experiment is that of each variable alone
plus that of each pair, 0 where nothing is set, so it is learned from few outcomes and
stays uncertain where no experiment was done. Causal models that were fitted to passive
data may give its prior mean and its prior covariance. How far, is one more
hyperparameter: outcomes decide whether passive data are trusted at all.

References:
    Duvenaud, Nickisch & Rasmussen 2011, NeurIPS, 'Additive Gaussian processes';
    Aglietti et al. 2020, AISTATS, 'Causal Bayesian optimization' (a causal prior);
    Snoek, Larochelle & Adams 2012, NeurIPS (hyperparameters are integrated out);
    Chopin 2002, Biometrika 89:539-552, and Cotter et al. 2013, Statistical Science
    28:424-446 (how: tempered resampling, and moves that keep the prior);
    Rahimi & Recht 2007, NeurIPS (random features); Wilson et al. 2020, ICML (Matheron's
    rule).
"""

import dataclasses
from typing import TypeAlias

import numpy as np
from jaxtyping import Bool, Float

from ._points import Outcomes, Points

_NUM_PARTICLES = 64
_NUM_KEPT = 24  # of them, with which outcomes are drawn
_NUM_FEATURES = 128
_POWERS = (0.06, 0.25, 0.56, 1.0)  # of the likelihood, one after another
# Moves between two of them: length of the step, and share of the numbers that change.
_MOVES = ((0.6, 0.5), (0.3, 1.0), (0.8, 0.25))
_MAX_LEVELS = 64  # of a category; further ones share a level's effect
_MAX_FITTED = 80  # outcomes by which hyperparameters are found
# Medians and standard deviations of logarithms. Sizes are in standard deviations of the
# target: some levers do nothing, and one far outside of the data may do much more than
# was ever seen. Lengths are in half-widths of a range: from a threshold to a line.
_MAIN, _PAIRS = (-0.35, 0.8), (-0.7, 0.8)  # of effects alone, and together
_MAIN_WEIGHT, _PAIR_WEIGHT = (-0.3, 1.0), (-0.3, 0.8)  # of each variable
_LENGTH = (-0.2, 0.7)
_FLAG = (-1.2, 0.7)  # of setting a variable to where it usually is
_CAUSAL_SPREAD = (-0.3, 0.5)
# The share of the causal models' effects that is expected: 0.5 +- 0.7, cut at 0 and 1,
# so that either end has a quarter of the prior.
_TRUST = (0.5, 0.7)
# Rows of an experiment may vary more than rows in which nothing was set: the noise of
# outcomes is multiplied by the likeliest of these factors, if that is likelier by the
# least gain in logarithms. Wild wiggles would explain such outcomes otherwise.
_NOISES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_LEAST_GAIN = 3.0
_FREEDOM = 5.0  # of the Matérn kernel's spectrum: Matérn 5/2

_Coordinates: TypeAlias = tuple[Float[np.ndarray, "_ k"], Bool[np.ndarray, "_ k"]]


@dataclasses.dataclass(frozen=True, slots=True)
class ActionSpace:
    """The variables that experiments set, as coordinates.

    Attributes:
        variables: their positions among all variables.
        low: least values.
        high: greatest values.
        natural: where they are if they are not set.
        categories: positions of those whose values have no order.
    """

    variables: tuple[int, ...]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]
    natural: Float[np.ndarray, " k"]
    categories: frozenset[int] = frozenset()

    def embed(self, points: Points) -> _Coordinates:
        """Return the value of each variable in half-widths, and whether it is set.

        Categories keep their codes.
        """
        n, k = len(points), len(self.variables)
        values, is_set = np.tile(self.natural, (n, 1)), np.zeros((n, k), bool)
        start = 0
        for targets, set_values in zip(points.targets, points.values, strict=True):
            rows = slice(start, start + len(set_values))
            for i, v in enumerate(targets):
                j = self.variables.index(v)
                values[rows, j], is_set[rows, j] = set_values[:, i], True
            start += len(set_values)
        return np.where(self.is_category, values, self.normalize(values)), is_set

    def normalize(self, values: Float[np.ndarray, "*n k"]) -> Float[np.ndarray, "*n k"]:
        """Convert values to half-widths from the centres of the ranges."""
        half = (self.high - self.low) / 2
        return np.clip((values - (self.low + half)) / half, -2.0, 2.0)

    @property
    def is_category(self) -> Bool[np.ndarray, " k"]:
        """Whether the values of each variable have no order."""
        return np.array([v in self.categories for v in self.variables], bool)


class ActionProcess:
    """The posterior of the process, given the outcomes of experiments.

    Attributes:
        noise: the factor of the outcomes' errors that they call for.
    """

    def __init__(
        self,
        outcomes: Outcomes,
        space: ActionSpace,
        *,
        mean: float,
        mean_error: float,
        scale: float,
        rng: np.random.Generator,
        effects: Float[np.ndarray, "models outcomes"] | None = None,
    ) -> None:
        """Find the hyperparameters.

        Args:
            outcomes: the experiments that were done.
            space: the variables that experiments set.
            mean: of the variable where nothing is set.
            mean_error: its standard error.
            scale: standard deviation of the variable.
            rng: source of all draws.
            effects: of the same experiments in causal models that know passive data
                only; None for no such models.
        """
        self._space, self._mean, self._scale = space, mean, scale
        self._done = space.embed(outcomes.points)
        self._y = (outcomes.mean - mean) / scale
        self._variance = (outcomes.error / scale) ** 2 + 1e-6
        self._prior = _Prior(space, mean_error / scale)
        self._causal = None
        if effects is not None:
            self._causal = _CausalPrior.from_effects(effects / scale)
        fitted = np.arange(len(self._y))
        if len(fitted) > _MAX_FITTED:
            fitted = np.sort(rng.permutation(fitted)[:_MAX_FITTED])
        facts = (
            (self._done[0][fitted], self._done[1][fitted]),
            self._y[fitted],
            self._variance[fitted],
            self._causal.select(fitted) if self._causal else None,
        )
        self.noise = 1.0
        theta = self._prior.sample_posterior(*facts, rng)
        found = self._prior.choose_noise(theta, *facts)
        if found > 1:
            # Hyperparameters that made the outcomes likely without it are not likely
            # with it, and then less noise or more may be.
            more = (*facts[:2], found**2 * facts[2], facts[3])
            theta = self._prior.sample_posterior(*more, rng)
            self.noise = found
            self._variance = found**2 * self._variance
        self._theta = theta[rng.permutation(len(theta))[:_NUM_KEPT]]
        self._seed = int(rng.integers(1 << 30))

    def draw(
        self,
        points: Points,
        count: int,
        effects: Float[np.ndarray, "models points"] | None = None,
    ) -> Float[np.ndarray, "{count} points"]:
        """Draw the mean in some experiments: the same functions in each call.

        Args:
            points: the experiments to predict.
            count: number of functions.
            effects: of these experiments in the causal models.
        """
        at, n = self._space.embed(points), len(self._y)
        both = (
            np.concatenate([self._done[0], at[0]]),
            np.concatenate([self._done[1], at[1]]),
        )
        here = None
        if effects is not None:
            here = _CausalPrior.from_effects(effects / self._scale)
        found = np.empty((count, len(at[0])))
        for h, rows in enumerate(np.array_split(np.arange(count), _NUM_KEPT)):
            if not len(rows):
                continue
            rng = np.random.default_rng([self._seed, h])
            one = self._theta[h : h + 1]
            noise = rng.standard_normal((len(rows), n)) * np.sqrt(self._variance)
            drawn = self._prior.draw(one, both, len(rows), rng)
            cross = self._prior.kernel(one, at, self._done)[0]
            among = self._prior.kernel(one, self._done, self._done)[0]
            if here is not None and self._causal is not None:
                there = self._causal
                trust, spread = (float(x[0]) for x in self._prior.read_trust(one))
                models = spread * rng.standard_normal((len(rows), len(here.spread)))
                drawn[:, :n] += trust * there.mean + models @ there.spread
                drawn[:, n:] += trust * here.mean + models @ here.spread
                cross = cross + spread**2 * here.spread.T @ there.spread
                among = among + spread**2 * there.spread.T @ there.spread
            # Matheron's rule: a draw from the prior at points and outcomes together,
            # plus the posterior mean of what it misses.
            missed = self._y + noise - drawn[:, :n]
            gain = np.linalg.solve(_add_noise(among, self._variance), cross.T)
            found[rows] = drawn[:, n:] + missed @ gain
        return self._mean + self._scale * found


@dataclasses.dataclass(frozen=True, slots=True)
class _CausalPrior:
    """Mean of the causal models' effects, and what each of them adds to it."""

    mean: Float[np.ndarray, " points"]
    spread: Float[np.ndarray, "models points"]

    @classmethod
    def from_effects(
        cls, effects: Float[np.ndarray, "models points"]
    ) -> "_CausalPrior":
        mean = effects.mean(0)
        return cls(mean, (effects - mean) / np.sqrt(len(effects)))

    def select(self, points: np.ndarray) -> "_CausalPrior":
        return _CausalPrior(self.mean[points], self.spread[:, points])


class _Prior:
    """The prior of the process, given its hyperparameters: rows of logarithms."""

    def __init__(self, space: ActionSpace, mean_error: float) -> None:
        self._is_category = space.is_category
        self._natural = space.normalize(space.natural)
        self._mean_error = mean_error
        k = len(space.variables)
        parts = (
            *((_TRUST, 1), (_CAUSAL_SPREAD, 1), (_MAIN, 1), (_PAIRS, 1)),
            *((each, k) for each in (_MAIN_WEIGHT, _PAIR_WEIGHT, _LENGTH, _FLAG)),
        )
        self._centre, self._std = np.concatenate(
            [np.tile(each, (size, 1)) for each, size in parts]
        ).T
        self._cuts = np.cumsum([size for _, size in parts])[:-1]

    def read_trust(
        self, theta: Float[np.ndarray, "h _"]
    ) -> tuple[Float[np.ndarray, " h"], Float[np.ndarray, " h"]]:
        """Return the share of causal effects expected, and that of their spread."""
        trust = np.clip(theta[:, 0], 0.0, 1.0)
        return trust, trust * np.exp(theta[:, 1])

    def _read(self, theta: Float[np.ndarray, "h _"]) -> tuple[np.ndarray, ...]:
        _, _, main, pairs, main_weight, pair_weight, length, flag = np.split(
            np.exp(theta), self._cuts, axis=1
        )
        return main * main_weight, np.sqrt(pairs) * pair_weight, length, flag

    def kernel(
        self, theta: Float[np.ndarray, "h _"], one: _Coordinates, other: _Coordinates
    ) -> Float[np.ndarray, "h one other"]:
        """Compute the covariance of two lists of experiments, without causal models."""
        main, pair, length, flag = (
            each[:, :, None, None] for each in self._read(theta)
        )
        shape = len(theta), len(one[0]), len(other[0])
        total = np.full(shape, self._mean_error**2)
        sums, squares = np.zeros(shape), np.zeros(shape)
        for j, is_category in enumerate(self._is_category):
            rows, columns = (np.flatnonzero(each[1][:, j]) for each in (one, other))
            if not len(rows) or not len(columns):
                continue
            # Most experiments set one or two of the variables.
            where = np.ix_(np.arange(len(theta)), rows, columns)
            a, b = one[0][rows, j, None], other[0][columns, j]
            if is_category:
                each = flag[:, j] ** 2 + (a == b)
            else:
                # Anchored: continuous with leaving the variable where it usually is.
                usual = self._natural[j]
                each = flag[:, j] ** 2 + 0.5 * (
                    _matern(np.abs(a - b) / length[:, j])
                    - _matern(np.abs(a - usual) / length[:, j])
                    - _matern(np.abs(b - usual) / length[:, j])
                    + 1
                )
            total[where] += main[:, j] ** 2 * each
            each = pair[:, j] ** 2 * each
            sums[where] += each
            squares[where] += each**2
        # The sum over all pairs of variables.
        return total + 0.5 * (sums**2 - squares)

    def draw(
        self,
        theta: Float[np.ndarray, "1 _"],
        at: _Coordinates,
        count: int,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, "{count} points"]:
        """Draw from the prior without causal models, by random features."""
        main, pair, length, flag = (each[0] for each in self._read(theta))
        found = self._mean_error * np.tile(
            rng.standard_normal((count, 1)), (1, len(at[0]))
        )
        features: list[tuple[np.ndarray, np.ndarray]] = []
        for j, is_category in enumerate(self._is_category):
            rows = np.flatnonzero(at[1][:, j])
            # Points lie on grids, and cosines take most of the time.
            values, which = np.unique(at[0][rows, j], return_inverse=True)
            if is_category:
                each = rng.choice([-1.0, 1.0], (_MAX_LEVELS, _NUM_FEATURES))
                each = each[values.astype(int) % _MAX_LEVELS]
            else:
                # Student's t is the spectrum of a Matérn kernel.
                omega = rng.standard_normal(_NUM_FEATURES) / length[j]
                omega /= np.sqrt(rng.chisquare(_FREEDOM, _NUM_FEATURES) / _FREEDOM)
                phase = rng.uniform(0, 2 * np.pi, _NUM_FEATURES)
                usual = np.cos(self._natural[j] * omega + phase)
                each = np.cos(values[:, None] * omega + phase) - usual
            each += flag[j] * rng.choice([-1.0, 1.0], _NUM_FEATURES)
            weights = rng.standard_normal((_NUM_FEATURES, count)) / _NUM_FEATURES**0.5
            found[:, rows] += main[j] * (each @ weights).T[:, which]
            each = each[which]
            for i, (others, more) in enumerate(features):
                # Drawn for all pairs, as a function must not depend on the points.
                weights = rng.standard_normal((_NUM_FEATURES, count))
                _, a, b = np.intersect1d(rows, others, True, return_indices=True)
                if len(a):
                    weights *= pair[i] * pair[j] / _NUM_FEATURES**0.5
                    found[:, rows[a]] += ((each[a] * more[b]) @ weights).T
            features.append((rows, each))
        return found

    def choose_noise(
        self,
        theta: Float[np.ndarray, "h _"],
        done: _Coordinates,
        y: Float[np.ndarray, " n"],
        variance: Float[np.ndarray, " n"],
        causal: _CausalPrior | None,
    ) -> float:
        """Return the likeliest factor of the outcomes' errors: a step of EM."""
        each = [
            self._log_likelihood(theta, done, y, x**2 * variance, causal).mean()
            for x in _NOISES
        ]
        gained = max(each) - each[0] > _LEAST_GAIN
        return _NOISES[int(np.argmax(each))] if gained else 1.0

    def _log_likelihood(
        self,
        theta: Float[np.ndarray, "h _"],
        done: _Coordinates,
        y: Float[np.ndarray, " n"],
        variance: Float[np.ndarray, " n"],
        causal: _CausalPrior | None,
    ) -> Float[np.ndarray, " h"]:
        missed = np.tile(y, (len(theta), 1))
        covariance = self.kernel(theta, done, done)
        if causal is not None:
            trust, spread = self.read_trust(theta)
            missed = missed - trust[:, None] * causal.mean
            each = causal.spread.T @ causal.spread
            covariance = covariance + spread[:, None, None] ** 2 * each
        root = np.linalg.cholesky(_add_noise(covariance, variance))
        half = np.linalg.solve(root, missed[:, :, None])[:, :, 0]
        return -0.5 * (half**2).sum(1) - np.log(
            np.diagonal(root, axis1=1, axis2=2)
        ).sum(1)

    def sample_posterior(
        self,
        done: _Coordinates,
        y: Float[np.ndarray, " n"],
        variance: Float[np.ndarray, " n"],
        causal: _CausalPrior | None,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, "h _"]:
        """Draw hyperparameters, all equally likely, given the outcomes."""
        shape = _NUM_PARTICLES, len(self._centre)
        theta = self._centre + self._std * rng.standard_normal(shape)
        if not len(y):
            return theta

        def log_likelihood(theta: np.ndarray) -> np.ndarray:
            return self._log_likelihood(theta, done, y, variance, causal)

        fit, last = log_likelihood(theta), 0.0
        for power in _POWERS:
            weights = np.exp((power - last) * (fit - fit.max()))
            positions = (np.arange(len(theta)) + rng.random()) / len(theta)
            cumulative = np.cumsum(weights / weights.sum())
            chosen = np.searchsorted(cumulative, positions).clip(max=len(theta) - 1)
            theta, fit, last = theta[chosen], fit[chosen], power
            for step, share in _MOVES:
                noise = self._centre + self._std * rng.standard_normal(shape) * step
                moved = noise + np.sqrt(1 - step**2) * (theta - self._centre)
                moved = np.where(rng.random(shape) < share, moved, theta)
                fits = log_likelihood(moved)
                taken = np.log(rng.random(len(theta))) < power * (fits - fit)
                theta = np.where(taken[:, None], moved, theta)
                fit = np.where(taken, fits, fit)
        return theta


def _add_noise(
    covariance: Float[np.ndarray, "*h n n"], variance: Float[np.ndarray, " n"]
) -> Float[np.ndarray, "*h n n"]:
    # Rounding of the largest entries must not exceed the rest of the diagonal.
    rounding = 1e-11 * np.max(covariance, axis=(-2, -1), initial=0.0)
    diagonal = variance + rounding[..., None]
    return covariance + diagonal[..., None] * np.eye(len(variance))


def _matern(r: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Compute the Matérn 5/2 kernel of variance 1."""
    r = np.sqrt(5.0) * r
    return (1 + r + r**2 / 3) * np.exp(-r)
