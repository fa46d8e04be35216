"""`watch.plan`: choose how often records are made, to keep an overhead budget.

Between two collections the records stay where the program left them, as device
arrays. A collection (a "drain") has a cost of its own whatever it carries, and each
record adds a little. Summaries are in every call, and a watcher collects a few times a
second: a budget below the cost of these cannot be kept.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from frugax.budget import OverheadBudget, check_budget
from frugax.errors import InfeasibleBudgetError
from frugax.options import check_integer

from ._callback_receiver import ignore_calls
from ._recording_costs import measure_costs
from ._watch_plan import WatchPlan


def plan(
    fn: Callable[..., Any],
    budget: OverheadBudget,
    *,
    example_args: Sequence[Any],
    steps: int,
    seconds: float = 5.0,
    chunk_s: float = 0.005,
    clock: Callable[[], float] = time.perf_counter,
) -> WatchPlan:
    """Measure a function's records and plan how often the budget can pay for them.

    Summaries come first, since they are in every call, then numbers, then frames.
    Frames, and numbers that are not affordable in every call, get a rate that takes
    half of the rest.

    Args:
        fn: a function, or one from `watch.jit`.
        budget: the share of the running time that watching may add.
        example_args: arguments of `fn`, with which it is measured.
        steps: calls of the run; >= 1.
        seconds: total time to measure besides compiling, roughly.
        chunk_s: duration of one turn, roughly.
        clock: a monotonic clock in seconds.

    Raises:
        InfeasibleBudgetError: summaries and the collections cost more than the budget.
            With `needed` as the budget, planning succeeds, if it measures the same
            times.
        TypeError: `fn` is not callable, or `budget` is not an OverheadBudget.
        ValueError: a number is out of its range.
    """
    check_budget(budget, OverheadBudget)
    check_integer("steps", steps)
    timing: dict[str, Any] = {"seconds": seconds, "chunk_s": chunk_s, "clock": clock}
    with ignore_calls():
        draft = measure_costs(fn, example_args, budget, steps, **timing)
    return choose_rates(draft)


def choose_rates(draft: WatchPlan) -> WatchPlan:
    """Choose the rates of a plan of summaries only; see `plan`."""
    budget, steps = draft.budget, draft.steps
    # Whether a plan fits is always decided by the prediction itself, so that rounding
    # cannot make a plan of `needed` exceed it.
    fits = lambda candidate: candidate.predicted <= budget.share
    if not fits(draft):
        raise InfeasibleBudgetError(
            "recording the summaries and collecting them during the run",
            needed=draft.predicted,
            limit=budget.share,
            unit="of the running time (as a share)",
            hint="run more steps, or record fewer summaries.",
        )
    for i, planned in enumerate(draft.records):
        if planned.every:
            continue
        if planned.kind == "numbers" and fits(with_rate := _set_rate(draft, i, 1)):
            draft = with_rate
            continue
        # Half of the rest: something is left for the next kind, and for a run whose
        # times are longer than the measured ones.
        rest_s = (budget.share - draft.predicted) * draft.step_seconds / 2
        # A call that makes frames makes numbers as well: it must be one of theirs.
        base = max(draft.every("numbers"), 1)
        every = steps + 1
        if rest_s > 0 and planned.seconds / rest_s <= steps:
            every = base * max(math.ceil(planned.seconds / rest_s / base), 1)
        if every <= steps and fits(with_rate := _set_rate(draft, i, every)):
            draft = with_rate
    return draft


def _set_rate(draft: WatchPlan, i: int, every: int) -> WatchPlan:
    records = list(draft.records)
    records[i] = dataclasses.replace(records[i], every=every)
    return dataclasses.replace(draft, records=tuple(records))
