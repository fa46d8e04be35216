"""What a run would need, found out by compiling its step but not training."""

import dataclasses
import time
from pathlib import Path

import jax

from frugax import train
from frugax.budget import format_bytes, format_seconds, table

from ._config import RunConfig
from ._observer import Observer, Silent
from ._prepare import Prepared, prepare
from ._stopwatch import Stopwatch

# Steps that are timed, after one that is not: their fastest is the prediction.
_TIMED_STEPS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """What was found out about a run before it starts.

    Attributes:
        rows: one row of the table for each budget: name, limit, expected.
        details: the rooms' own plans as text.
    """

    rows: tuple[tuple[str, str, str], ...]
    details: tuple[str, ...]

    def __str__(self) -> str:
        summary = table(["budget", "limit", "expected"], [list(r) for r in self.rows])
        return "\n\n".join([*self.details, summary])


def plan(
    config: RunConfig, *, config_folder: Path, observer: Observer | None = None
) -> RunPlan:
    """Plan every budget of a run; nothing is trained and nothing is written.

    The size is planned on the weights as they are initialised; trained weights differ
    a little. Time is judged by a few steps on real batches.

    Args:
        config: the run.
        config_folder: where the user's own module is looked for.
        observer: told about progress.

    Raises:
        InfeasibleBudgetError: a budget cannot be met.
        ConfigError: the task cannot be made.
    """
    observer = observer or Silent()
    watch = Stopwatch()
    train.use_compile_cache()
    ready = prepare(config, config_folder, watch, observer)
    details = [] if ready.step.plan is None else [str(ready.step.plan)]
    rows = [_memory_row(ready)]
    if ready.size is not None:
        size = format_bytes(ready.size.file_bytes)
        rows.append(("model file", str(ready.size.budget), size))
        details.append(str(ready.size))
    observer.stage("timing a few steps")
    seconds = _step_seconds(ready)
    limit = config.budgets.time.seconds if config.budgets.time else None
    expected = watch.total + seconds * config.train.steps
    rows.append(
        (
            "time",
            "-" if limit is None else format_seconds(limit),
            f"{format_seconds(expected)} ({config.train.steps:,} steps of "
            f"{format_seconds(seconds)}, {format_seconds(watch.total)} to start)",
        )
    )
    return RunPlan(rows=tuple(rows), details=tuple(details))


def _memory_row(ready: Prepared) -> tuple[str, str, str]:
    budget, kind = ready.memory, ready.memory_kind
    used, before = ready.step.program.bytes_of(kind), ready.unplanned_bytes
    limit = "-" if budget is None else format_bytes(budget.limit_bytes)
    share = f"{used / before:.0%} of" if before else "beside"
    shown = f"{format_bytes(used)} ({share} the un-planned {format_bytes(before)})"
    return (f"{kind} memory of one step", limit, shown)


def _step_seconds(ready: Prepared) -> float:
    state, best = ready.state, float("inf")
    for i in range(1 + _TIMED_STEPS):
        batch = ready.batch(i)
        begun = time.perf_counter()
        state, metrics = ready.step(state, batch)
        jax.block_until_ready((state, metrics))
        if i:
            best = min(best, time.perf_counter() - begun)
    return best
