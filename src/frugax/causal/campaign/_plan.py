"""A campaign's plan and receipt: how many experiments a budget buys, and its use."""

import dataclasses
from collections.abc import Sequence

from frugax.budget import ExperimentBudget, Plan, Receipt, Spend, table

from ._experiments import ExperimentRecord, add_costs, add_prices
from ._settings import CampaignSettings
from .regret_forecast import ExpectedRegret

# A campaign may allow 400 sets of variables, and a table of all would fill pages.
_MAX_TABLE_ROWS = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedExperiment:
    """One kind of experiment that a campaign may choose.

    Attributes:
        variables: the variables that it sets.
        cost: its price.
        max_count: number of these experiments that the budget pays for; None if only
            its time is limited.
    """

    variables: tuple[str, ...]
    cost: float
    max_count: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CampaignPlan(Plan):
    """The limits of a campaign, before its first experiment.

    Which experiments a campaign does depends on their answers, so a plan states how
    many the budget pays for, and not which.

    Attributes:
        budget: the budget of the plan. Its `seconds` do not cap the number of
            experiments, as their durations are not known.
        experiments: the kinds of experiments that the campaign may choose.
        max_experiments: number of experiments that the budget pays for if all are of
            the cheapest kind; None if only its time is limited.
        predicted: cost that a campaign is expected to spend: that of as many dear
            experiments as fit, and cheaper ones for the rest. It is <= `budget.cost`.
            In seconds if only these are limited.
        regret: the distance from the best mean of the target that a recommendation is
            expected to have after shares of the budget; empty without observations or
            if only time is limited.
    """

    budget: ExperimentBudget
    experiments: tuple[PlannedExperiment, ...]
    max_experiments: int | None
    predicted: float
    # Evidence of the observations about the effects does not make it another plan.
    regret: tuple[ExpectedRegret, ...] = dataclasses.field(default=(), compare=False)

    def __str__(self) -> str:
        rows = [
            [" + ".join(one.variables), f"{one.cost:g}", _format_count(one.max_count)]
            for one in self.experiments[:_MAX_TABLE_ROWS]
        ]
        if rest := len(self.experiments) - len(rows):
            rows.append([f"... and {rest} more", "", ""])
        count = _format_count(self.max_experiments)
        rows.append([f"limit: {self.budget}", f"{self.predicted:g}", count])
        text = str(table(["experiment", "cost", "at most"], rows))
        if self.regret:
            rows = [[f"{one.spent:.4g}", str(one)] for one in self.regret]
            text += "\n\n" + table(["spent", "expected distance from the best"], rows)
        return text


def make_plan(settings: CampaignSettings) -> CampaignPlan:
    """Count the experiments that the budget pays for."""
    budget = settings.budget
    limit, slots = budget.exact_cost, budget.n
    experiments: list[PlannedExperiment] = []
    for variables in settings.allowed_sets():
        price = add_prices(budget, variables)
        # Fractions: 0.3 // 0.1 of floats is 2.
        counts = [] if limit is None else [int(limit // price)]
        counts += [] if slots is None else [slots]
        experiments.append(
            PlannedExperiment(
                variables=variables,
                cost=float(price),
                max_count=min(counts, default=None),
            )
        )
    most: int | None = None
    predicted = budget.seconds or 0.0
    if limit is not None or slots is not None:
        # The cheapest kind fits most often, so its count bounds that of any mixture.
        most = max(one.max_count or 0 for one in experiments)
        # A campaign asks until no experiment fits, so it spends nearly all of its
        # limit: the greedy sum, dearest experiments first. The largest sum that fits
        # (a knapsack) would be exact, but no campaign aims at it.
        total, free = 0, most
        prices = {add_prices(budget, one.variables) for one in experiments}
        for price in sorted(prices, reverse=True):
            count = free
            if limit is not None:
                count = min(free, int((limit - total) // price))
            total += count * price
            free -= count
        predicted = float(total)
    return CampaignPlan(
        budget=budget,
        experiments=tuple(experiments),
        max_experiments=most,
        predicted=predicted,
    )


def make_receipt(
    settings: CampaignSettings,
    records: Sequence[ExperimentRecord],
    planned: Sequence[ExpectedRegret],
    regret: tuple[float, float] | None,
    scale: float,
) -> Receipt:
    """Compare the spending of a campaign with its budget, and the regret with its plan.

    `regret` is that by today's posterior, with the half-width of its 90 % interval;
    `scale` is the target's standard deviation.
    """
    plan, budget = make_plan(settings), settings.budget
    spends: list[Spend] = []
    # Pending experiments count in number but not in cost: they occupy a slot once they
    # are asked for, and cost their price once they have taken place.
    counted = [one for one in records if one.status != "refunded"]
    if plan.max_experiments is not None:
        spends.append(
            Spend(
                name="experiments",
                unit="experiments",
                limit=plan.max_experiments if budget.n is None else budget.n,
                predicted=plan.max_experiments,
                measured=len(counted),
                source="experiments asked for, without refunded ones",
            )
        )
        dearest = max(one.cost for one in plan.experiments)
        spends.append(
            Spend(
                name="cost of the experiments",
                unit="",
                # With a limit on their number alone, all may be of the dearest kind.
                limit=budget.cost or plan.max_experiments * dearest,
                predicted=plan.predicted,
                measured=float(add_costs(budget, records, "answered", "failed")),
                source="prices of the experiments that took place, failed ones too",
            )
        )
    if budget.seconds is not None:
        # After its time a campaign asks for nothing, but accepts pending answers.
        asked = [one.asked_s for one in counted]
        known = [s for s in asked if s is not None]
        spends.append(
            Spend(
                name="time until the last question",
                unit="seconds",
                limit=budget.seconds,
                measured=max(known, default=0.0) if len(known) == len(asked) else None,
                source="wall clock, from the start of the campaign",
            )
        )
    if planned:
        spent = float(add_costs(budget, counted, "answered", "failed"))
        if budget.cost is None:
            spent = len(counted)
        due = [one for one in planned if one.spent <= spent * (1 + 1e-9)][-1]
        measured, noise = regret or (None, 0.0)
        problems = ""
        if measured is not None and due.high > scale:
            # Any outcome would keep such a forecast.
            problems = (
                f"The forecast, up to {due.high:.3g}, is wider than the target's "
                f"standard deviation, {scale:.3g}, and says nothing. By the samples of "
                f"today the distance is {measured:.3g} ± {noise:.3g}."
            )
            measured, noise = None, 0.0
        spends.append(
            Spend(
                name="distance from the best",
                unit="",
                limit=due.high,
                predicted=due.expected,
                measured=measured,
                noise=noise,
                source="posterior samples; the true best is not known",
                problems=problems,
            )
        )
    return Receipt(tuple(spends))


def _format_count(count: int | None) -> str:
    return "any number" if count is None else str(count)
