"""`train.plan`: how many steps fit in a time budget, from a measured step."""

import bisect
import dataclasses
import math
import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

from frugax.budget import Plan, TimeBudget, check_budget, format_seconds, table
from frugax.errors import InfeasibleBudgetError
from frugax.options import check_flag, check_instance, check_integer, check_number
from frugax.trees import PyTree

from ..compiles import use_compile_cache_by_default
from ..step import TrainState, TrainStep, check_call, check_not_donated

# An odd number has a median that was measured; the median ignores two outliers of five.
_NUM_TIMED = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainPlan(Plan):
    """How many steps to take, and where the seconds go.

    Attributes:
        budget: the time budget.
        steps: steps that fit; >= 1 and <= `wanted_steps`.
        wanted_steps: steps that were requested.
        step_seconds: seconds of one step.
        compile_seconds: seconds of planning and compiling, once.
        other_seconds: seconds of all evaluations and checkpoints together.
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
        return _total_seconds(
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
    step: TrainStep,
    budget: TimeBudget,
    *,
    state: TrainState,
    batch: PyTree,
    steps: int,
    other_seconds: float = 0.0,
    compile_cache: bool = True,
    clock: Callable[[], float] = time.perf_counter,
) -> TrainPlan:
    """Compile and time a step, and plan how many steps fit in the budget.

    The step is compiled for this state and batch, run once to warm up, and timed a few
    times; the median counts. Pass the plan to `apply`, which trains within it.

    Args:
        step: the result of `make_train_step`.
        budget: seconds and compiles; without `seconds` every step fits.
        state: the state to start from. A copy of it is used, so it stays yours.
        batch: a batch of the usual shapes.
        steps: number of steps wanted; >= 1.
        other_seconds: seconds of all evaluations and checkpoints together; >= 0.
        compile_cache: keep the compiled program on disk; see `fit`.
        clock: returns the time in seconds; for tests.

    Raises:
        TypeError: `budget` is not a TimeBudget, `step` is not a TrainStep, or an option
            is of the wrong kind; see also `TrainStep.prepare`.
        ValueError: a number is out of its range, or the state was donated before.
        InfeasibleBudgetError: not even one step fits; `needed` was measured.
        BudgetExceededError: the step needs a compile beyond the budget.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from frugax import train
        >>> loss = lambda w, x: ((w - x) ** 2).sum()
        >>> step = train.make_train_step(loss, optax.sgd(0.25))
        >>> state, batch = step.init(jnp.zeros(2)), jnp.ones(2)
        >>> plan = train.plan(
        ...     step, TimeBudget("60s"), state=state, batch=batch, steps=3
        ... )
        >>> plan.steps
        3
        >>> result = train.apply(step, plan, state=state, batches=[batch])
        >>> print(result.state.params)
        [0.875 0.875]
    """
    check_budget(budget, TimeBudget)
    check_instance("step", step, TrainStep, example="train.make_train_step(...)")
    check_call(state, batch)
    check_not_donated(state)
    check_integer("steps", steps)
    check_number("other_seconds", other_seconds, minimum=0)
    check_flag("compile_cache", compile_cache)
    if compile_cache:
        use_compile_cache_by_default()
    # Steps donate their input. `jnp.array` copies, and keeps an array's sharding.
    copy = jax.block_until_ready(jax.tree.map(jnp.array, state))
    with step.limit_compiles(budget.compiles):
        started = clock()
        step.prepare(copy, batch)
        compile_seconds = clock() - started
        step_seconds = _time_steps(step, copy, batch, budget, clock)
    return steps_within(
        budget,
        step_seconds=step_seconds,
        compile_seconds=compile_seconds,
        steps=steps,
        other_seconds=other_seconds,
    )


def _time_steps(
    step: TrainStep,
    state: TrainState,
    batch: PyTree,
    budget: TimeBudget,
    clock: Callable[[], float],
) -> float:
    """Return the median seconds of a few steps after a warm-up."""
    times: list[float] = []
    started = clock()
    limit = _limit_seconds(budget)
    for i in range(_NUM_TIMED + 1):
        before = clock()
        state, metrics = step(state, batch)
        # JAX dispatches asynchronously: without waiting this would time Python alone.
        jax.block_until_ready((state, metrics))
        seconds = clock() - before
        # The first step also pays for buffers, thread pools and lazy loading.
        if i > 0:
            times.append(seconds)
        # Where steps are slow, planning must not use up the time it plans for.
        if times and clock() - started > limit:
            break
    # A step between two ticks of the clock takes no time, which no plan can divide by.
    return max(statistics.median(times), 1e-9)


def steps_within(
    budget: TimeBudget,
    *,
    step_seconds: float,
    compile_seconds: float,
    steps: int,
    other_seconds: float = 0.0,
) -> TrainPlan:
    """Plan how many of `steps` fit in the budget, given their cost in seconds.

    Args:
        budget: the time budget; without `seconds` every step fits.
        step_seconds: seconds of one step; > 0.
        compile_seconds: seconds of planning and compiling, once; >= 0.
        steps: number of steps wanted; >= 1.
        other_seconds: seconds of all evaluations and checkpoints together; >= 0.

    Raises:
        TypeError: `budget` is not a TimeBudget, or an argument is not a number.
        ValueError: a number is out of its range.
        InfeasibleBudgetError: not even one step fits.

    Example:
        >>> plan = steps_within(
        ...     TimeBudget("10s"), step_seconds=2, compile_seconds=3, steps=9
        ... )
        >>> plan.steps, plan.predicted
        (3, 9.0)
    """
    check_budget(budget, TimeBudget)
    check_number("step_seconds", step_seconds, above=0)
    check_number("compile_seconds", compile_seconds, minimum=0)
    check_number("other_seconds", other_seconds, minimum=0)
    check_integer("steps", steps)

    costs = float(step_seconds), float(compile_seconds), float(other_seconds)
    limit = _limit_seconds(budget)
    needed = _total_seconds(1, *costs)
    if needed > limit:
        raise InfeasibleBudgetError(
            "training for one step",
            needed=needed,
            limit=limit,
            unit="seconds",
            hint="keep compiled programs with train.use_compile_cache().",
        )
    # A search instead of a quotient, which rounding could put one off.
    more_steps = bisect.bisect_right(
        range(2, steps + 1), limit, key=lambda n: _total_seconds(n, *costs)
    )
    return TrainPlan(
        budget=budget,
        steps=1 + more_steps,
        wanted_steps=steps,
        step_seconds=costs[0],
        compile_seconds=costs[1],
        other_seconds=costs[2],
    )


def _limit_seconds(budget: TimeBudget) -> float:
    return math.inf if budget.seconds is None else budget.seconds


def _total_seconds(
    steps: int, step_seconds: float, compile_seconds: float, other_seconds: float
) -> float:
    return compile_seconds + other_seconds + steps * step_seconds
