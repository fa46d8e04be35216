"""A campaign's records of its experiments, and their cost against the budget."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from numbers import Integral
from typing import Literal

from frugax.budget import ExperimentBudget
from frugax.causal.policy import Value
from frugax.causal.scm import Intervention, intervene

from .actions import Setting, describe_settings

Status = Literal["pending", "answered", "failed", "refunded"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The next experiment to do. Its cost is set aside until it is answered.

    Attributes:
        id: number in the campaign, from 0.
        intervention: the variables to set, and their values.
        cost: price, in budget units.
        expected: expected mean of the target, in its unit.
        low: lower end of the 90 % interval of that mean.
        high: upper end of the 90 % interval of that mean.
        value: expected improvement from the answer, in the target's unit.
        actions: the variables to set, and their values as the laboratory sets them:
            names of levels, True or False, whole or other numbers.
        goal: the goal of the campaign, such as "a small pain".
    """

    id: int
    intervention: Intervention
    cost: float
    expected: float
    low: float
    high: float
    value: Value
    actions: dict[str, Setting] = dataclasses.field(default_factory=dict)
    goal: str = ""

    def __str__(self) -> str:
        done = describe_settings(self.actions or self.intervention.values)
        goal = f" for {self.goal}" if self.goal else ""
        return (
            f"#{self.id} {done}{goal} costs {self.cost:g}; expected "
            f"{self.expected:.4g} ({self.low:.4g} to {self.high:.4g}); worth "
            f"{self.value.total:.3g}"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The predictions at the time when an experiment was chosen; means of the target.

    Attributes:
        expected: expected mean of the experiment.
        low: lower end of the 90 % interval of that mean.
        high: upper end of the 90 % interval of that mean.
        worth: expected improvement of the recommendation by the answer.
        best: the intervention that was recommended.
        best_expected: expected mean under the recommendation.
        best_low: lower end of its 90 % interval.
        best_high: upper end of its 90 % interval.
        prob_optimal: probability that it was within the tolerance of the best.
    """

    expected: float
    low: float
    high: float
    worth: float
    best: dict[str, float]
    best_expected: float
    best_low: float
    best_high: float
    prob_optimal: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """An experiment that was asked for, as the campaign keeps it.

    Attributes:
        id: number in the campaign, from 0.
        values: the variables it sets, and their values.
        status: whether its answer is pending or has come, it failed, or it never took
            place and costs nothing.
        reason: reason of a failure, in words.
        forecast: the predictions when it was chosen.
        corrections: earlier answers in words, the oldest first.
        asked_s: seconds from the start of the campaign until it was asked for; None if
            unknown.
        actual: values that the laboratory really set, where they differ.
    """

    id: int
    values: dict[str, float]
    status: Status = "pending"
    reason: str = ""
    forecast: Forecast | None = None
    corrections: tuple[str, ...] = ()
    # Two runs with the same seed are equal, however long their answers took.
    asked_s: float | None = dataclasses.field(default=None, compare=False)
    actual: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def as_set(self) -> dict[str, float]:
        """The values that were really set, as far as they are known."""
        return self.values | self.actual


def find_experiment(
    records: Sequence[ExperimentRecord], experiment: object, *, replace: bool = False
) -> ExperimentRecord:
    """Find the record of an experiment that can be answered."""
    # NumPy's integers are numbers of experiments, too; True is not experiment 1.
    number = getattr(experiment, "id", experiment)
    if isinstance(number, bool) or not isinstance(number, Integral):
        hint = ""
        if experiment is None:
            hint = " (ask returns None once the budget is spent)"
        raise TypeError(
            f"got {experiment!r:.80}, which is not an experiment{hint}: pass one that "
            "ask returned, or its number."
        )
    record = next((one for one in records if one.id == number), None)
    if record is None:
        raise ValueError(
            f"there is no experiment {number}: {len(records)} were asked for."
        )
    # Its price went back to the budget and may be spent by now, so a late answer could
    # overdraw it.
    if record.status == "refunded":
        raise ValueError(
            f"experiment {number} is already refunded, and its cost was returned: ask "
            "for another one."
        )
    if record.status != "pending" and not replace:
        raise ValueError(
            f"experiment {number} is already {record.status}: to correct its answer, "
            "tell it again with replace=True."
        )
    # Every campaign counts from 0, so the number alone cannot show that the question
    # came from another one.
    intervention = getattr(experiment, "intervention", experiment)
    if getattr(intervention, "values", record.values) != record.values:
        raise ValueError(
            f"experiment {number} of this campaign is {intervene(**record.values)}, "
            f"got {intervention}: it belongs to another campaign."
        )
    return record


# Prices are added as fractions of decimals: three experiments of 0.1 cost 0.3 exactly,
# where floats would overdraw a budget of 0.3.


def add_prices(budget: ExperimentBudget, variables: Iterable[str]) -> Fraction:
    """Add the prices of variables that one experiment sets together."""
    return sum(map(budget.exact_price, variables), Fraction())


def add_costs(
    budget: ExperimentBudget, records: Iterable[ExperimentRecord], *status: Status
) -> Fraction:
    """Add the costs of the experiments with one of these states."""
    return sum(
        (add_prices(budget, one.values) for one in records if one.status in status),
        Fraction(),
    )


def is_affordable(
    budget: ExperimentBudget,
    records: Iterable[ExperimentRecord],
    variables: Iterable[str],
) -> bool:
    """Return whether the budget pays for one more experiment on these variables.

    Pending experiments count as paid.
    """
    counted = [one for one in records if one.status != "refunded"]
    if budget.n is not None and len(counted) >= budget.n:
        return False
    spent = add_costs(budget, counted, "pending", "answered", "failed")
    limit = budget.exact_cost
    return limit is None or spent + add_prices(budget, variables) <= limit


def remaining_budget(
    budget: ExperimentBudget, records: Iterable[ExperimentRecord]
) -> Mapping[str, float]:
    """Return the rest of each limit, with pending experiments as paid."""
    counted = [one for one in records if one.status != "refunded"]
    found: dict[str, float] = {}
    if budget.exact_cost is not None:
        spent = add_costs(budget, counted, "pending", "answered", "failed")
        found["cost"] = float(budget.exact_cost - spent)
    if budget.n is not None:
        found["n"] = budget.n - len(counted)
    return found
