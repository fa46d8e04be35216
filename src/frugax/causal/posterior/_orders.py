"""Posterior of causal graphs, summed exactly over variable orders, and draws from it.

Given an order, the parents of each variable are independent, and a variable has only
2^d sets of predecessors, so the sum over all d! orders costs d 2^d. It yields
independent draws from the posterior of graphs, where structure MCMC (Madigan & York
1995, Int. Statistical Review 63:215-232) yields a chain that has to mix.

References:
    Koivisto & Sood 2004, JMLR 5:549-573; Ellis & Wong 2008, JASA 103:778-789.
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from ._parent_scores import ParentScores

# Time and memory of the sums, and of the topological orders of every graph that is
# drawn, double with each variable more.
MAX_VARIABLES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class OrderSums:
    """Log sums over orders, from which graphs are drawn.

    Attributes:
        scores: log weights of all parent sets.
        before: for each variable and each set of predecessors, the log sum over the
            parent sets within; `[d, 2^d]`.
        prefix: for each set of variables, the log sum over the orders and graphs of
            these variables alone; `[2^d]`.
    """

    scores: ParentScores
    before: Float[np.ndarray, "d subsets"]
    prefix: Float[np.ndarray, " subsets"]


def sum_over_orders(scores: ParentScores) -> OrderSums:
    """Sum the posterior weights of all graphs, order by order."""
    d = len(scores.sets)
    if d > MAX_VARIABLES:
        raise ValueError(
            f"got {d} variables, but at most {MAX_VARIABLES} can be summed over: "
            "leave some out."
        )
    before = np.full((d, 1 << d), -np.inf)
    for v, (sets, logs) in enumerate(zip(scores.sets, scores.logs, strict=True)):
        before[v, sets] = logs
    before = sum_subsets(before)
    prefix = np.full(1 << d, -np.inf)
    prefix[0] = 0.0
    subsets = np.arange(1 << d)
    sizes = np.bitwise_count(subsets)
    for size in range(1, d + 1):
        of_size = subsets[sizes == size]
        total = np.full(len(of_size), -np.inf)
        for v in range(d):
            has = (of_size >> v & 1).astype(bool)
            rest = of_size[has] ^ (1 << v)
            total[has] = np.logaddexp(total[has], prefix[rest] + before[v, rest])
        prefix[of_size] = total
    return OrderSums(scores, before, prefix)


def sum_subsets(
    logs: Float[np.ndarray, "*batch sets"],
) -> Float[np.ndarray, "*batch sets"]:
    """Compute the log sum over the subsets of each set, which is a bit mask."""
    # The zeta transform: after bit b, each entry sums over the subsets that differ from
    # its set in the bits up to b only.
    found = logs.copy()
    for bit in range(found.shape[-1].bit_length() - 1):
        split = found.reshape(*found.shape[:-1], -1, 2, 1 << bit)
        split[..., 1, :] = np.logaddexp(split[..., 0, :], split[..., 1, :])
    return found


def sample_graphs(
    sums: OrderSums, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count d"]:
    """Draw graphs from the posterior, each as bit masks of every variable's parents."""
    # A draw by orders favours graphs with many topological orders, such as the empty
    # one. Ellis & Wong resample with one over that number as the importance weight;
    # four times as many draws leave enough different graphs.
    drawn = _sample_by_order(sums, 4 * count, rng)
    unique, index = np.unique(drawn, axis=0, return_inverse=True)
    weight = 1.0 / count_topological_orders(unique)[index.reshape(-1)]
    return drawn[rng.choice(len(drawn), count, p=weight / weight.sum())]


def _sample_by_order(
    sums: OrderSums, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count d"]:
    d = len(sums.before)
    bits = 1 << np.arange(d)
    remaining = np.full(count, (1 << d) - 1)
    graphs = np.zeros((count, d), np.int64)
    # Backwards: the last variable first, whose predecessors are all others.
    for _ in range(d):
        rest = remaining[:, None] & ~bits
        logs = np.where(
            remaining[:, None] & bits,
            sums.prefix[rest] + sums.before[np.arange(d), rest],
            -np.inf,
        )
        last = _sample_categorical(logs, rng)
        remaining &= ~bits[last]
        for v in np.unique(last):
            who = np.flatnonzero(last == v)
            outside = sums.scores.sets[v] & ~remaining[who][:, None]
            weights = np.where(outside == 0, sums.scores.logs[v], -np.inf)
            graphs[who, v] = sums.scores.sets[v][_sample_categorical(weights, rng)]
    return graphs


def _sample_categorical(
    logs: Float[np.ndarray, "draws n"], rng: np.random.Generator
) -> Int[np.ndarray, " draws"]:
    """Draw a position of each row, with probability proportional to its exponential."""
    # The Gumbel-max trick needs no normalisation, which could underflow.
    return np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)


def count_topological_orders(
    graphs: Int[np.ndarray, "graphs d"],
) -> Float[np.ndarray, " graphs"]:
    """Count the topological orders (linear extensions) of each graph."""
    count, d = graphs.shape
    subsets = np.arange(1 << d)
    sizes = np.bitwise_count(subsets)
    orders = np.zeros((count, 1 << d))
    orders[:, 0] = 1.0
    for size in range(d):
        done = subsets[sizes == size]
        for v in range(d):
            free = done[(done >> v & 1) == 0]
            may = (graphs[:, v, None] & ~free) == 0
            orders[:, free | 1 << v] += orders[:, free] * may
    return orders[:, -1]


def adjacency(graph: Int[np.ndarray, "*graphs d"]) -> Bool[np.ndarray, "*graphs d d"]:
    """Convert bit masks of parents to adjacency matrices, `[parent, child]`."""
    d = graph.shape[-1]
    return (graph[..., None, :] >> np.arange(d)[:, None] & 1).astype(bool)
