"""The linear model of best score, found exactly: a baseline for a campaign's audit.

By dynamic programming over subsets of at most 12 variables; GIES searches greedily.

References:
    Silander & Myllymäki 2006, UAI, 'A simple approach for finding the globally optimal
    Bayesian network structure'.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from ._basis import Domain
from ._parent_scores import score_parent_sets


@dataclasses.dataclass(frozen=True, slots=True)
class LinearModel:
    """Least-squares weights of the graph with the best score."""

    weights: Float[np.ndarray, "d d"]  # `[parent, child]`
    constant: Float[np.ndarray, " d"]

    def predict_mean(
        self,
        targets: tuple[int, ...],
        values: Float[np.ndarray, " targets"],
        output: int,
    ) -> float:
        """Predict the mean of a variable under an intervention."""
        cut, fixed = self.weights.copy(), self.constant.copy()
        cut[:, list(targets)], fixed[list(targets)] = 0.0, values
        means = np.linalg.solve(np.eye(len(fixed)) - cut.T, fixed)
        return float(means[output])


def fit_best_linear_model(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    *,
    max_parents: int,
) -> LinearModel:
    """Fit the linear model whose graph has the best score."""
    complete = np.isfinite(values).all(1)
    values, intervened = values[complete], intervened[complete]
    d = values.shape[1]
    weights, constant = np.zeros((d, d)), np.zeros(d)
    if not len(values):
        return LinearModel(weights, constant)
    spread = values.std(0)
    domain = Domain(values.mean(0), np.where(spread > 0, spread, 1.0))
    scores = score_parent_sets(
        values, intervened, domain, max_parents=max_parents, curved=False
    )
    for v, mask in enumerate(_find_best_parents(scores.sets, scores.logs)):
        rows = ~intervened[:, v]
        parents = [u for u in range(d) if mask >> u & 1]
        columns = np.column_stack([np.ones(rows.sum()), values[rows][:, parents]])
        fit = np.linalg.lstsq(columns, values[rows, v], rcond=None)[0]
        constant[v], weights[parents, v] = fit[0], fit[1:]
    return LinearModel(weights, constant)


def _find_best_parents(
    sets: tuple[np.ndarray, ...], logs: tuple[np.ndarray, ...]
) -> list[int]:
    """Return the parents of each variable in the best graph, as bit masks."""
    d = len(sets)
    # best[v, S]: score of v's best parent set within S; which[v, S]: that parent set.
    best = np.full((d, 1 << d), -np.inf)
    which = np.zeros((d, 1 << d), np.int64)
    for v in range(d):
        best[v, sets[v]], which[v, sets[v]] = logs[v], sets[v]
        for bit in range(d):
            b, w = (a[v].reshape(-1, 2, 1 << bit) for a in (best, which))
            better = b[:, 0] > b[:, 1]
            b[:, 1] = np.where(better, b[:, 0], b[:, 1])
            w[:, 1] = np.where(better, w[:, 0], w[:, 1])
    # total[S]: score of the best graph on S alone; sink[S]: its last variable.
    total = np.full(1 << d, -np.inf)
    total[0], sink = 0.0, np.zeros(1 << d, np.int64)
    for s in range(1, 1 << d):
        options = [
            (total[s ^ 1 << v] + best[v, s ^ 1 << v], v) for v in range(d) if s >> v & 1
        ]
        total[s], sink[s] = max(options)
    found, remaining = [0] * d, (1 << d) - 1
    while remaining:
        v = int(sink[remaining])
        remaining ^= 1 << v
        found[v] = int(which[v, remaining])
    return found
