"""The experiment budget: what a campaign of interventions may spend."""

import dataclasses
import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real

from ._quantities import format_seconds, parse_seconds


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class ExperimentBudget:
    """Most that a campaign of experiments may spend, and what each one costs.

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
            TypeError: no limit at all, or a price that is no number.
            ValueError: a limit or a price out of its range.
        """
        if cost is None and n is None and seconds is None:
            raise TypeError(
                "ExperimentBudget needs a limit: one or more of cost=, n=, seconds=."
            )
        cost = None if cost is None else _amount(cost, "cost")
        if n is not None and (
            isinstance(n, bool) or not isinstance(n, Integral) or n < 1
        ):
            raise ValueError(f"n must be a whole number >= 1, got {n!r}.")
        prices = {k: _amount(v, f"costs[{k!r}]") for k, v in dict(costs).items()}
        put = object.__setattr__
        put(self, "cost", cost)
        put(self, "n", None if n is None else int(n))
        limit = None if seconds is None else parse_seconds(seconds, name="seconds")
        put(self, "seconds", limit)
        put(self, "costs", tuple(sorted(prices.items())))

    def price(self, name: str) -> float:
        """What one experiment of this name costs: its entry in `costs`, else 1."""
        return dict(self.costs).get(name, 1.0)

    def exact_price(self, name: str) -> Fraction:
        """The same as the decimal that it was written as: three of 0.1 are 0.3."""
        return Fraction(repr(self.price(name)))

    @property
    def exact_cost(self) -> Fraction | None:
        """The most that all may cost, as the decimal that it was written as."""
        return None if self.cost is None else Fraction(repr(self.cost))

    def __str__(self) -> str:
        parts: list[str] = []
        if self.cost is not None:
            parts.append(f"cost {self.cost:g}")
        if self.n is not None:
            parts.append(f"{self.n} experiment{'s' if self.n > 1 else ''}")
        if self.seconds is not None:
            parts.append(format_seconds(self.seconds))
        return ", ".join(parts)


def _amount(value: object, name: str) -> float:
    """A price as a number.

    Raises:
        TypeError: it is none, as a text is none.
        ValueError: it is not > 0, or not finite.
    """
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise TypeError(f"{name} must be a number, got {value!r:.80}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 < number < math.inf:
        raise ValueError(f"{name} must be > 0 and finite, got {value!s:.20}.")
    return number
