"""`train.fit` and `apply`: train for some steps within a time budget, resumable."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from frugax.budget import Receipt, Spend, TimeBudget, check_budget
from frugax.options import (
    check_flag,
    check_function,
    check_instance,
    check_integer,
    check_number,
)

from ..checkpoints import Checkpoints
from ..compiles import CompileLedger, use_compile_cache_by_default
from ..processes import Watchdog
from ..step import (
    Metrics,
    TrainState,
    TrainStep,
    check_call,
    check_is_state,
    check_not_donated,
)
from ._batches import index_batches
from ._evaluation import EarlyStop, Evaluation
from ._loop import Loop, StoppedBecause
from ._plan import TrainPlan
from ._timing import LapClock, TimeLedger


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """A trained state and the record of its training.

    Attributes:
        state: the state after the last step taken.
        steps: number of steps that this call took.
        step_seconds: median over the last waits for the device of the seconds from one
            step to the next, with its batch and `on_step`; None before the third wait.
        loss: the last loss; None if no step was taken.
        skipped: number of steps whose loss was not finite, although the weights were.
        history: evaluations in order; where a checkpoint was resumed, also those before
            it.
        ledger: seconds of each part.
        stopped_because: `"steps"` all are done, `"past"` the state had taken more than
            `steps` before, `"time"` the next step would not fit, `"interrupted"`
            Ctrl-C, `"stop"` the caller's `stop` returned True, `"early"` evaluations
            stopped improving.
        cache_hits: programs found on disk instead of compiled.
        plan: the plan given to `apply`, or the one made once a step had been timed;
            None without a limit of seconds, or if no step was timed.
        receipt: time, and the step's memory and compiles, predicted beside measured.
    """

    state: TrainState
    steps: int
    step_seconds: float | None
    loss: float | None
    skipped: int
    history: tuple[Evaluation, ...]
    ledger: TimeLedger
    stopped_because: StoppedBecause
    plan: TrainPlan | None
    receipt: Receipt
    cache_hits: int


def fit(
    step: TrainStep,
    state: TrainState,
    batches: Any,
    *,
    steps: int,
    budget: TimeBudget | None = None,
    on_step: Callable[[int, Metrics, TrainState], Any] | None = None,
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None = None,
    evaluate_every: int | None = None,
    checkpoints: Checkpoints | None = None,
    save_every: int | None = None,
    save_share: float | None = None,
    before_save: Callable[[], Any] | None = None,
    stop: Callable[[], bool] | None = None,
    early_stop: EarlyStop | None = None,
    max_skipped: int | None = None,
    prefetch: int = 0,
    compile_cache: bool = True,
    watchdog: Watchdog | bool = True,
    plan: TrainPlan | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> FitResult:
    """Train until `state.step` is `steps`, or the budget ends.

    A run resumed from a restored state takes the same steps on the same batches as one
    that never stopped, and ends bit-equal to it.

    The time budget covers everything from the call to the return, compiling included.
    The loop stops after the last step that is expected to fit, judging by the slowest
    of the last few and leaving time for the last evaluation and checkpoint. It cannot
    stop in the middle of a step or of a compilation.

    Args:
        step: the result of `make_train_step`.
        state: the state to start from. `step` donates its memory: continue with the
            result's state.
        batches: the batch of each step, as a function of the step number; a list, or
            anything with a length and items, to cycle through; or an iterator with
            `get_state` and `set_state`, as those of grain, whose position goes into
            the checkpoints. Other iterators are refused: they cannot be resumed.
        steps: step number to reach, earlier runs included; >= 0.
        budget: seconds and compiles.
        on_step: called after each step with its number, counted from 0, its metrics and
            the new state, all still on the device. Reading a value waits for it. The
            next step donates the state: do not keep it.
        evaluate: called with a state before the first step, every `evaluate_every`
            steps and at the end; returns named numbers.
        evaluate_every: steps between evaluations; None for the first and last only.
        checkpoints: where the state is saved before the first step, every `save_every`
            steps and at the end. A step that is already saved is not saved again.
        save_every: steps between checkpoints; None for the first and last only.
        save_share: instead of `save_every`, save as often as that takes at most this
            share of the time, in (0, 1), and at most every ten seconds.
        before_save: called before each checkpoint is written, with all steps done; it
            should write out data that must not lag behind the checkpoint.
        stop: called before each step; returns whether to stop.
        early_stop: when to stop because evaluations no longer improve.
        max_skipped: steps whose loss may be infinite or NaN while the weights stay
            finite, as with `optax.apply_if_finite` or float16; None for any number.
        prefetch: number of batches made ahead in a thread, which also moves them to the
            device. JAX runs ahead of Python, so this helps only if making a batch waits
            for something, such as a disk.
        compile_cache: keep compiled programs on disk for the next run, as
            `use_compile_cache` does, unless JAX has a cache folder already. The
            environment variable `FRUGAX_COMPILE_CACHE=0` switches it off.
        watchdog: end this process with exit code 75 when training makes no progress,
            for example because another process hangs. True: in runs of several
            processes; False: never; or a watchdog of your own.
        plan: the plan to hold the time against; see `apply`. By default one is made
            once steps were timed.
        clock: returns the time in seconds; for tests.

    With checkpoints, Ctrl-C and SIGTERM let the running steps finish and save the
    state. After Ctrl-C the result is returned. After SIGTERM, if it would have ended
    the process and the run has only this one, the process ends by SystemExit, so that
    open files are closed, with exit code 143.

    Raises:
        SystemExit: SIGTERM came; see above.
        ValueError: a number is out of its range, an `*_every` lacks its counterpart, or
            the state was donated before.
        TypeError: an option is of the wrong kind, `batches` is an iterator, or
            `evaluate` returns something other than numbers; see also `TrainStep`.
        DivergedError: weights are not finite any more, or too many losses were not.
        InfeasibleBudgetError: the time ended before the first step; `needed` is the
            time spent by then. Or a batch exceeds the memory budget; see `TrainStep`.
        BudgetExceededError: a batch needs a compile beyond the budget; see `TrainStep`.

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
    check_call(state, None)
    check_not_donated(state)
    check_integer("steps", steps, minimum=0)
    check_integer("prefetch", prefetch, minimum=0)
    if max_skipped is not None:
        check_integer("max_skipped", max_skipped, minimum=0)
    check_flag("compile_cache", compile_cache)
    watchdog_used = None
    if not isinstance(watchdog, bool):
        watchdog_used = watchdog
    elif watchdog and jax.process_count() > 1:
        watchdog_used = Watchdog()
    for name, value, cls, example in (
        ("watchdog", watchdog_used, Watchdog, "Watchdog(), or True or False"),
        ("checkpoints", checkpoints, Checkpoints, 'Checkpoints("folder")'),
        ("early_stop", early_stop, EarlyStop, "EarlyStop()"),
        ("plan", plan, TrainPlan, "train.plan(...)"),
    ):
        if value is not None:
            check_instance(name, value, cls, example=example)
    for name, function, example in (
        ("on_step", on_step, "on_step(number, metrics, state)"),
        ("evaluate", evaluate, "evaluate(state)"),
        ("before_save", before_save, "before_save()"),
        ("stop", stop, "stop()"),
    ):
        if function is not None:
            check_function(name, function, example=example)
    for name, value in (("evaluate_every", evaluate_every), ("save_every", save_every)):
        if value is not None:
            check_integer(name, value)
    if evaluate_every is not None and evaluate is None:
        raise ValueError("evaluate_every needs evaluate=, the function to call.")
    if (save_every, save_share) != (None, None) and checkpoints is None:
        raise ValueError("save_every needs checkpoints=, the place to save in.")
    if save_share is not None:
        check_number("save_share", save_share, above=0)
        if save_every is not None or save_share >= 1:
            raise ValueError(
                f"save_share must be < 1 and without save_every, got {save_share}."
            )
    if early_stop is not None and evaluate_every is None:
        raise ValueError("early_stop needs evaluate= and evaluate_every=.")
    if compile_cache:
        use_compile_cache_by_default()
    # Asked before the loop, which compiles programs that are not compiled yet.
    was_compiled = step.compile_seconds > 0
    loop = Loop(
        step=step,
        state=state,
        batch_of=index_batches(batches),
        until=steps,
        budget=budget,
        on_step=on_step,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        checkpoints=checkpoints,
        save_every=save_every,
        save_share=save_share,
        before_save=before_save,
        stop=stop,
        early_stop=early_stop,
        max_skipped=max_skipped,
        prefetch=prefetch,
        watchdog=watchdog_used,
        clock=LapClock(clock),
        plan=plan,
    )
    start = loop.num_taken
    compile_limit = None if budget is None else budget.compiles
    watched = watchdog_used or contextlib.nullcontext()
    # The report comes before the limit on compiles is lifted, because it lists it.
    with step.limit_compiles(compile_limit), CompileLedger() as compiles, watched:
        stopped_because = loop.run()
        spends = step.report().spends
    ledger = loop.clock.to_ledger()
    if budget is not None and budget.seconds is not None:
        predicted = None if loop.plan is None else loop.plan.predicted
        if plan is not None and was_compiled:
            # `train.plan` compiled this step already, so the time of that is not here.
            predicted = plan.predicted - plan.compile_seconds
        spent = Spend(
            name="time of training",
            unit="seconds",
            limit=budget.seconds,
            predicted=predicted,
            measured=ledger.wall_s,
            source="time.perf_counter() from the call of fit to its return",
        )
        spends = (spent, *spends)
    return FitResult(
        state=loop.state,
        steps=loop.num_taken - start,
        step_seconds=loop.pace.usual_s,
        loss=loop.loss,
        skipped=loop.num_skipped,
        history=tuple(loop.history),
        ledger=ledger,
        stopped_because=stopped_because,
        plan=loop.plan,
        receipt=Receipt(spends),
        cache_hits=compiles.cache_hits,
    )


def apply(
    step: TrainStep,
    plan: TrainPlan,
    *,
    state: TrainState,
    batches: Any,
    **options: Any,
) -> FitResult:
    """Train for the steps of a plan, within its budget.

    Args:
        step: the step that was planned.
        plan: the result of `train.plan`.
        state: the state to start from; see `fit`.
        batches: the batch of each step; see `fit`.
        options: further options of `fit`, such as `evaluate=` or `checkpoints=`.

    Returns:
        The result of `fit`. Its receipt holds the plan's seconds against the measured
        ones, both without compiling if `train.plan` compiled this very step.

    Raises:
        TypeError: `plan` is not a TrainPlan, or `state` is not a TrainState; see also
            `fit`, as for all other errors.
    """
    check_instance("plan", plan, TrainPlan, example="train.plan(...)")
    check_is_state(state)
    steps = int(state.step) + plan.steps
    return fit(
        step, state, batches, steps=steps, budget=plan.budget, plan=plan, **options
    )
