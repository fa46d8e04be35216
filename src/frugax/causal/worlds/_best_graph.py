"""The one linear model that fits best, as a yardstick: no doubt, no bends.

It is what a greedy search such as GIES looks for, found exactly: the graph of the best
score over all orders of at most twelve variables, with weights by least squares.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float

from ._basis import Basis
from ._scores import parent_scores


@dataclasses.dataclass(frozen=True, slots=True)
class LinearModel:
    """Weights of the best graph.

    Attributes:
        weights: `[parent, child]`.
        constant: of each variable.
    """

    weights: Float[np.ndarray, "d d"]
    constant: Float[np.ndarray, " d"]

    def expected(
        self, where: tuple[int, ...], values: Float[np.ndarray, " places"], wanted: int
    ) -> float:
        """The mean of a variable when others are set.

        Args:
            where: the variables that are set.
            values: to what.
            wanted: the variable asked for.
        """
        cut, fixed = self.weights.copy(), self.constant.copy()
        cut[:, list(where)], fixed[list(where)] = 0.0, values
        means = np.linalg.solve(np.eye(len(fixed)) - cut.T, fixed)
        return float(means[wanted])


def best_linear_model(
    values: Float[np.ndarray, "n d"],
    intervened: Bool[np.ndarray, "n d"],
    *,
    max_parents: int,
) -> LinearModel:
    """The linear model of the best graph.

    Args:
        values: the data; rows with a missing value (NaN) are left out.
        intervened: where a value was set by an intervention.
        max_parents: most causes of one variable.
    """
    whole = np.isfinite(values).all(1)
    values, intervened = values[whole], intervened[whole]
    d = values.shape[1]
    weights, constant = np.zeros((d, d)), np.zeros(d)
    if not len(values):
        return LinearModel(weights, constant)
    spread = values.std(0)
    basis = Basis(values.mean(0), np.where(spread > 0, spread, 1.0))
    scores = parent_scores(
        values, intervened, basis, max_parents=max_parents, curved=False
    )
    for v, mask in enumerate(_best_parents(scores.sets, scores.logs)):
        rows = ~intervened[:, v]
        parents = [u for u in range(d) if mask >> u & 1]
        columns = np.column_stack([np.ones(rows.sum()), values[rows][:, parents]])
        fit = np.linalg.lstsq(columns, values[rows, v], rcond=None)[0]
        constant[v], weights[parents, v] = fit[0], fit[1:]
    return LinearModel(weights, constant)


def _best_parents(
    sets: tuple[np.ndarray, ...], logs: tuple[np.ndarray, ...]
) -> list[int]:
    """Parents in the best graph, as bit masks: the best last variable of each set."""
    d = len(sets)
    best = np.full((d, 1 << d), -np.inf)
    which = np.zeros((d, 1 << d), np.int64)
    for v in range(d):
        best[v, sets[v]], which[v, sets[v]] = logs[v], sets[v]
        for bit in range(d):
            b, w = (a[v].reshape(-1, 2, 1 << bit) for a in (best, which))
            better = b[:, 0] > b[:, 1]
            b[:, 1] = np.where(better, b[:, 0], b[:, 1])
            w[:, 1] = np.where(better, w[:, 0], w[:, 1])
    total = np.full(1 << d, -np.inf)
    total[0], last = 0.0, np.zeros(1 << d, np.int64)
    for s in range(1, 1 << d):
        options = [
            (total[s ^ 1 << v] + best[v, s ^ 1 << v], v) for v in range(d) if s >> v & 1
        ]
        total[s], last[s] = max(options)
    found, left = [0] * d, (1 << d) - 1
    while left:
        v = int(last[left])
        left ^= 1 << v
        found[v] = int(which[v, left])
    return found
