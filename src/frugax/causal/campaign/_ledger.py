"""What the budget has paid for, exactly, so that rounding cannot overdraw it."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from numbers import Integral
from typing import Literal

from frugax.budget import ExperimentBudget
from frugax.causal.scm import intervene

Status = Literal["pending", "answered", "failed", "refunded"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What was believed when an experiment was chosen; means of the target.

    Attributes:
        expected: of the experiment.
        low: lower end of the 90 % interval of that mean.
        high: upper end of it.
        learn: what knowing the target's causes better was worth.
        exploit: what knowing effects better was worth.
        best: the intervention that was recommended then.
        best_expected: of that intervention.
        best_low: lower end of its 90 % interval.
        best_high: upper end of it.
        right: probability that it was within the tolerance of the best.
        spread: standard deviation of what single worlds expected of the experiment;
            None in files of older campaigns.
    """

    expected: float
    low: float
    high: float
    learn: float
    exploit: float
    best: dict[str, float]
    best_expected: float
    best_low: float
    best_high: float
    right: float
    spread: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One experiment that was asked for.

    Attributes:
        id: its number, from 0.
        values: the variables it sets, and to what.
        status: whether its answer is awaited or has come, it failed, or it never took
            place and costs nothing.
        why: of a failure, in words.
        forecast: what was believed when it was chosen.
        corrected: what was told before, in words, the oldest first.
    """

    id: int
    values: dict[str, float]
    status: Status = "pending"
    why: str = ""
    forecast: Forecast | None = None
    corrected: tuple[str, ...] = ()


def waiting(entries: Sequence[Entry], ask: object, *, replace: bool = False) -> Entry:
    """The experiment whose answer is awaited, or is to be corrected.

    Args:
        entries: all experiments.
        ask: the question, its entry or its number.
        replace: whether it may have an answer.

    Raises:
        TypeError: it is none of these.
        ValueError: there is no such experiment, it has been answered, or the question
            is of another campaign.
    """
    number = getattr(ask, "id", ask)
    if isinstance(number, bool) or not isinstance(number, Integral):
        hint = " (ask gives None once the budget is spent)" if ask is None else ""
        raise TypeError(f"{ask!r:.80} is no question and no number of one{hint}.")
    for entry in entries:
        if entry.id == number:
            if entry.status == "refunded":
                raise ValueError(
                    f"experiment {number} is refunded already, its price went back: "
                    "ask for another."
                )
            if entry.status != "pending" and not replace:
                raise ValueError(
                    f"experiment {number} is {entry.status} already: to correct what "
                    "was told, tell it again with replace=True."
                )
            asked = getattr(ask, "intervention", ask)
            if getattr(asked, "values", entry.values) != entry.values:
                raise ValueError(
                    f"experiment {number} of this campaign is "
                    f"{intervene(**entry.values)}, and this question is {asked}: it is "
                    "of another campaign."
                )
            return entry
    raise ValueError(f"there is no experiment {number}: {len(entries)} were asked.")


def price(budget: ExperimentBudget, names: Iterable[str]) -> Fraction:
    """What setting these variables together costs."""
    return sum(map(budget.exact_price, names), Fraction())


def paid(
    budget: ExperimentBudget, entries: Iterable[Entry], *status: Status
) -> Fraction:
    """What the experiments of these kinds cost together."""
    return sum(
        (price(budget, e.values) for e in entries if e.status in status), Fraction()
    )


def fits(
    budget: ExperimentBudget,
    entries: Iterable[Entry],
    names: Iterable[str],
) -> bool:
    """Whether one more experiment that sets these variables can be paid.

    Experiments under way count as if they had been paid.
    """
    held = [e for e in entries if e.status != "refunded"]
    if budget.n is not None and len(held) >= budget.n:
        return False
    spent = paid(budget, held, "pending", "answered", "failed")
    most = budget.exact_cost
    return most is None or spent + price(budget, names) <= most


def left(budget: ExperimentBudget, entries: Iterable[Entry]) -> Mapping[str, float]:
    """What may still be spent, by limit."""
    held = [e for e in entries if e.status != "refunded"]
    found: dict[str, float] = {}
    if budget.exact_cost is not None:
        spent = paid(budget, held, "pending", "answered", "failed")
        found["cost"] = float(budget.exact_cost - spent)
    if budget.n is not None:
        found["n"] = budget.n - len(held)
    return found
