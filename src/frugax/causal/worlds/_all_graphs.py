"""The exact posterior over a variable's parents: a sum over every acyclic graph.

Sinks are taken off a graph set by set, with alternating signs so that no graph counts
twice; that costs 3^d instead of the number of graphs. The derivative of the sum with
respect to one variable's score is what its parent sets weigh.

References:
    Tian & He 2009, UAI, 'Computing posterior probabilities of structural features in
    Bayesian networks using dynamic programming'.
"""

import numpy as np
from jaxtyping import Float

from ._scores import Scores

MOST_VARIABLES = 12


def parent_set_weights(scores: Scores, target: int) -> Float[np.ndarray, " sets"]:
    """The posterior probability of each parent set of a variable.

    Args:
        scores: log weights of the parent sets of all variables.
        target: the variable.

    Returns:
        One probability for each of `scores.sets[target]`.

    Raises:
        ValueError: there are more than 12 variables, or no graph without a cycle is
            allowed.
    """
    d = len(scores.sets)
    if d > MOST_VARIABLES:
        raise ValueError(
            f"at most {MOST_VARIABLES} variables can be enumerated, got {d}."
        )
    full = (1 << d) - 1
    # 80 bits, where the machine has them: what one variable would like best and what
    # remains for it without a cycle can differ by more than 10^308.
    sums = np.zeros((d, 1 << d), np.longdouble)
    for v, (sets, logs) in enumerate(zip(scores.sets, scores.logs, strict=True)):
        if len(sets):
            sums[v, sets] = np.exp((logs - logs.max()).astype(np.longdouble))
    for bit in range(d):
        split = sums.reshape(d, -1, 2, 1 << bit)
        split[:, :, 1] += split[:, :, 0]
    # Graphs on each set of variables alone.
    graphs = np.zeros(1 << d, np.longdouble)
    graphs[0] = 1.0
    taken = [_subsets(full ^ U, sums[:, U]) for U in range(1 << d)]
    for U in range(1 << d):
        sinks, products = taken[U]
        graphs[U | sinks[1:]] -= graphs[U] * products[1:]
    # How the whole sum changes with the sum on each set.
    change = np.zeros(1 << d, np.longdouble)
    change[full] = 1.0
    for U in range(full - 1, -1, -1):
        sinks, products = taken[U]
        change[U] = -np.sum(products[1:] * change[U | sinks[1:]])
    # And with the target's own sum over the subsets of each set.
    weight = np.zeros(1 << d, np.longdouble)
    bit = 1 << target
    for U in range(1 << d):
        if not U & bit:
            sinks, products = _subsets(full ^ U ^ bit, sums[:, U])
            weight[U] = graphs[U] * np.sum(products * change[U | bit | sinks])
    for b in range(d):
        split = weight.reshape(-1, 2, 1 << b)
        split[:, 0] += split[:, 1]
    sets, logs = scores.sets[target], scores.logs[target]
    found = np.exp((logs - logs.max()).astype(np.longdouble)) * weight[sets]
    total = found.sum()
    if not (np.isfinite(total) and total > 0):
        raise ValueError(
            "no graph without a cycle agrees with these edges and data: relax the "
            "required or forbidden edges."
        )
    # Rounding can leave a set that weighs nothing a little below zero.
    found = np.maximum(found, 0.0)
    return (found / found.sum()).astype(np.float64)


def _subsets(
    of: int, factors: Float[np.ndarray, " d"]
) -> tuple[np.ndarray, np.ndarray]:
    """All subsets of a set, and minus one to their size times their factors."""
    sets = np.zeros(1, np.int64)
    products = np.ones(1, np.longdouble)
    for v in range(len(factors)):
        if of >> v & 1:
            sets = np.concatenate([sets, sets | 1 << v])
            products = np.concatenate([products, -products * factors[v]])
    return sets, products
