"""How many training steps fit in the seconds that there are."""

import bisect
import dataclasses
import math

from frugax.budget import (
    JsonPlan,
    TimeBudget,
    check_budget,
    format_seconds,
    table,
)
from frugax.errors import InfeasibleBudgetError

from .options import check_integer, check_number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(JsonPlan):
    """How many steps will be taken, and where the seconds go.

    Attributes:
        budget: what it was made for.
        steps: steps that fit; >= 1 and <= `wanted_steps`.
        wanted_steps: steps that were asked for.
        step_seconds: what one step takes.
        compile_seconds: what planning and compiling take, once.
        other_seconds: what evaluations and checkpoints take, all together.
    """

    budget: TimeBudget
    steps: int
    wanted_steps: int
    step_seconds: float
    compile_seconds: float
    other_seconds: float

    @property
    def predicted(self) -> float:
        """Seconds from start to end; never more than the budget's."""
        return _total(
            self.steps, self.step_seconds, self.compile_seconds, self.other_seconds
        )

    def __str__(self) -> str:
        rows = [
            ["compile", "1", format_seconds(self.compile_seconds)],
            [
                "steps",
                f"{self.steps} of {self.wanted_steps}",
                format_seconds(self.steps * self.step_seconds),
            ],
            ["other", "", format_seconds(self.other_seconds)],
            ["all", f"within {self.budget}", format_seconds(self.predicted)],
        ]
        return table(["part", "count", "seconds"], rows)


def plan(
    budget: TimeBudget,
    *,
    step_seconds: float,
    compile_seconds: float,
    steps: int,
    other_seconds: float = 0.0,
) -> TrainPlan:
    """How many of `steps` fit in the budget, compilation included.

    Args:
        budget: the seconds there are; without `seconds` every step fits.
        step_seconds: what one step takes; > 0.
        compile_seconds: what planning and compiling take, once; >= 0.
        steps: how many steps are wanted; >= 1.
        other_seconds: what evaluations and checkpoints take, all together; >= 0.

    Raises:
        TypeError: `budget` is none, but text or a number; or a number is none.
        ValueError: a number out of its range.
        InfeasibleBudgetError: not even one step fits.

    Example:
        >>> p = plan(TimeBudget("10s"), step_seconds=2, compile_seconds=3, steps=9)
        >>> p.steps, p.predicted
        (3, 9.0)
    """
    check_budget(budget, TimeBudget)
    check_number("step_seconds", step_seconds, above=0)
    check_number("compile_seconds", compile_seconds, minimum=0)
    check_number("other_seconds", other_seconds, minimum=0)
    check_integer("steps", steps)

    costs = float(step_seconds), float(compile_seconds), float(other_seconds)
    limit = math.inf if budget.seconds is None else budget.seconds
    needed = _total(1, *costs)
    if needed > limit:
        raise InfeasibleBudgetError(
            "training for one step",
            needed=needed,
            limit=limit,
            unit="seconds",
            hint="keep compiled programs with train.use_compile_cache().",
        )
    # A search rather than a quotient: rounding cannot then put it one off.
    fitting = bisect.bisect_right(
        range(2, steps + 1), limit, key=lambda n: _total(n, *costs)
    )
    return TrainPlan(
        budget=budget,
        steps=1 + fitting,
        wanted_steps=steps,
        step_seconds=costs[0],
        compile_seconds=costs[1],
        other_seconds=costs[2],
    )


def _total(steps: int, step_s: float, compile_s: float, other_s: float) -> float:
    return compile_s + other_s + steps * step_s
