"""Solve the multiple-choice knapsack problem, and bound the distance from its optimum.

An item's options are a tropical polynomial, the least loss for each price, and all
items together are the min-plus product of these (`frugax.tropical.convolve`): a table
of the least loss for every total price. Items have few options, so the product is taken
option by option.

Two lower bounds hold for every choice within the limit, and the better one is reported.
Lagrange's bound puts a price on every unit of cost, minimises each item alone, and
searches for the price that gives the highest bound; it is loose where few items with
non-convex options decide. The table's bound solves the problem with all costs rounded
down, which only adds choices.

References:
    Bellman 1957, "Dynamic Programming", Princeton (the table);
    Everett 1963, Operations Research 11(3), 399-417 (the bound).
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int, UInt8

from frugax.errors import InfeasibleBudgetError

# The table of choices takes a byte for each item and bucket: 64 MiB at most.
_MAX_CELLS = 1 << 26
_MAX_BUCKETS = 1 << 14


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """A choice of one option for each item.

    Attributes:
        chosen: the index of the chosen option for each item.
        cost: the total cost.
        loss: the total loss.
        bound: no choice within the limit has a smaller loss.
    """

    chosen: Int[np.ndarray, " items"]
    cost: int
    loss: float
    bound: float

    @property
    def gap(self) -> float:
        """The excess of the loss as a share of the bound; 0 proves the optimum."""
        if self.bound > 0:
            return self.loss / self.bound - 1
        return float(self.loss > 0)


def multiple_choice_knapsack(
    cost: Int[np.ndarray, "items options"],
    loss: Float[np.ndarray, "items options"],
    *,
    limit: int,
    unit: str = "bytes",
) -> Allocation:
    """Choose one option per item with the least loss that the limit allows.

    The result is exact up to a grid of 16,384 prices (fewer with over 4,096 items), to
    which costs are rounded. The sum of the true costs never exceeds the limit.

    Args:
        cost: price of each option, in `unit`; >= 0.
        loss: harm done by each option, in any one unit; >= 0. An infinite loss marks
            an option that does not exist.
        limit: the most that the chosen options may cost together, in `unit`.
        unit: the unit of `cost` and `limit`; used in the error message only.

    Raises:
        InfeasibleBudgetError: even the cheapest options cost more than `limit`.

    >>> cost = np.array([[4, 8], [4, 8]])
    >>> loss = np.array([[1.0, 0.1], [9.0, 0.1]])
    >>> found = multiple_choice_knapsack(cost, loss, limit=12)
    >>> found.chosen, round(found.loss, 3), round(found.bound, 3)
    (array([0, 1]), 1.1, 1.1)
    """
    items = np.arange(len(cost))
    priced = np.where(np.isfinite(loss), cost, np.iinfo(np.int64).max)
    base = priced.min(axis=1)
    needed = int(base.sum())
    if needed > limit:
        raise InfeasibleBudgetError(
            "the cheapest choice", needed=needed, limit=limit, unit=unit
        )
    buckets = min(_MAX_BUCKETS, max(256, _MAX_CELLS // max(1, len(cost))))
    width = max((limit - needed) / buckets, 1e-9)
    # Only costs above each item's cheapest option use the grid, which makes it finer.
    extra = np.where(np.isfinite(loss), cost - base[:, None], 0)
    rounded = np.rint(extra / width)
    best, option_at = _least_losses(rounded, loss, buckets)
    chosen = priced.argmin(axis=1)
    least = float(loss[items, chosen].sum())
    # Costs were rounded to the nearest bucket, so the last buckets may lie a little
    # above the limit. The buckets are tried from the least loss up until one does not.
    for bucket in np.argsort(best, kind="stable"):
        if best[bucket] >= least:
            break
        found = _trace_choice(option_at, rounded.astype(np.int64), int(bucket))
        if int(cost[items, found].sum()) <= limit:
            chosen, least = found, float(loss[items, found].sum())
            break
    total = int(cost[items, chosen].sum())
    relaxed, _ = _least_losses(np.floor(extra / width), loss, buckets)
    bound = max(
        float(relaxed[-1]), _lagrangian_bound(cost.astype(np.float64), loss, limit)
    )
    return Allocation(chosen, total, least, min(least, bound))


def _least_losses(
    prices: Float[np.ndarray, "items options"],
    loss: Float[np.ndarray, "items options"],
    buckets: int,
) -> tuple[Float[np.ndarray, " prices"], UInt8[np.ndarray, "items prices"]]:
    """The least loss for each total price, and each item's option that attains it."""
    best = np.zeros(buckets + 1)
    option_at = np.zeros((len(loss), buckets + 1), np.uint8)
    for item in range(len(loss)):
        new = np.full(buckets + 1, np.inf)
        for option in np.argsort(prices[item], kind="stable"):
            price = int(min(prices[item, option], buckets + 1))
            if price > buckets or not np.isfinite(loss[item, option]):
                continue
            shifted = best[: buckets + 1 - price] + loss[item, option]
            is_better = shifted < new[price:]
            new[price:][is_better] = shifted[is_better]
            option_at[item, price:][is_better] = option
        best = new
    return best, option_at


def _trace_choice(
    option_at: UInt8[np.ndarray, "items prices"],
    prices: Int[np.ndarray, "items options"],
    bucket: int,
) -> Int[np.ndarray, " items"]:
    chosen = np.empty(len(option_at), np.int64)
    for item in range(len(option_at) - 1, -1, -1):
        chosen[item] = option_at[item, bucket]
        bucket -= int(prices[item, chosen[item]])
    return chosen


def _lagrangian_bound(
    cost: Float[np.ndarray, "items options"],
    loss: Float[np.ndarray, "items options"],
    limit: int,
) -> float:
    """The highest bound of one price per unit of cost for all items."""
    items = np.arange(len(cost))

    def evaluate(log_price: float) -> tuple[float, float]:
        price = 2.0**log_price
        total = loss + price * cost
        chosen = total.argmin(axis=1)
        bound = float(total[items, chosen].sum() - price * limit)
        return bound, float(cost[items, chosen].sum())

    finite = loss[np.isfinite(loss)]
    spread = 1e-300
    if finite.size:
        spread = max(float(np.ptp(finite)), spread)
    # The price is a loss per unit of cost. Costs in bytes reach 2^60 or so, hence the
    # long way down; 60 bisections narrow 120 powers of two to the last digits.
    low, high = np.log2(spread) - 80.0, np.log2(spread) + 40.0
    best = max(0.0, evaluate(low)[0])
    for _ in range(60):
        middle = (low + high) / 2
        bound, spent = evaluate(middle)
        best = max(best, bound)
        # The cost falls as the price rises; the bound is highest where it meets the
        # limit.
        if spent > limit:
            low = middle
        else:
            high = middle
    return best
