"""`run.plan`, `apply`: predict each budget's use without training; run the plan."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax

from frugax import train, trees
from frugax.budget import (
    Plan,
    Spend,
    SpendName,
    amount,
    format_bytes,
    format_seconds,
    table,
)

from ._config import Budgets, RunConfig
from ._context import RunContext
from ._finish import time_spends
from ._folder import RunFolder, free_folder
from ._ledger import Ledger
from ._observer import Observer, Stage
from ._outcome import Outcome
from ._prepare import Prepared, check_task, prepare
from ._run import run

# Steps that are timed, after one that is not: the fastest is the prediction.
_TIMED_STEPS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan(Plan):
    """Predictions for a run before it starts.

    Attributes:
        budget: the limits of the run.
        spends: each limit with its prediction; nothing is measured yet.
        seconds: predicted wall time of the whole run.
        step_seconds: measured time of one training step.
        memory_bytes: of the compiled step, counted as `memory_kind`.
        unplanned_bytes: of the same step without a memory plan.
        memory_kind: `"temp"` or `"total"`.
        details: the packages' own plans as text.
    """

    budget: Budgets
    spends: tuple[Spend, ...]
    seconds: float
    step_seconds: float
    memory_bytes: int
    unplanned_bytes: int
    memory_kind: Literal["temp", "total"]
    details: tuple[str, ...]

    @property
    def predicted(self) -> float:
        """Predicted wall time of the whole run, in seconds."""
        return self.seconds

    def __str__(self) -> str:
        kind = f"{self.memory_kind} memory of one step"
        # Facts without a limit are worth a row too; a limit replaces its row.
        rows = {
            kind: ["-", format_bytes(self.memory_bytes)],
            f"{kind} without a plan": ["-", format_bytes(self.unplanned_bytes)],
            "time of one step": ["-", format_seconds(self.step_seconds)],
            SpendName.TIME: ["-", format_seconds(self.seconds)],
        }
        for s in self.spends:
            rows[s.name] = [amount(s.limit, s.unit), amount(s.predicted, s.unit)]
        summary = table(
            ["budget", "limit", "predicted"], [[k, *v] for k, v in rows.items()]
        )
        return "\n\n".join([*self.details, summary])


def plan(
    config: RunConfig,
    budget: Budgets | None = None,
    *,
    config_folder: Path,
    observer: Observer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RunPlan:
    """Plan every budget of a run; nothing is trained and nothing is written.

    The size is planned on the initial weights; trained weights differ a little. The
    time is extrapolated from a few steps on real batches.

    Args:
        config: the run.
        budget: the limits; None for those of the config.
        config_folder: searched for the user's own module.
        observer: receives progress.
        clock: reads the time in seconds.

    Raises:
        InfeasibleBudgetError: a budget cannot be met.
        ConfigError: the task cannot be built.
    """
    if budget is not None:
        config = dataclasses.replace(config, budgets=budget)
    observer = observer or Observer()
    # Planning states the needs of a run, so its own limit does not stop it.
    ledger = Ledger(clock=clock)
    train.use_compile_cache()
    checked = check_task(
        RunContext(
            config=config,
            config_folder=config_folder,
            ledger=ledger,
            observer=observer,
        )
    )
    ready = prepare(checked)
    observer.stage(Stage.TIMING)
    step_seconds = _time_step(ready, clock)
    # Planning builds and compiles all that a run needs before its first step, so its
    # own time stands for that part. The time that a run holds back stands for its end.
    seconds = ledger.total + ledger.reserve_s + step_seconds * config.train.steps
    spends = [
        dataclasses.replace(spend, predicted=spend.measured, measured=None)
        for spend in ready.step.report().spends
        if spend.unit == "bytes"
    ]
    details: list[str] = []
    if ready.step.plan is not None:
        details.append(str(ready.step.plan))
    if ready.size is not None:
        details.append(str(ready.size))
        tree = checked.bound.file_tree(checked.state)
        limit = ready.size.budget.limit_bytes(
            original_bytes=trees.nbytes(tree),
            weights=sum(leaf.size for leaf in jax.tree.leaves(tree)),
        )
        # A limit of the error alone does not limit bytes.
        if limit is not None:
            spends.append(
                Spend(
                    name=SpendName.FILE,
                    unit="bytes",
                    limit=limit,
                    predicted=ready.size.file_bytes,
                    measured=None,
                    source="the weights before training",
                )
            )
    source = f"the fastest of {_TIMED_STEPS} steps"
    spends += time_spends(config, predicted=seconds, source=source)
    return RunPlan(
        budget=config.budgets,
        spends=tuple(spends),
        seconds=seconds,
        step_seconds=step_seconds,
        memory_bytes=ready.step.program.bytes_of(ready.memory_kind),
        unplanned_bytes=ready.unplanned_bytes,
        memory_kind=ready.memory_kind,
        details=tuple(details),
    )


def apply(
    config: RunConfig,
    plan: RunPlan,
    *,
    config_folder: Path,
    folder: RunFolder | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Run a config within the budget of a plan.

    Args:
        config: the run.
        plan: made for `config`.
        config_folder: searched for the user's own module.
        folder: receives the files; a new folder below `runs/` by default.
        observer: receives progress.

    Returns:
        The outcome; its `receipt` has every limit with its measured expense.

    Raises:
        InfeasibleBudgetError: a budget cannot be met any more.
        ConfigError: the config is invalid, or another process uses the folder.
    """
    return run(
        # The plan's budgets replace the config's: they are the ones that were shown to
        # fit.
        dataclasses.replace(config, budgets=plan.budget),
        folder or free_folder(Path("runs"), config.name),
        config_folder=config_folder,
        observer=observer,
    )


def _time_step(ready: Prepared, clock: Callable[[], float]) -> float:
    """Time one training step, in seconds."""
    state, best = ready.checked.state, float("inf")
    # The minimum, because other processes can only make a step slower.
    for i in range(1 + _TIMED_STEPS):
        batch = ready.checked.batch_of(i)
        started = clock()
        # The step donates its state, so the next call needs the one that it returns.
        state, metrics = ready.step(state, batch)
        # JAX returns before the work is done; without waiting only the dispatch would
        # count.
        jax.block_until_ready((state, metrics))
        # The first call also loads the program and places the state.
        if i:
            best = min(best, clock() - started)
    return best
