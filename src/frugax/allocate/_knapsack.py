"""The best one option from each menu within a limit, and a proof of how good it is.

A menu is a tropical polynomial, the least loss for each price; all menus together are
the min-plus product of these (`frugax.tropical.convolve`), a table of the least loss
for every total price. Menus are short, so the product is taken option by option.

Two bounds say what no choice can beat, and the better one is told. Lagrange's: with a
price on every unit of cost, each menu is minimised alone, and the price that makes the
most of it is searched for; it is loose where few menus with dents in them decide. The
table's: with all costs rounded down, more choices are within the limit than are.

References:
    Bellman 1957, "Dynamic Programming", Princeton (the table);
    Everett 1963, Operations Research 11(3), 399-417 (the bound).
"""

import dataclasses

import numpy as np
from jaxtyping import Float, Int

from frugax.errors import InfeasibleBudgetError

_MOST_CELLS = 1 << 26  # of the table of choices: a byte each
_MOST_BUCKETS = 1 << 14


@dataclasses.dataclass(frozen=True, slots=True)
class Allocation:
    """A choice from menus.

    Attributes:
        chosen: the index of the chosen option for each item.
        cost: what they cost together.
        loss: what they lose together.
        bound: no choice within the limit loses less.
    """

    chosen: Int[np.ndarray, " items"]
    cost: int
    loss: float
    bound: float

    @property
    def gap(self) -> float:
        """By how much of the bound this choice is above it; 0 is certainly the best."""
        return self.loss / self.bound - 1 if self.bound > 0 else float(self.loss > 0)


def multiple_choice_knapsack(
    cost: Int[np.ndarray, "items options"],
    loss: Float[np.ndarray, "items options"],
    *,
    limit: int,
    unit: str = "bytes",
) -> Allocation:
    """Choose one option per item with the least loss that the limit allows.

    Exact up to a grid of 16,384 prices (fewer with over 4,096 items), to which costs
    are rounded; the sum of the true costs is within the limit all the same.

    Args:
        cost: price of each option, in `unit`; >= 0.
        loss: harm done by each option, in any one unit; >= 0; inf for no option.
        limit: most that the chosen options may cost together, in `unit`.
        unit: what `cost` and `limit` count; used in the error message only.

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
    buckets = min(_MOST_BUCKETS, max(256, _MOST_CELLS // max(1, len(cost))))
    width = max((limit - needed) / buckets, 1e-9)
    extra = np.where(np.isfinite(loss), cost - base[:, None], 0)
    best, taken = _table(np.rint(extra / width), loss, buckets)
    greedy = loss[items, priced.argmin(axis=1)].sum()
    chosen, least = priced.argmin(axis=1), float(greedy)
    # Rounding may put the last buckets a little above the limit: the best that is not.
    for at in np.argsort(best, kind="stable"):
        if best[at] >= least:
            break
        found = _trace(taken, np.rint(extra / width).astype(np.int64), int(at))
        if int(cost[items, found].sum()) <= limit:
            chosen, least = found, float(loss[items, found].sum())
            break
    total = int(cost[items, chosen].sum())
    cheaper, _ = _table(np.floor(extra / width), loss, buckets)
    bound = max(float(cheaper[-1]), _lagrangian(cost.astype(np.float64), loss, limit))
    bound = min(least, bound)
    return Allocation(chosen, total, least, bound)


def _table(
    extra: np.ndarray, loss: np.ndarray, buckets: int
) -> tuple[np.ndarray, np.ndarray]:
    """The least loss for each price, and the option of each item that gives it."""
    best = np.zeros(buckets + 1)
    taken = np.zeros((len(loss), buckets + 1), np.uint8)
    for item, (prices, losses) in enumerate(zip(extra, loss, strict=True)):
        new = np.full(buckets + 1, np.inf)
        for option in np.argsort(prices, kind="stable"):
            price = int(min(prices[option], buckets + 1))
            if price > buckets or not np.isfinite(losses[option]):
                continue
            shifted = best[: buckets + 1 - price] + losses[option]
            better = shifted < new[price:]
            new[price:][better] = shifted[better]
            taken[item, price:][better] = option
        best = new
    return best, taken


def _trace(taken: np.ndarray, extra: np.ndarray, at: int) -> np.ndarray:
    chosen = np.empty(len(taken), np.int64)
    for item in range(len(taken) - 1, -1, -1):
        chosen[item] = taken[item, at]
        at -= int(extra[item, chosen[item]])
    return chosen


def _lagrangian(cost: np.ndarray, loss: np.ndarray, limit: int) -> float:
    """The bound of one price for all; it is largest where costs balance."""

    def at(log_price: float) -> tuple[float, float]:
        price = 2.0**log_price
        total = loss + price * cost
        pick = total.argmin(axis=1)
        rows = np.arange(len(cost))
        return float(total[rows, pick].sum() - price * limit), float(
            cost[rows, pick].sum()
        )

    finite = loss[np.isfinite(loss)]
    spread = max(float(np.ptp(finite)) if finite.size else 0.0, 1e-300)
    low = np.log2(spread) - 80.0
    high = np.log2(spread) + 40.0
    best = max(0.0, at(low)[0])
    for _ in range(60):  # the cost falls as the price rises
        middle = (low + high) / 2
        value, spent = at(middle)
        best = max(best, value)
        low, high = (middle, high) if spent > limit else (low, middle)
    return best
