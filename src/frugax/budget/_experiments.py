"""`ExperimentBudget`: limits on experiments: their total cost, number and wall time."""

import dataclasses
from collections.abc import Mapping
from fractions import Fraction

from frugax.options import check_integer

from ._quantities import check_amount, format_seconds, parse_seconds


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class ExperimentBudget:
    """The most that a campaign of experiments may spend, and the price of each one.

    Attributes:
        cost: price of all experiments together, in the user's own unit; > 0 or None.
        n: how many experiments; >= 1 or None.
        seconds: wall time of the campaign; > 0 or None.
        costs: price of one experiment by name, as sorted pairs; empty if each costs
            1. Give it as a mapping.
    """

    cost: float | None
    n: int | None
    seconds: float | None
    costs: tuple[tuple[str, float], ...]

    def __init__(
        self,
        *,
        cost: float | None = None,
        n: int | None = None,
        seconds: float | str | None = None,
        costs: Mapping[str, float] | tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Check the limits; see the class.

        Raises:
            TypeError: no limit is given, or a price is not a number.
            ValueError: a limit or a price is out of range.
        """
        if cost is None and n is None and seconds is None:
            raise TypeError(
                "ExperimentBudget needs a limit: one or more of cost=, n=, seconds=."
            )
        if cost is not None:
            cost = check_amount(cost, "cost")
        if n is not None:
            check_integer("n", n)
        prices = {k: check_amount(v, f"costs[{k!r}]") for k, v in dict(costs).items()}
        # A frozen class refuses to set its own fields; the `__init__` that dataclasses
        # generate goes past it in the same way.
        put = object.__setattr__
        put(self, "cost", cost)
        # NumPy's integers become Python's, which JSON can hold.
        put(self, "n", n and int(n))
        if seconds is not None:
            seconds = parse_seconds(seconds, name="seconds")
        put(self, "seconds", seconds)
        # Sorted pairs and not a dict: a budget is hashable, and equal to one whose
        # prices were written in another order.
        put(self, "costs", tuple(sorted(prices.items())))

    def price(self, name: str) -> float:
        """The price of one experiment: its entry in `costs`, or 1."""
        return dict(self.costs).get(name, 1.0)

    def exact_price(self, name: str) -> Fraction:
        """The price as the decimal it was written as: three times 0.1 is 0.3."""
        # `repr` is the shortest decimal that reads back as this float, so the one that
        # was typed. `Fraction(0.1)` would be the binary number, a little above 0.1.
        return Fraction(repr(self.price(name)))

    @property
    def exact_cost(self) -> Fraction | None:
        """The limit on the total cost, as the decimal it was written as."""
        if self.cost is None:
            return None
        return Fraction(repr(self.cost))

    def __str__(self) -> str:
        parts: list[str] = []
        if self.cost is not None:
            parts.append(f"cost {self.cost:g}")
        if self.n is not None:
            parts.append(f"{self.n} experiment{'s' * (self.n > 1)}")
        if self.seconds is not None:
            parts.append(format_seconds(self.seconds))
        return ", ".join(parts)
