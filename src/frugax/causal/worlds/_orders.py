"""Exact sums over the orders in which variables may cause each other.

Given an order, the parents of each variable are chosen independently, and there are
2^d sets of variables that may come first; so the sum over all orders costs d 2^d. It
gives graphs drawn from the posterior without a chain that has to mix. Each graph weighs
as often as there are orders that it agrees with, which the draws are corrected for.

References:
    Koivisto & Sood 2004, JMLR 5:549-573; Ellis & Wong 2008, JASA 103:778-789 (the
    correction).
"""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int

from ._scores import Scores

MOST_VARIABLES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Orders:
    """The sums, from which graphs are drawn.

    Attributes:
        scores: what they were made from.
        before: for each variable and each set of variables that may precede it, the
            log sum over its parent sets within; `[d, 2^d]`.
        ways: for each set, the log sum over orders and graphs of its variables alone;
            `[2^d]`.
    """

    scores: Scores
    before: Float[np.ndarray, "d subsets"]
    ways: Float[np.ndarray, " subsets"]


def sum_over_orders(scores: Scores) -> Orders:
    """Add up the posterior weight of all graphs, order by order.

    Raises:
        ValueError: there are more than 12 variables.
    """
    d = len(scores.sets)
    if d > MOST_VARIABLES:
        raise ValueError(
            f"at most {MOST_VARIABLES} variables can be summed over, got {d}."
        )
    before = np.full((d, 1 << d), -np.inf)
    for v, (sets, logs) in enumerate(zip(scores.sets, scores.logs, strict=True)):
        before[v, sets] = logs
    for bit in range(d):
        split = before.reshape(d, -1, 2, 1 << bit)
        split[:, :, 1] = np.logaddexp(split[:, :, 0], split[:, :, 1])
    ways = np.full(1 << d, -np.inf)
    ways[0] = 0.0
    subsets = np.arange(1 << d)
    sizes = np.bitwise_count(subsets)
    for size in range(1, d + 1):
        of_size = subsets[sizes == size]
        total = np.full(len(of_size), -np.inf)
        for v in range(d):
            has = (of_size >> v & 1).astype(bool)
            rest = of_size[has] ^ (1 << v)
            total[has] = np.logaddexp(total[has], ways[rest] + before[v, rest])
        ways[of_size] = total
    return Orders(scores, before, ways)


def draw_graphs(
    orders: Orders, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count d"]:
    """Graphs from the posterior, each as the parents of every variable in bit masks.

    Args:
        orders: as `sum_over_orders` gives them.
        count: how many.
        rng: where the draws come from.
    """
    # Four times as many, weighed by one over the number of orders each agrees with.
    drawn = _draw_by_order(orders, 4 * count, rng)
    unique, index = np.unique(drawn, axis=0, return_inverse=True)
    weight = 1.0 / agreeing_orders(unique)[index.reshape(-1)]
    return drawn[rng.choice(len(drawn), count, p=weight / weight.sum())]


def _draw_by_order(
    orders: Orders, count: int, rng: np.random.Generator
) -> Int[np.ndarray, "count d"]:
    d = len(orders.before)
    bits = 1 << np.arange(d)
    left = np.full(count, (1 << d) - 1)
    graphs = np.zeros((count, d), np.int64)
    for _ in range(d):
        rest = left[:, None] & ~bits
        logs = np.where(
            left[:, None] & bits,
            orders.ways[rest] + orders.before[np.arange(d), rest],
            -np.inf,
        )
        last = _pick(logs, rng)
        left &= ~bits[last]
        for v in np.unique(last):
            who = np.flatnonzero(last == v)
            outside = orders.scores.sets[v] & ~left[who][:, None]
            weights = np.where(outside == 0, orders.scores.logs[v], -np.inf)
            graphs[who, v] = orders.scores.sets[v][_pick(weights, rng)]
    return graphs


def _pick(
    logs: Float[np.ndarray, "draws n"], rng: np.random.Generator
) -> Int[np.ndarray, " draws"]:
    """One of each row, with probability proportional to its exponential."""
    return np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)


def agreeing_orders(
    graphs: Int[np.ndarray, "graphs d"],
) -> Float[np.ndarray, " graphs"]:
    """How many orders each graph agrees with.

    Args:
        graphs: the parents of every variable, as bit masks; without cycles.
    """
    count, d = graphs.shape
    subsets = np.arange(1 << d)
    sizes = np.bitwise_count(subsets)
    ways = np.zeros((count, 1 << d))
    ways[:, 0] = 1.0
    for size in range(d):
        done = subsets[sizes == size]
        for v in range(d):
            free = done[(done >> v & 1) == 0]
            may = (graphs[:, v, None] & ~free) == 0
            ways[:, free | 1 << v] += ways[:, free] * may
    return ways[:, -1]


def edges(graph: Int[np.ndarray, "*graphs d"]) -> Bool[np.ndarray, "*graphs d d"]:
    """Adjacency, `[parent, child]`, of parents as bit masks."""
    d = graph.shape[-1]
    return (graph[..., None, :] >> np.arange(d)[:, None] & 1).astype(bool)
