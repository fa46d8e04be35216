"""Which experiments to run, and in which order, for a stated budget.

Greedy: by expected improvement per cost, each that still fits. Each candidate is run
at most once and scored by what is known now; results of the first do not change the
order of the rest, so plan again when they are in.
"""

import dataclasses
import difflib
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Float

from frugax.budget import (
    ExperimentBudget,
    JsonPlan,
    check_budget,
    table,
)
from frugax.errors import InfeasibleBudgetError

from ._gain_per_cost import gain_per_cost


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CausalPlan(JsonPlan):
    """The experiments to run, best first.

    Attributes:
        budget: what this plan was made for. Its `seconds` are not planned with: how
            long an experiment takes is not known here.
        names: the experiments, in the order to run them.
        gains: expected improvement of each over the best so far, in outcome units.
            They do not add up: each is counted as if run alone.
        left_out: the candidates that no longer fit or promise nothing, best first.
    """

    budget: ExperimentBudget
    names: tuple[str, ...]
    gains: tuple[float, ...]
    left_out: tuple[str, ...]

    @property
    def predicted(self) -> float:
        """What the experiments cost together; <= `budget.cost`, if that is set."""
        # Exact before it is rounded, so that rounding cannot pass the limit.
        return float(sum(map(self.budget.exact_price, self.names)))

    def __str__(self) -> str:
        rows = [
            [name, f"{self.budget.price(name):g}", f"{gain:.4g}"]
            for name, gain in zip(self.names, self.gains, strict=True)
        ]
        total = [f"limit: {self.budget}", f"{self.predicted:g}", ""]
        return table(["experiment", "cost", "expected gain"], [*rows, total])


def plan(
    names: Sequence[str],
    mean: Sequence[float] | Float[ArrayLike, " names"],
    std: Sequence[float] | Float[ArrayLike, " names"],
    budget: ExperimentBudget,
    *,
    best: float,
) -> CausalPlan:
    """Choose the experiments to run within a budget.

    Args:
        names: the candidates, each once. `budget.costs` prices all of them and no
            other; without any prices each costs 1.
        mean: predicted outcome of each, in outcome units; larger is better.
        std: standard deviation of that prediction, in outcome units; 0 is certain.
        budget: cost of all experiments together, how many, or both.
        best: best outcome observed so far, in outcome units.

    Returns:
        The plan; empty if no candidate promises to improve on `best`.

    Raises:
        InfeasibleBudgetError: not even the cheapest candidate fits the cost.
        TypeError: `budget` is none, but text or a number.
        ValueError: no names, one given twice, or numbers or prices that do not suit
            them.

    Example:
        >>> budget = ExperimentBudget(cost=4.0, costs={"dose": 3.0, "diet": 1.0})
        >>> plan(["dose", "diet"], [1.0, 0.4], [1.0, 0.5], budget, best=0.0).names
        ('diet', 'dose')
    """
    check_budget(budget, ExperimentBudget)
    if not names or len(set(names)) < len(names):
        raise ValueError(f"names must be given, each once; got {list(names)!r:.200}.")
    means, stds = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    for what, values in (("mean", means), ("std", stds)):
        if values.shape != (len(names),):
            raise ValueError(
                f"{what} has shape {values.shape}, but there are {len(names)} names: "
                "give a number for each."
            )
        for name, value in zip(names, values.tolist(), strict=True):
            if not math.isfinite(value) or (what == "std" and value < 0):
                least = ">= 0 and " if what == "std" else ""
                raise ValueError(
                    f"{what} of {name!r} must be {least}finite, got {value}."
                )
    if not math.isfinite(best):
        raise ValueError(f"best must be finite, got {best}.")
    _check_prices(names, budget)
    prices = [budget.price(name) for name in names]
    if budget.cost is not None and min(prices) > budget.cost:
        raise InfeasibleBudgetError(
            "the cheapest experiment",
            needed=min(prices),
            limit=budget.cost,
            unit="cost",
            hint="add cheaper candidates.",
        )
    rates = np.asarray(
        gain_per_cost(
            *map(jnp.asarray, (means, stds, np.array(prices, np.float32))), best=best
        )
    )
    order = [int(i) for i in np.argsort(-rates, kind="stable")]  # ties: as given
    chosen: list[int] = []
    left = budget.exact_cost
    for i in order:
        price = budget.exact_price(names[i])
        fits = left is None or price <= left
        if fits and rates[i] > 0 and len(chosen) != budget.n:
            chosen.append(i)
            left = None if left is None else left - price
    return CausalPlan(
        budget=budget,
        names=tuple(names[i] for i in chosen),
        gains=tuple(float(rates[i]) * prices[i] for i in chosen),
        left_out=tuple(names[i] for i in order if i not in chosen),
    )


def _check_prices(names: Sequence[str], budget: ExperimentBudget) -> None:
    """Refuse a misspelt price: the budget alone would let its experiment cost 1.

    Raises:
        ValueError: there are prices, and one is missing or for no candidate.
    """
    priced = [name for name, _ in budget.costs]
    spare = [name for name in priced if name not in names]
    for name in names if priced else ():
        if name not in priced:
            close = difflib.get_close_matches(name, spare, n=1)
            hint = (
                f"is it {close[0]!r}?" if close else "price every candidate, or none."
            )
            raise ValueError(f"costs has no price for {name!r}: {hint}")
    if spare:
        close = difflib.get_close_matches(spare[0], names, n=1)
        hint = f"is it {close[0]!r}?" if close else f"there are {', '.join(names)}."
        raise ValueError(
            f"costs has a price for {spare[0]!r}, which is no candidate: {hint:.200}"
        )
