"""Draw outcomes of interventions from a Gaussian process that knows no causal model.

Every causal model may be wrong in the same way: about a function outside of the data,
an interaction, or a cause that nobody measured. This process learns from the outcomes
of experiments alone, so passive data cannot mislead it, and it stays uncertain wherever
no experiment was done. Its hyperparameters are drawn from a wide prior and weighted by
their evidence, so its predictions have heavy tails.

References:
    Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", chapter 5;
    Rahimi & Recht 2007, NeurIPS (random features); Wilson et al. 2020, ICML (Matheron's
    rule).
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from ._points import Outcomes, Points

_NUM_HYPERPARAMETERS = 96
_NUM_FEATURES = 128
# Effects of experiments in standard deviations of the target: some do nothing, and one
# far outside of the data may do much more than was ever seen.
_SIZE_MEDIAN, _SIZE_LOG_STD = 1.0, 0.8
# Length scales in half-widths of a range: from a threshold to a straight line.
_LENGTH_MEDIAN, _LENGTH_LOG_STD = 0.8, 0.8
# Distance between setting a variable and leaving it alone at the same value.
_FLAG_MEDIAN, _FLAG_LOG_STD = 0.5, 0.7
_CATEGORY_DISTANCE = 1.0  # between any two levels of a category, in half-widths
_FREEDOM = 5.0  # of the Matérn kernel's spectrum: Matérn 5/2


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

    def embed(self, points: Points) -> Float[np.ndarray, "points coordinates"]:
        """Convert experiments to coordinates: values, then flags of set variables."""
        n, k = len(points), len(self.variables)
        values, flags = np.tile(self.natural, (n, 1)), np.zeros((n, k))
        start = 0
        for targets, set_values in zip(points.targets, points.values, strict=True):
            rows = slice(start, start + len(set_values))
            for i, v in enumerate(targets):
                j = self.variables.index(v)
                values[rows, j], flags[rows, j] = set_values[:, i], 1.0
            start += len(set_values)
        half = (self.high - self.low) / 2
        u = np.clip((values - (self.low + half)) / half, -2.0, 2.0)
        parts = [flags]
        for j, v in enumerate(self.variables):
            if v not in self.categories:
                parts.append(u[:, j : j + 1])
                continue
            levels = np.arange(self.low[j], self.high[j] + 1)
            one_hot = (values[:, j, None] == levels) * flags[:, j, None]
            parts.append(one_hot * _CATEGORY_DISTANCE / np.sqrt(2))
        return np.concatenate(parts, axis=1)

    @property
    def owners(self) -> Int[np.ndarray, " coordinates"]:
        """The variable of each coordinate, after the flags."""
        widths = [
            int(self.high[j] - self.low[j]) + 1 if v in self.categories else 1
            for j, v in enumerate(self.variables)
        ]
        return np.repeat(np.arange(len(widths)), widths)


def draw_action_process(
    points: Points,
    outcomes: Outcomes,
    space: ActionSpace,
    *,
    mean: float,
    mean_error: float,
    scale: float,
    pending: Points,
    count: int,
    rng: np.random.Generator,
) -> tuple[Float[np.ndarray, "{count} points"], Float[np.ndarray, " points"]]:
    """Draw the mean of a variable in every experiment, given all outcomes.

    Args:
        points: the experiments to predict.
        outcomes: those that were done.
        space: the variables that experiments set.
        mean: of the variable where nothing is set.
        mean_error: its standard error.
        scale: standard deviation of the variable.
        pending: experiments without an outcome; they count as explored.
        count: number of draws.
        rng: source of the draws.

    Returns:
        The draws, and the standard deviation that is left at each point as a share of
        the one before the first experiment.
    """
    k = len(space.variables)
    at = space.embed(points)
    # Doing nothing is an experiment that was done often.
    done = np.concatenate([np.zeros((1, at.shape[1])), space.embed(outcomes.points)])
    nothing = Points(((),), (np.empty((1, 0)),))
    done[:1] = space.embed(nothing)
    y = np.append(0.0, outcomes.mean - mean)
    error = np.append(mean_error, outcomes.error) + 1e-3 * scale
    draws = np.exp(rng.standard_normal((_NUM_HYPERPARAMETERS, 2 * k + 1)))
    size = scale * _SIZE_MEDIAN * draws[:, 0] ** _SIZE_LOG_STD
    flag = _FLAG_MEDIAN * draws[:, 1 : k + 1] ** _FLAG_LOG_STD
    length = _LENGTH_MEDIAN * draws[:, k + 1 :] ** _LENGTH_LOG_STD
    stretch = np.concatenate([flag, 1 / length[:, space.owners]], axis=1)
    prior = _matern(done, done, stretch) * (size**2)[:, None, None]
    roots = np.linalg.cholesky(prior + np.diag(error**2))
    half = np.linalg.solve(roots, np.broadcast_to(y[:, None], (len(size), len(y), 1)))
    logs = -0.5 * (half[..., 0] ** 2).sum(1)
    logs -= np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(1)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    # Systematic resampling, as for the causal models.
    positions = (np.arange(count) + rng.random()) / count
    chosen = np.searchsorted(np.cumsum(weights), positions).clip(max=len(size) - 1)
    everywhere = np.concatenate([done, at])
    found = np.empty((count, len(at)))
    left = np.zeros(len(at))
    explored = np.concatenate([done, space.embed(pending)])
    known = np.append(error, np.full(len(pending), np.median(error)))
    for h in dict.fromkeys(chosen.tolist()):
        rows = np.flatnonzero(chosen == h)
        # Draws from the prior by random features; Student's t is the spectrum of a
        # Matérn kernel.
        omega = rng.standard_normal((_NUM_FEATURES, at.shape[1])) * stretch[h]
        omega /= np.sqrt(rng.chisquare(_FREEDOM, (_NUM_FEATURES, 1)) / _FREEDOM)
        # Cosines take most of the time, and 32 bits are enough for a draw.
        angle = (everywhere @ omega.T).astype(np.float32)
        features = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        w = rng.standard_normal((len(rows), 2 * _NUM_FEATURES))
        drawn = size[h] / np.sqrt(_NUM_FEATURES) * w @ features.T
        noise = rng.standard_normal((len(rows), len(y))) * error
        missed = y + noise - drawn[:, : len(y)]
        cross = size[h] ** 2 * _matern(at, done, stretch[h : h + 1])[0]
        solved = np.linalg.solve(roots[h], cross.T)
        gain = np.linalg.solve(roots[h].T, solved)
        found[rows] = mean + drawn[:, len(y) :] + missed @ gain
        if len(pending):
            among = size[h] ** 2 * _matern(explored, explored, stretch[h : h + 1])[0]
            root = np.linalg.cholesky(among + np.diag(known**2))
            cross = size[h] ** 2 * _matern(at, explored, stretch[h : h + 1])[0]
            solved = np.linalg.solve(root, cross.T)
        share = 1 - (solved**2).sum(0) / size[h] ** 2
        left += len(rows) / count * np.sqrt(np.maximum(share, 0.0))
    return found, left


def _matern(
    one: Float[np.ndarray, "one coordinates"],
    other: Float[np.ndarray, "other coordinates"],
    stretch: Float[np.ndarray, "hyperparameters coordinates"],
) -> Float[np.ndarray, "hyperparameters one other"]:
    """Compute the Matérn 5/2 kernel of variance 1."""
    a, b = one * stretch[:, None], other * stretch[:, None]
    squared = (a**2).sum(-1)[:, :, None] + (b**2).sum(-1)[:, None]
    squared = np.maximum(squared - 2 * a @ b.swapaxes(-1, -2), 0.0)
    r = np.sqrt(5 * squared)
    return (1 + r + r**2 / 3) * np.exp(-r)
