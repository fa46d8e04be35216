"""Run one config from start to report, in order.

Build the model, plan memory, compile one step (`_prepare.py`); train and watch (here);
compress, evaluate the weights in the file, write the receipt (`_finish.py`). Every
figure is measured there or by the room that spent it.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from frugax import train, watch
from frugax.budget import OverheadBudget, TimeBudget
from frugax.errors import InfeasibleBudgetError

from ._config import RunConfig
from ._finish import Trained, finish
from ._folder import RunFolder, claim, exclusive_access
from ._observer import Observer, Silent
from ._outcome import Outcome
from ._prepare import Prepared, prepare
from ._snapshots import Snapshots
from ._stopwatch import Stopwatch

# The part of a time budget that is held back for compressing, evaluating and writing:
# training stops that much earlier. 10%, at least two seconds, never more than half.
_RESERVE_SHARE, _RESERVE_SECONDS = 0.1, 2.0

# At most about this many snapshots of a task are taken; the report draws half of them.
_MAX_SNAPSHOTS = 24

# The parts of `fit`'s time, and their names in the report.
_PARTS = {
    "compile_s": "planning and compiling",
    "run_s": "training steps",
    "host_s": "batches and watching",
    "io_s": "checkpoints",
    "eval_s": "evaluating",
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
    observer: Observer | None = None,
) -> Outcome:
    """Train, compress and evaluate by a config, and write the run's folder.

    JAX's compile cache is turned on for the process (`train.use_compile_cache`).

    Args:
        config: the run.
        folder: receives the files; a new folder, or with `resume` that of a run.
        config_folder: searched for the user's own module.
        resume: continue from the newest checkpoint in `folder`.
        observer: receives progress.

    Returns:
        All figures of the run, as written to `receipt.json`.

    Raises:
        InfeasibleBudgetError: a budget cannot be met.
        BudgetExceededError: the training step would need one compile too many.
        CheckpointError: with `resume`, the checkpoint is damaged or of another run.
        ConfigError: the config is invalid, or another process uses the folder.
        DivergedError: the loss is not finite any more; the run can be resumed.
        OutputError: the folder cannot be written to.
        InterruptedRunError: Ctrl-C while training; the run can be resumed.
        KeyboardInterrupt: Ctrl-C at another time.
    """
    observer = observer or Silent()
    stopwatch = Stopwatch()
    train.use_compile_cache()
    with contextlib.ExitStack() as held:
        # Until the step is ready, `claim` removes the folder if anything fails. The
        # lock is taken inside of it and held to the end.
        with contextlib.ExitStack() as until_ready:
            if not resume:
                until_ready.enter_context(claim(folder, config, config_folder))
            held.enter_context(exclusive_access(folder))
            ready = prepare(config, config_folder, stopwatch, observer)
        try:
            trained = _train(config, folder, ready, stopwatch, observer, resume=resume)
        except (InfeasibleBudgetError, KeyboardInterrupt):
            if not train.Checkpoints(folder.checkpoints).latest_step():
                shutil.rmtree(folder.path)  # no step was taken: nothing to keep
            raise
        return finish(config, folder, ready, trained, stopwatch, observer)


def _train(
    config: RunConfig,
    folder: RunFolder,
    ready: Prepared,
    stopwatch: Stopwatch,
    observer: Observer,
    *,
    resume: bool,
) -> Trained:
    checkpoints = train.Checkpoints(folder.checkpoints)
    state = ready.state
    notes: list[str] = []
    if resume and checkpoints.latest_step() is not None:
        with stopwatch.measure("checkpoints"):
            damaged = checkpoints.find_damaged()
            # If all are damaged, restoring the newest raises an error with the reason.
            intact = [s for s in checkpoints.steps() if s not in damaged]
            step = max(intact, default=checkpoints.latest_step())
            state, _ = checkpoints.restore(like=state, step=step)
        notes += [
            f"The checkpoint of step {step:,} is damaged ({why}); it was skipped."
            for step, why in damaged.items()
        ]
    start = int(state.step)
    journal = _journal(config, folder, start, stopwatch)
    started = stopwatch.total
    notes += _note_changed_loss(folder, ready, resume=resume)
    if resume:
        observer.note(f"resuming after step {start:,}")
    observer.stage("training")
    # Watching is limited in every run; without a budget in the config it is only left
    # out of the receipt.
    overhead = config.budgets.overhead or OverheadBudget(share=0.01)
    watcher = watch.Watcher(journal, overhead)
    snapshots = None
    if ready.show is not None:
        apart = max(1, config.train.steps // _MAX_SNAPSHOTS)
        snapshots = Snapshots(ready.show, watcher, journal, min_steps_apart=apart)
    last_shown = 0.0

    def show(done: int) -> None:
        latest = {k: v for k, v in watcher.latest.items() if k != "seconds"}
        observer.training(done, config.train.steps, latest)

    def on_step(
        number: int, metrics: Mapping[str, jax.Array], state: train.TrainState
    ) -> None:
        nonlocal last_shown
        now = time.perf_counter()
        # `fit` counts steps from 0; people and checkpoints count those that are done.
        watcher.record(number + 1, {**metrics, "seconds": stopwatch.total})
        if snapshots is not None:
            snapshots.offer(number + 1, state.params)
        if now - last_shown > 0.1:  # a person reads no more than ten figures a second
            last_shown = now
            show(number + 1)

    def before_save() -> None:
        # A checkpoint ahead of its journal could not be resumed without a gap.
        watcher.collect()
        journal.flush()

    evaluation: dict[str, Any] = {}
    if ready.task.evaluate is not None:
        evaluation["evaluate"] = lambda state: ready.evaluate(state.params)
        evaluation["evaluate_every"] = config.train.evaluate_every

    def fit(steps: int, budget: TimeBudget | None) -> train.FitResult:
        return train.fit(
            ready.step,
            state,
            ready.task.batches,
            steps=steps,
            budget=budget,
            on_step=on_step,
            **evaluation,
            checkpoints=checkpoints,
            save_every=config.train.save_every,
            before_save=before_save,
        )

    with journal:
        if snapshots is not None and start == 0:
            # Now or never: the first step is donated these arrays.
            snapshots.record(0, state.params)
        try:
            result = fit(config.train.steps, _time_for_training(config, stopwatch))
        except InfeasibleBudgetError as e:
            # Only time can have been used up by earlier parts of the run.
            if e.unit != "seconds":
                raise
            if start == 0:
                raise _too_little_time(config, stopwatch) from e
            # Earlier parts of this run used up the time: finish with their weights.
            result = dataclasses.replace(fit(start, None), stopped_because="time")
        else:
            if snapshots is not None and result.steps:
                snapshots.record(int(result.state.step), result.state.params)
        finally:
            watcher.finish()  # the records of a failed run are worth having
    for part, name in _PARTS.items():
        stopwatch.add(name, getattr(result.ledger, part))
    done = int(result.state.step)
    show(done)
    if result.stopped_because == "interrupted":
        raise InterruptedRunError(done)
    predicted = None
    if result.plan is not None:
        # Compressing takes about as long as planning it took.
        ending = stopwatch.spent.get("planning the model file", 0.0)
        predicted = started + result.plan.predicted + ending
    return Trained(result, watcher, predicted, tuple(notes))


def _note_changed_loss(
    folder: RunFolder, ready: Prepared, *, resume: bool
) -> list[str]:
    """Store the fingerprint of the loss; on resume, note whether it has changed."""
    if not resume:
        folder.write_origin(loss=ready.loss_fingerprint)
        return []
    if folder.read_origin("loss") in (None, ready.loss_fingerprint):
        return []
    return [
        "The loss differs from the one that this run started with: its code, or JAX, "
        "has changed. The numbers are not those of an uninterrupted run."
    ]


def _journal(
    config: RunConfig, folder: RunFolder, start: int, stopwatch: Stopwatch
) -> watch.Journal:
    """Open the run's journal; on resume, without the records after the checkpoint."""
    if not folder.journal.exists():
        return watch.Journal.create(folder.journal, meta={"name": config.name})
    journal = watch.Journal.append_to(folder.journal)
    # Steps after the checkpoint run again, and would be in the journal twice.
    journal.rewind(start)
    earlier = watch.read(folder.journal)
    if len(earlier.steps):
        # The time of earlier parts of this run counts against the same budget.
        stopwatch.add_elapsed(float(np.max(earlier["seconds"])))
    return journal


def _time_for_training(config: RunConfig, stopwatch: Stopwatch) -> TimeBudget | None:
    budget = config.budgets.time
    if budget is None or budget.seconds is None:
        return None
    left = budget.seconds - stopwatch.total - _reserve(budget.seconds)
    # Never zero, so that `fit` decides whether a step still fits, and refuses.
    return TimeBudget(seconds=max(left, 1e-3))


def _reserve(limit: float) -> float:
    return min(max(_RESERVE_SECONDS, _RESERVE_SHARE * limit), limit / 2)


def _too_little_time(config: RunConfig, stopwatch: Stopwatch) -> InfeasibleBudgetError:
    """Build the error for a run whose time is over before the first step."""
    assert config.budgets.time is not None  # only a time limit leads here
    assert config.budgets.time.seconds is not None
    # The smallest limit whose part for training covers the time spent so far.
    spent = stopwatch.total
    limits = (2 * spent, spent + 2, 1.001 * spent / (1 - _RESERVE_SHARE))
    needed = min(n for n in limits if n - _reserve(n) >= spent)
    return InfeasibleBudgetError(
        "budgets.time: this run, to take one step on this machine now,",
        # 10% more, in tenths of a second: the next attempt may be a little slower.
        needed=math.ceil(11 * needed) / 10,
        limit=config.budgets.time.seconds,
        unit="seconds",
        hint="try again: the compile cache has its programs now.",
    )
