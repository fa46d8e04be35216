"""`run.run`: one config from start to report: prepare, train and watch, finish.

Build the model, plan memory, compile one step (`_prepare.py`); train and watch (here);
compress, evaluate the weights in the file, write the receipt (`_finish.py`). Every
figure is measured there or by the package that spent it.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax import train, watch
from frugax.budget import OverheadBudget, TimeBudget
from frugax.errors import InfeasibleBudgetError, OutputError
from frugax.fileio import make_folder
from frugax.train.processes import agree_on_min, gather, run_on_first

from ._config import RunConfig
from ._context import RunContext
from ._finish import Trained, finish
from ._folder import RunFolder, claim, exclusive_access
from ._ledger import Ledger, Part
from ._observer import Observer, Stage
from ._origin import check_origin
from ._outcome import Outcome
from ._prepare import Checked, Prepared, best_metric, check_task, prepare
from ._snapshots import Snapshots
from ._task_checks import Figures
from ._user_code import user_code

# Saving may take this share of the training time, unless a config says how often.
_SAVE_SHARE = 0.05

# At most about this many snapshots of a task are taken; the report draws half of them.
_MAX_SNAPSHOTS = 24

# The parts of `fit`'s time, as the run counts them.
_PARTS = {
    "compile_s": Part.PLANNING,
    "run_s": Part.TRAINING,
    "data_s": Part.DATA,
    "host_s": Part.WATCHING,
    "io_s": Part.CHECKPOINTS,
    "eval_s": Part.EVALUATING,
}


# Not an Exception, so that `except Exception` around a run does not swallow Ctrl-C.
class InterruptedRunError(KeyboardInterrupt):
    """Ctrl-C: training stopped after a whole step and a checkpoint was saved.

    Attributes:
        step: steps done and saved.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"interrupted after step {step}; a checkpoint was saved")
        self.step = step


def run(
    config: RunConfig,
    folder: RunFolder,
    *,
    config_folder: Path,
    resume: bool = False,
    accept_changes: bool = False,
    ledger: Ledger | None = None,
    observer: Observer | None = None,
) -> Outcome:
    """Train, compress and evaluate by a config, and write the run's folder.

    Several processes that `train.distributed.initialize` joined train one model, and
    the first of them writes the files.

    JAX's compile cache is turned on for the process (`train.use_compile_cache`).

    Args:
        config: the run's config.
        folder: receives the files; a new folder, or with `resume` that of a run; one
            that every process can reach.
        config_folder: searched for the user's own module.
        resume: continue from the newest checkpoint in `folder`.
        accept_changes: continue even if code, data or versions have changed.
        ledger: counts the time, see `start_ledger`; by default from this call on.
        observer: receives progress.

    Returns:
        All figures of the run, as written to `receipt.json`.

    Raises:
        InfeasibleBudgetError: a budget cannot be met.
        BudgetExceededError: the training step would need one compile too many.
        CheckpointError: with `resume`, the checkpoint is damaged or of another run.
        ConfigError: the config is invalid, the task failed, something has changed
            since the run was started, or another process uses the folder.
        DivergedError: the loss is not finite any more; the run can be resumed.
        OutputError: the folder cannot be written to.
        InterruptedRunError: Ctrl-C while training; the run can be resumed.
        KeyboardInterrupt: Ctrl-C at another time.
    """
    is_first = jax.process_index() == 0
    if observer is None or not is_first:
        observer = Observer()
    if ledger is None:
        time = config.budgets.time
        limit = None if time is None else time.seconds
        ledger = Ledger(limit, refuses=not resume)
    try:
        train.use_compile_cache()
    except OutputError as e:  # without it each run compiles anew
        observer.note(f"Compiled programs are not kept: {e}")
    context = RunContext(
        config=config,
        config_folder=config_folder,
        resume=resume,
        ledger=ledger,
        observer=observer,
    )
    discard: Callable[[], None] | None = None
    with contextlib.ExitStack() as held:
        # Until the step is ready, `claim` removes the folder if anything fails. The
        # lock is taken inside of it and held to the end.
        with contextlib.ExitStack() as until_ready:
            checked = check_task(context)
            notes: list[str] = []
            with run_on_first("start of the run") as is_first:
                if is_first and not resume:
                    claimed = claim(folder, config, config_folder)
                    discard = ledger.discard = until_ready.enter_context(claimed)
                if is_first:
                    held.enter_context(exclusive_access(folder))
                    with ledger.measure(Part.FINGERPRINTS):
                        notes = check_origin(
                            folder, checked, accept_changes=accept_changes
                        )
            ready = prepare(checked)
            ledger.discard = None
        held.enter_context(ledger.stop_hanging())
        try:
            trained = _train(folder, ready, notes)
        except BaseException as e:
            # There is nothing to keep without a checkpoint, and after a refusal or
            # Ctrl-C nothing without a step.
            is_early = isinstance(e, InfeasibleBudgetError | KeyboardInterrupt)
            step = train.Checkpoints(folder.checkpoints).latest_step()
            if discard is not None and (step is None or (is_early and step == 0)):
                discard()
            raise
        return finish(folder, ready, trained)


def _train(folder: RunFolder, ready: Prepared, notes: list[str]) -> Trained:
    checked, context = ready.checked, ready.checked.run
    config, ledger, observer = context.config, context.ledger, context.observer
    settings = config.train
    keep = settings.keep if isinstance(settings.keep, int) else 2
    checkpoints = train.Checkpoints(folder.checkpoints, keep=keep)
    state, layout = checked.state, ready.step.layout
    if context.resume and checkpoints.latest_step() is not None:
        with ledger.measure(Part.CHECKPOINTS):
            state, damage = _restore(checkpoints, state, layout)
        notes = [*notes, *damage]
    elif layout is not None:
        # The state of a layout is made in its place, not moved there.
        state = layout.place_state(state)
    start = int(state.step)
    journal = _journal(config, folder, start, ledger)
    started = ledger.total
    if context.resume:
        observer.note(f"resuming after step {start:,}")
    observer.stage(Stage.TRAINING)
    # Watching is limited in every run; without a budget in the config it is only left
    # out of the receipt.
    overhead = config.budgets.overhead or OverheadBudget(share=0.01)
    watcher = watch.Watcher(journal, overhead)
    snapshots = None
    if ready.show is not None and _is_shown_here(layout):
        apart = max(1, settings.steps // _MAX_SNAPSHOTS)
        snapshots = Snapshots(ready.show, watcher, journal, min_steps_apart=apart)
    last_shown = 0.0

    def show(done: int) -> None:
        latest = {k: v for k, v in watcher.latest.items() if k != "seconds"}
        observer.training(done, settings.steps, latest)

    def on_step(
        number: int, metrics: Mapping[str, jax.Array], state: train.TrainState
    ) -> None:
        nonlocal last_shown
        now = time.perf_counter()
        # `fit` counts steps from 0; people and checkpoints count those that are done.
        watcher.record(number + 1, {**metrics, "seconds": ledger.total})
        if snapshots is not None:
            snapshots.offer(number + 1, *gather((state.params, state.carried)))
        if now - last_shown > 0.1:  # a person reads no more than ten figures a second
            last_shown = now
            show(number + 1)

    def before_save() -> None:
        # A checkpoint ahead of its journal could not be resumed without a gap.
        watcher.collect()
        journal.flush()

    options = _fit_options(folder, checked)

    def fit(steps: int, budget: TimeBudget | None) -> train.FitResult:
        return train.fit(
            ready.step,
            state,
            checked.batch_of,
            steps=steps,
            budget=budget,
            on_step=on_step,
            checkpoints=checkpoints,
            before_save=before_save,
            prefetch=settings.prefetch,
            **options,
        )

    with journal:
        if snapshots is not None and start == 0:
            # Now or never: the first step is donated these arrays.
            snapshots.record(0, *gather((state.params, state.carried)))
        try:
            # A batch of another shape is traced anew, and a callback may fail late.
            with user_code("loss", is_mixed=True):
                result = fit(settings.steps, _time_for_training(ledger))
        except InfeasibleBudgetError as e:
            # Only time can have been used up by earlier parts of the run.
            if e.unit != "seconds":
                raise
            if start == 0:
                raise ledger.refusal("training") from e
            # Earlier parts of this run used up the time: finish with their weights.
            result = fit(start, None)
            if start < settings.steps:
                result = dataclasses.replace(result, stopped_because="time")
        else:
            if snapshots is not None and result.steps:
                final = result.state
                arrays = gather((final.params, final.carried))
                snapshots.record(int(final.step), *arrays)
        finally:
            watcher.finish()  # the records of a failed run are worth having
    for name, part in _PARTS.items():
        ledger.add(part, getattr(result.ledger, name))
    done = int(result.state.step)
    show(done)
    if result.stopped_because == "interrupted":
        raise InterruptedRunError(done)
    predicted = None
    if result.plan is not None:
        # Compressing takes about as long as planning it took.
        ending = ledger.spent.get(Part.PLANNING_FILE, 0.0)
        predicted = started + result.plan.predicted + ending
    return Trained(result, watcher, predicted, tuple(notes))


def _fit_options(folder: RunFolder, checked: Checked) -> dict[str, Any]:
    """Return the options of `fit` that a config decides."""
    config = checked.run.config
    settings = config.train
    options: dict[str, Any] = {"save_share": _SAVE_SHARE}
    if settings.save_every is not None:
        options = {"save_every": settings.save_every}
    if checked.task.evaluate is None:
        return options
    best = None
    if settings.keep == "best":
        best = _BestState(config, folder)

    def evaluate(state: train.TrainState) -> Mapping[str, float]:
        figures = checked.evaluator(state)
        if best is not None:
            best.offer(state, figures)
        return figures.values

    options |= {"evaluate": evaluate, "evaluate_every": settings.evaluate_every}
    return options | {"early_stop": settings.early_stop}


class _BestState:
    """Keeps the best evaluated state in a checkpoint of its own."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config = config
        self._checkpoints = train.Checkpoints(folder.best, keep=1)
        step = self._checkpoints.latest_intact_step()
        self._value: float | None = None
        if step is not None:
            self._value = self._checkpoints.read_extra(step)["value"]

    def offer(self, state: train.TrainState, figures: Figures) -> None:
        """Save the state if it is better than the best so far."""
        name, is_higher = best_metric(self._config, figures)
        value = figures.values[name]
        # After a resume the same states come again, and equal the one that is saved.
        is_better = not np.isnan(value)
        if self._value is not None:
            is_better = value > self._value if is_higher else value < self._value
        # All processes save, or none.
        if not agree_on_min(int(is_better)):
            return
        self._value = value
        self._checkpoints.save(state, extra={"metric": name, "value": value})


def _is_shown_here(layout: train.distributed.Layout | None) -> bool:
    """Whether this process has the weights that a task's `show` is given."""
    if jax.process_count() == 1:
        return True
    # Weights that are split would have to be sent, at moments that all agree on.
    return jax.process_index() == 0 and not (layout and layout.splits_weights)


def _restore(
    checkpoints: train.Checkpoints,
    like: train.TrainState,
    layout: train.distributed.Layout | None,
) -> tuple[train.TrainState, list[str]]:
    """Restore the newest intact checkpoint; also describe the damaged ones."""
    if layout is not None:
        # Each process reads only the parts that it will hold.
        shape = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
        like = jax.tree.map(shape, like, layout.state_sharding(like))
    damaged = checkpoints.find_damaged()
    # If all are damaged, restoring the newest raises an error with the reason.
    intact = [s for s in checkpoints.steps() if s not in damaged]
    step = max(intact, default=checkpoints.latest_step())
    state, _ = checkpoints.restore(like=like, step=step)
    return state, [
        f"The checkpoint of step {step:,} is damaged ({why}); it was skipped."
        for step, why in damaged.items()
    ]


def _journal(
    config: RunConfig, folder: RunFolder, start: int, ledger: Ledger
) -> watch.Journal:
    """Open the run's journal; on resume, without the records after the checkpoint."""
    path = folder.journal_of(jax.process_index())
    if not path.exists():
        make_folder(path.parent)
        return watch.Journal.create(path, meta={"name": config.name})
    journal = watch.Journal.append_to(path)
    # Steps after the checkpoint run again, and would be in the journal twice.
    journal.rewind(start)
    earlier = watch.read(path)
    if len(earlier.steps):
        # The time of earlier parts of this run counts against the same budget.
        ledger.add_elapsed(float(np.max(earlier["seconds"])))
    return journal


def _time_for_training(ledger: Ledger) -> TimeBudget | None:
    if ledger.limit_s is None:
        return None
    # Never zero, so that `fit` decides whether a step still fits, and refuses.
    return TimeBudget(seconds=max(ledger.left_s, 1e-3))
