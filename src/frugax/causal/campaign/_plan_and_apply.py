"""`causal.plan` and `causal.apply`: plan a campaign within a budget, and begin it."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from frugax.budget import ExperimentBudget, check_budget
from frugax.causal.policy import Policy

from ._campaign import Campaign
from ._plan import CampaignPlan, make_plan

Subject: TypeAlias = Campaign | Mapping[str, Any]


def plan(subject: Subject, budget: ExperimentBudget) -> CampaignPlan:
    """Plan a campaign: the experiments that a budget pays for, and their expected gain.

    Args:
        subject: a mapping with the arguments of `Campaign` but the budget, or a
            `Campaign` without experiments. With the observations of a `Campaign` the
            plan forecasts how far from the best its recommendation will be.
        budget: limits of the experiments.

    Raises:
        InfeasibleBudgetError: the budget does not pay for the cheapest experiment;
            `needed` is its price.
        TypeError: `budget` is not an ExperimentBudget, or `subject` none of these.
        ValueError: the settings do not fit the budget, or the campaign has begun.

    Example:
        >>> budget = ExperimentBudget(cost=7.0, costs={"dose": 3.0, "diet": 1.0})
        >>> ranges = {"dose": (0.0, 10.0), "diet": (0.0, 1.0)}
        >>> print(plan({"variables": ranges, "target": "pain"}, budget))
        experiment     cost  at most
        -------------  ----  -------
        dose           3     2
        diet           1     7
        limit: cost 7  7     7
    """
    check_budget(budget, ExperimentBudget)
    # A campaign is begun even for a plan, as this checks the settings against the
    # budget: a plan never contains anything that `apply` would refuse.
    begun = _begin(subject, budget)
    found = make_plan(begun.settings)
    if not isinstance(subject, Campaign) or subject.samples is None:
        return found
    begun.tell_observations(subject.samples)
    return dataclasses.replace(found, regret=begun.forecast_regret())


def apply(
    subject: Subject,
    plan: CampaignPlan,
    *,
    seed: int | None = None,
    policy: Policy | None = None,
) -> Campaign:
    """Begin a campaign within the budget of a plan.

    Args:
        subject: the settings of the campaign, as for `plan`. The observations of a
            `Campaign` are told to the new one.
        plan: the plan.
        seed: seed of all randomness; None for that of the settings.
        policy: a function that chooses the experiments; None for that of the settings.

    Raises:
        TypeError: `subject` or `plan` is not of these classes.
        ValueError: the plan was made for other experiments, or the campaign has begun.
    """
    if not isinstance(plan, CampaignPlan):
        raise TypeError(
            f"got {plan!r:.80}, which is not a CampaignPlan: make one with causal.plan."
        )
    begun = _begin(subject, plan.budget)
    settings = begun.settings
    # Plans are compared by value, so one that was read from JSON fits as well; it does
    # not fit settings that were edited in between.
    if make_plan(settings) != plan:
        raise ValueError(
            "this plan was made for other variables or sets of variables: plan again."
        )
    if seed is not None:
        settings = dataclasses.replace(settings, seed=seed)
    campaign = Campaign.begin(settings, policy=policy or begun.own_policy)
    # Observations belong to the state and not to the settings, so `begin` lacks them.
    if isinstance(subject, Campaign) and subject.samples is not None:
        campaign.tell_observations(subject.samples)
    return campaign


def _begin(subject: Subject, budget: ExperimentBudget) -> Campaign:
    if isinstance(subject, Campaign):
        # Its experiments were paid from another budget; a new one would drop them.
        if subject.experiments:
            raise ValueError(
                f"this campaign has {len(subject.experiments)} experiments already: "
                "plan one that has not begun, or its settings."
            )
        settings = dataclasses.replace(subject.settings, budget=budget)
        return Campaign.begin(settings, policy=subject.own_policy)
    if isinstance(subject, Mapping):
        arguments: dict[str, Any] = {**subject, "budget": budget}
        return Campaign(**arguments)
    raise TypeError(
        f"got {subject!r:.80}, which is not a mapping of arguments or a Campaign."
    )
