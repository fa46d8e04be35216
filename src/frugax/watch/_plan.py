"""How often records may be collected, worked out before the run.

Between two collections the records stay where the program left them, as device
arrays. Collecting (a "drain") has a price of its own, whatever it carries, and each
record adds a little. Neither can be avoided by waiting, so a run that is too short for
one drain at its end cannot keep the budget.
"""

import dataclasses
import math

from frugax.budget import (
    JsonPlan,
    OverheadBudget,
    check_budget,
    format_seconds,
    format_share,
    table,
)
from frugax.errors import InfeasibleBudgetError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan(JsonPlan):
    """How often to collect records, and what that will cost.

    Attributes:
        budget: the share this plan was made for.
        steps: steps of the run.
        step_seconds: what one step takes without watching.
        drain_seconds: what one drain takes, besides its records.
        record_seconds: what each record adds.
        every: steps between drains. Every record is kept all the same.
    """

    budget: OverheadBudget
    steps: int
    step_seconds: float
    drain_seconds: float
    record_seconds: float
    every: int

    @property
    def drains(self) -> int:
        """How many drains the run has; the one at its end is counted."""
        return -(-self.steps // self.every)

    @property
    def predicted(self) -> float:
        """Share of the running time that watching adds; <= `budget.share`."""
        return _share(self, self.drains)

    def __str__(self) -> str:
        drain = self.drains * self.drain_seconds
        record = self.steps * self.record_seconds
        run = self.steps * self.step_seconds
        rows = [
            ["drains", f"every {self.every} steps", f"{self.drains}", drain],
            ["records", "every step", f"{self.steps}", record],
            ["both", f"limit {format_share(self.budget.share)}", "", drain + record],
        ]
        return table(
            ["cost", "when", "times", "time", "share"],
            [[*text, format_seconds(s), format_share(s / run)] for *text, s in rows],
        )


def plan(
    budget: OverheadBudget,
    *,
    step_seconds: float,
    drain_seconds: float,
    steps: int,
    record_seconds: float = 0.0,
) -> WatchPlan:
    """Work out how often records may be collected within a budget.

    Args:
        budget: the share of the running time that watching may add.
        step_seconds: what one step takes without watching; > 0.
        drain_seconds: what one drain takes, besides its records; > 0.
        steps: steps of the run; >= 1.
        record_seconds: what each record adds, collected or not; >= 0. The default
            suits metrics that leave the program stacked, many steps in one array.

    Returns:
        The plan that drains most often.

    Raises:
        InfeasibleBudgetError: one drain at the end costs more than the budget. A
            `needed` above 1 cannot be had by any budget: the run is too short.
        TypeError: `budget` is none, but text or a number.
        ValueError: a number out of its range.

    Example:
        >>> print(plan(OverheadBudget("1%"), step_seconds=0.01, drain_seconds=0.0003,
        ...            record_seconds=0.00001, steps=10_000))
        cost     when           times  time    share
        -------  -------------  -----  ------  -----
        drains   every 4 steps  2500   750 ms  0.75%
        records  every step     10000  100 ms  0.1%
        both     limit 1%              850 ms  0.85%
    """
    check_budget(budget, OverheadBudget)
    times = {"step_seconds": step_seconds, "drain_seconds": drain_seconds}
    for name, value in times.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, got {value}.")
    if not 0 <= record_seconds < math.inf:
        raise ValueError(f"record_seconds must be >= 0, got {record_seconds}.")
    if isinstance(steps, bool) or steps < 1:
        raise ValueError(f"steps must be a whole number >= 1, got {steps!r}.")
    made = WatchPlan(
        budget=budget,
        steps=steps,
        step_seconds=float(step_seconds),
        drain_seconds=float(drain_seconds),
        record_seconds=float(record_seconds),
        every=steps,
    )
    if made.predicted > budget.share:
        raise InfeasibleBudgetError(
            "one collection of the records, at the end of the run,",
            needed=made.predicted,
            limit=budget.share,
            unit="of the running time (as a share)",
            hint="run more steps.",
        )
    # Bisection: fewer steps between drains never cost less, rounding included.
    low, high = 0, steps  # `low` is too often, `high` fits
    while high - low > 1:
        middle = (low + high) // 2
        fits = _share(made, -(-steps // middle)) <= budget.share
        low, high = (low, middle) if fits else (middle, high)
    return dataclasses.replace(made, every=high)


def _share(plan: WatchPlan, drains: int) -> float:
    spent = drains * plan.drain_seconds + plan.steps * plan.record_seconds
    return spent / (plan.steps * plan.step_seconds)
