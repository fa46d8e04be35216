"""Train so many steps, within so many seconds, so that it can go on later.

Here is what the user says and gets; the loop itself is in `_loop.py`.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from frugax.budget import Receipt, Spend, TimeBudget, check_budget
from frugax.trees import PyTree

from ._batches import batches_by_index
from ._check_call import refuse_misuse
from ._checkpoints import Checkpoints
from ._clock import TimeLedger
from ._compile_cache import use_compile_cache_by_default
from ._compiles import CompileLedger
from ._early_stop import EarlyStop
from ._loop import Evaluation, Loop, StoppedBecause
from ._plan import TrainPlan
from ._state import TrainState, refuse_given_away
from ._step import Metrics, TrainStep
from ._watchdog import Watchdog
from .options import check_flag, check_function, check_instance, check_integer


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """A trained state, and how it came about.

    Attributes:
        state: after the last step taken.
        steps: steps that this call took.
        loss: the last one; None if no step was taken.
        history: evaluations in order.
        ledger: where the seconds went.
        stopped_because: `"steps"` all are done, `"past"` the state had taken more
            than `steps` before, `"time"` the next would not fit, `"interrupted"`
            Ctrl-C, `"stop"` the caller's `stop` said so, `"early"` evaluations got no
            better.
        cache_hits: programs that were found on disk instead of compiled.
        plan: what the time budget allowed once a step had been timed; None without a
            limit of seconds, or if no step was timed.
        receipt: time, and the step's memory and compiles, predicted beside measured.
    """

    state: TrainState
    steps: int
    loss: float | None
    history: tuple[Evaluation, ...]
    ledger: TimeLedger
    stopped_because: StoppedBecause
    plan: TrainPlan | None
    receipt: Receipt
    cache_hits: int


def fit(
    step: TrainStep,
    state: TrainState,
    batches: Callable[[int], PyTree] | Sequence[PyTree],
    *,
    steps: int,
    budget: TimeBudget | None = None,
    on_step: Callable[[int, Metrics, TrainState], Any] | None = None,
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
    evaluate_every: int | None = None,
    checkpoints: Checkpoints | None = None,
    save_every: int | None = None,
    before_save: Callable[[], Any] | None = None,
    stop: Callable[[], bool] | None = None,
    early_stop: EarlyStop | None = None,
    prefetch: int = 0,
    compile_cache: bool = True,
    watchdog: Watchdog | bool = True,
) -> FitResult:
    """Train until `state.step` is `steps`, or the budget ends.

    A run that goes on from a restored state takes the same steps on the same batches
    as one that never stopped, and ends bit-equal to it.

    The time budget counts everything from the call to the return, compiling included.
    The loop stops after the last step that is expected to fit, judging by the slowest
    of the last few and leaving time for the last evaluation and checkpoint. What it
    cannot do is stop in the middle of a step or of a compilation.

    Args:
        step: from `make_train_step`.
        state: where to start. Its memory is given away, as by `step`: go on with
            the result's.
        batches: the batch of each step, as a function of the step number, or a list
            to go round. Not an iterator: that cannot be resumed.
        steps: step number to reach, those of earlier runs included; >= 0.
        budget: the seconds and compiles there are.
        on_step: called after each step with its number, counted from 0, its metrics
            and the new state, all still on the device. Reading a value waits for it.
            The state is given away at the next step: do not keep it.
        evaluate: called with a state before the first step, every `evaluate_every`
            steps and at the end; gives named numbers.
        evaluate_every: steps between evaluations; None for the first and last only.
        checkpoints: where the state is saved before the first step, every
            `save_every` steps and at the end. A step that is there is not saved again.
        save_every: steps between checkpoints; None for the first and last only.
        before_save: called before each checkpoint is written, all steps done: write
            out there what must not lag behind it.
        stop: asked before each step whether to stop.
        early_stop: when evaluations that get no better are reason to stop.
        prefetch: batches that are made ahead in a thread. JAX runs ahead of Python, so
            this helps only where making a batch waits for something, such as a disk.
        compile_cache: keep compiled programs on disk for the next run, as
            `use_compile_cache` does, unless JAX's own setting says where already. The
            environment variable `FRUGAX_COMPILE_CACHE=0` turns it off.
        watchdog: end this process, with exit code 75, when training makes no progress,
            as where another process hangs. True: in runs of several processes; False:
            never; one of your own where its patience does not suit.

    With checkpoints, Ctrl-C and SIGTERM let the running steps finish and save the
    state. After Ctrl-C the result is returned. After SIGTERM, if it would have ended
    the process and this is the only one of the run, it ends: by SystemExit, so that
    open files are closed, with exit code 143.

    Raises:
        SystemExit: SIGTERM came; see above.
        ValueError: a number out of its range, `*_every` without what it is for, or
            the state was given away before.
        TypeError: an option is of the wrong kind, `batches` is an iterator, or
            `evaluate` gives something else than numbers; see also `TrainStep`.
        DivergedError: the loss, or a state about to be saved, is not finite.
        InfeasibleBudgetError: the time was over before the first step. `needed` is
            what had been spent by then. Or the batch of a step grew beyond the
            memory budget; see `TrainStep`.
        BudgetExceededError: a batch needs one compile too many; see `TrainStep`.

    Example:
        >>> import jax.numpy as jnp, optax
        >>> from frugax import train
        >>> optimizer = optax.sgd(0.25)
        >>> loss = lambda w, x: ((w - x) ** 2).sum()
        >>> step = train.make_train_step(loss, optimizer)
        >>> state = train.init_state(jnp.zeros(2), optimizer)
        >>> result = train.fit(step, state, [jnp.ones(2)], steps=3)
        >>> print(result.stopped_because, result.state.params)
        steps [0.875 0.875]
    """
    if budget is not None:
        check_budget(budget, TimeBudget)
    check_instance("step", step, TrainStep, example="train.make_train_step(...)")
    refuse_misuse(state, None)
    refuse_given_away(state)
    check_integer("steps", steps, minimum=0)
    check_integer("prefetch", prefetch, minimum=0)
    check_flag("compile_cache", compile_cache)
    if not isinstance(watchdog, bool):
        check_instance(
            "watchdog", watchdog, Watchdog, example="Watchdog(), or True or False"
        )
    if checkpoints is not None:
        check_instance(
            "checkpoints", checkpoints, Checkpoints, example='Checkpoints("folder")'
        )
    if early_stop is not None:
        check_instance("early_stop", early_stop, EarlyStop, example="EarlyStop()")
    for name, function, called in (
        ("on_step", on_step, "on_step(number, metrics, state)"),
        ("evaluate", evaluate, "evaluate(state)"),
        ("before_save", before_save, "before_save()"),
        ("stop", stop, "stop()"),
    ):
        if function is not None:
            check_function(name, function, example=called)
    for name, value in (("evaluate_every", evaluate_every), ("save_every", save_every)):
        if value is not None:
            check_integer(name, value)
    if evaluate_every is not None and evaluate is None:
        raise ValueError("evaluate_every needs evaluate=, the function to call.")
    if save_every is not None and checkpoints is None:
        raise ValueError("save_every needs checkpoints=, the place to save in.")
    if early_stop is not None and evaluate_every is None:
        raise ValueError("early_stop needs evaluate= and evaluate_every=.")
    if compile_cache:
        use_compile_cache_by_default()
    loop = Loop(
        step=step,
        state=state,
        batch_of=batches_by_index(batches),
        until=steps,
        budget=budget,
        on_step=on_step,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        checkpoints=checkpoints,
        save_every=save_every,
        before_save=before_save,
        stop=stop,
        early_stop=early_stop,
        prefetch=prefetch,
        watchdog=(dog := _watchdog(watchdog)),
    )
    start = loop.at
    limit = None if budget is None else budget.compiles
    watching = contextlib.nullcontext() if dog is None else dog
    with step.limit_compiles(limit), CompileLedger() as compiles, watching:
        stopped_because = loop.run()
        spends = step.report().spends
    ledger = loop.clock.ledger()
    if budget is not None and budget.seconds is not None:
        time = Spend(
            name="time of training",
            unit="seconds",
            limit=budget.seconds,
            predicted=None if loop.plan is None else loop.plan.predicted,
            measured=ledger.wall_s,
            source="time.perf_counter() from the call of fit to its return",
        )
        spends = (time, *spends)
    return FitResult(
        state=loop.state,
        steps=loop.at - start,
        loss=loop.loss,
        history=tuple(loop.history),
        ledger=ledger,
        stopped_because=stopped_because,
        plan=loop.plan,
        receipt=Receipt(spends),
        cache_hits=compiles.cache_hits,
    )


def _watchdog(said: Watchdog | bool) -> Watchdog | None:  # noqa: FBT001 - as in fit
    if isinstance(said, bool):
        return Watchdog() if said and jax.process_count() > 1 else None
    return said
