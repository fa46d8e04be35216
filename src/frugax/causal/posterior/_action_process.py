"""Gaussian process of experiments' outcomes; causal models may serve as its prior.

The process knows no graph. The effect of an experiment is that of each variable alone
plus that of each pair, and of each three where so many are set at once. It is 0 where
nothing is set, so it is learned from few outcomes and stays uncertain where no
experiment was done. Causal models may give its prior mean and its prior covariance. How
far, is one more hyperparameter: outcomes decide whether they are trusted at all.

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
import itertools
import math
from collections.abc import Mapping
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
_MAX_JOINT = 3  # variables of one joint effect
_MAX_LEVELS = 64  # of a category; further ones share a level's effect
_MAX_FITTED = 80  # outcomes by which hyperparameters are found
# Medians and standard deviations of logarithms. Sizes are in standard deviations of the
# target: some levers do nothing, and one far outside of the data may do much more than
# was ever seen. Lengths are in half-widths of a range: from a threshold to a line.
_MAIN, _JOINT = (-0.35, 0.8), (-0.7, 0.8)  # of effects alone, and together
_MAIN_WEIGHT, _JOINT_WEIGHT = (-0.3, 1.0), (-0.6, 1.1)  # of each variable or group
_LINE, _LENGTH = (-0.5, 0.8), (-0.2, 0.7)
_FLAG = (-1.2, 0.7)  # of setting a variable to where it usually is
# The models have seen the same outcomes and agree with each other too soon: with a
# median of exp(-0.3) and half of this width intervals held in 67 % instead of 88 % on
# `plateau 1`, `threshold 1` and `hidden cause 1`, and mean regret was 0.57, not 0.36.
_CAUSAL_SPREAD = (0.0, 0.8)
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
        levels: the only values of some variables. They count by their rank: whoever
            lists 0.1, 1 and 10 expects as much of either step.
        largest: most variables of one experiment.
    """

    variables: tuple[int, ...]
    low: Float[np.ndarray, " k"]
    high: Float[np.ndarray, " k"]
    natural: Float[np.ndarray, " k"]
    categories: frozenset[int] = frozenset()
    levels: Mapping[int, Float[np.ndarray, " levels"]] = dataclasses.field(
        default_factory=dict
    )
    largest: int = 2

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
        found = np.clip((values - (self.low + half)) / half, -2.0, 2.0)
        for v, levels in self.levels.items():
            j = self.variables.index(v)
            ranks = np.linspace(-1.0, 1.0, len(levels))
            found[..., j] = np.interp(values[..., j], levels, ranks)
        return found

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
        effects: Float[np.ndarray, "models outcomes"],
    ) -> None:
        """Find the hyperparameters.

        Args:
            outcomes: the experiments that were done.
            space: the variables that experiments set.
            mean: of the variable where nothing is set.
            mean_error: its standard error.
            scale: standard deviation of the variable.
            rng: source of all draws.
            effects: of the same experiments in causal models.
        """
        self._space, self._mean, self._scale = space, mean, scale
        self._done = space.embed(outcomes.points)
        self._y = (outcomes.mean - mean) / scale
        self._variance = (outcomes.error / scale) ** 2 + 1e-6
        self._prior = _Prior(space, mean_error / scale)
        self._causal = _CausalPrior.from_effects(effects / scale)
        fitted = np.arange(len(self._y))
        if len(fitted) > _MAX_FITTED:
            fitted = np.sort(rng.permutation(fitted)[:_MAX_FITTED])
        facts = _Facts(
            (self._done[0][fitted], self._done[1][fitted]),
            self._y[fitted],
            self._variance[fitted],
            self._causal.select(fitted),
        )
        theta = self._prior.sample_posterior(facts, rng)
        self.noise = self._prior.choose_noise(theta, facts)
        if self.noise > 1:
            # Hyperparameters that made the outcomes likely without it are not likely
            # with it, and then less noise or more may be.
            self._variance = self.noise**2 * self._variance
            more = self.noise**2 * facts.variance
            facts = dataclasses.replace(facts, variance=more)
            theta = self._prior.sample_posterior(facts, rng)
        self._theta = theta[rng.permutation(len(theta))[:_NUM_KEPT]]
        self._seed = int(rng.integers(1 << 30))

    def draw(
        self,
        points: Points,
        count: int,
        effects: Float[np.ndarray, "models points"],
    ) -> Float[np.ndarray, "{count} points"]:
        """Draw the mean in some experiments: the same functions in each call."""
        at, n = self._space.embed(points), len(self._y)
        both = (
            np.concatenate([self._done[0], at[0]]),
            np.concatenate([self._done[1], at[1]]),
        )
        here = _CausalPrior.from_effects(effects / self._scale)
        there = self._causal
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Facts:
    """Outcomes, in standard deviations of the target."""

    done: _Coordinates
    y: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]
    causal: _CausalPrior


class _Prior:
    """The prior of the process, given its hyperparameters: rows of logarithms."""

    def __init__(self, space: ActionSpace, mean_error: float) -> None:
        self._is_category = space.is_category
        self._natural = space.normalize(space.natural)
        self._mean_error = mean_error
        k = len(space.variables)
        sizes = range(2, min(space.largest, _MAX_JOINT) + 1)
        each = (group for n in sizes for group in itertools.combinations(range(k), n))
        self._groups = {group: g for g, group in enumerate(each)}
        parts = (
            *((_TRUST, 1), (_CAUSAL_SPREAD, 1), (_MAIN, 1), (_JOINT, 1)),
            *((each, k) for each in (_MAIN_WEIGHT, _LINE, _LENGTH, _FLAG)),
            (_JOINT_WEIGHT, len(self._groups)),
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
        _, _, main, joint, main_weight, line, length, flag, weight = np.split(
            np.exp(theta), self._cuts, axis=1
        )
        return main * main_weight, joint * weight, line, length, flag

    def kernel(
        self, theta: Float[np.ndarray, "h _"], one: _Coordinates, other: _Coordinates
    ) -> Float[np.ndarray, "h one other"]:
        """Compute the covariance of two lists of experiments, without causal models."""
        main, joint, line, length, flag = (
            each[:, :, None, None] for each in self._read(theta)
        )
        shape = len(theta), len(one[0]), len(other[0])
        total = np.full(shape, self._mean_error**2)
        parts: list[np.ndarray] = []
        for j, is_category in enumerate(self._is_category):
            parts.append(np.zeros(shape))
            rows, columns = (np.flatnonzero(each[1][:, j]) for each in (one, other))
            if not len(rows) or not len(columns):
                continue
            # Most experiments set one or two of the variables.
            where = np.ix_(np.arange(len(theta)), rows, columns)
            a, b = one[0][rows, j, None], other[0][columns, j]
            each = flag[:, j] ** 2
            if is_category:
                each = each + (a == b)
            else:
                # Anchored: continuous with leaving the variable where it usually is.
                usual = self._natural[j]
                each = each + line[:, j] ** 2 * ((a - usual) * (b - usual))
                each = each + 0.5 * (
                    _matern(np.abs(a - b) / length[:, j])
                    - _matern(np.abs(a - usual) / length[:, j])
                    - _matern(np.abs(b - usual) / length[:, j])
                    + 1
                )
            total[where] += main[:, j] ** 2 * each
            parts[j][where] = each
        for group in self._find_groups(other[1]):
            rows, columns = (
                np.flatnonzero(each[1][:, group].all(1)) for each in (one, other)
            )
            if len(rows):
                where = np.ix_(np.arange(len(theta)), rows, columns)
                both = math.prod(parts[j][where] for j in group)
                total[where] += joint[:, self._groups[group]] ** 2 * both
        return total

    def _find_groups(self, is_set: Bool[np.ndarray, "n k"]) -> list[tuple[int, ...]]:
        """List the groups that some experiment sets."""
        if not self._groups:
            return []
        rows = {row.tobytes() for row in is_set}
        sets = [np.flatnonzero(np.frombuffer(row, bool)).tolist() for row in rows]
        sizes = range(2, _MAX_JOINT + 1)
        found = {g for s in sets for n in sizes for g in itertools.combinations(s, n)}
        return sorted(found & self._groups.keys())

    def draw(
        self,
        theta: Float[np.ndarray, "1 _"],
        at: _Coordinates,
        count: int,
        rng: np.random.Generator,
    ) -> Float[np.ndarray, "{count} points"]:
        """Draw from the prior without causal models, by random features."""
        main, joint, line, length, flag = (each[0] for each in self._read(theta))
        found = self._mean_error * np.tile(
            rng.standard_normal((count, 1)), (1, len(at[0]))
        )
        features: list[np.ndarray] = []
        places: list[np.ndarray] = []
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
                sign = rng.choice([-1.0, 1.0], _NUM_FEATURES)
                each += line[j] * (values - self._natural[j])[:, None] * sign
            each += flag[j] * rng.choice([-1.0, 1.0], _NUM_FEATURES)
            weights = rng.standard_normal((_NUM_FEATURES, count)) / _NUM_FEATURES**0.5
            found[:, rows] += main[j] * (each @ weights).T[:, which]
            features.append(each)
            places.append(np.full(len(at[0]), -1))
            places[j][rows] = which
        seed = int(rng.integers(1 << 30))
        for group in self._find_groups(at[1]):
            rows = np.flatnonzero(at[1][:, group].all(1))
            each = math.prod(features[j][places[j][rows]] for j in group)
            # A function must not depend on the groups at which it is drawn.
            again = np.random.default_rng([seed, self._groups[group]])
            weights = again.standard_normal((_NUM_FEATURES, count))
            weights *= joint[self._groups[group]] / _NUM_FEATURES**0.5
            found[:, rows] += (each @ weights).T
        return found

    def choose_noise(self, theta: Float[np.ndarray, "h _"], facts: _Facts) -> float:
        """Return the likeliest factor of the outcomes' errors: a step of EM."""
        each = self._log_likelihoods(theta, facts, _NOISES).mean(1)
        gained = each.max() - each[0] > _LEAST_GAIN
        return _NOISES[int(np.argmax(each))] if gained else 1.0

    def _log_likelihoods(
        self,
        theta: Float[np.ndarray, "h _"],
        facts: _Facts,
        noises: tuple[float, ...] = (1.0,),
    ) -> Float[np.ndarray, "{len(noises)} h"]:
        missed = np.tile(facts.y, (len(theta), 1))
        covariance = self.kernel(theta, facts.done, facts.done)
        trust, spread = self.read_trust(theta)
        missed = missed - trust[:, None] * facts.causal.mean
        each = facts.causal.spread.T @ facts.causal.spread
        covariance = covariance + spread[:, None, None] ** 2 * each
        found = np.empty((len(noises), len(theta)))
        for i, noise in enumerate(noises):
            noisy = _add_noise(covariance, noise**2 * facts.variance)
            root = np.linalg.cholesky(noisy)
            half = np.linalg.solve(root, missed[:, :, None])[:, :, 0]
            size = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1)
            found[i] = -0.5 * (half**2).sum(1) - size
        return found

    def sample_posterior(
        self, facts: _Facts, rng: np.random.Generator
    ) -> Float[np.ndarray, "h _"]:
        """Draw hyperparameters, all equally likely, given the outcomes."""
        shape = _NUM_PARTICLES, len(self._centre)
        theta = self._centre + self._std * rng.standard_normal(shape)
        if not len(facts.y):
            return theta
        fit, last = self._log_likelihoods(theta, facts)[0], 0.0
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
                fits = self._log_likelihoods(moved, facts)[0]
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
