"""One run, from its config to its report, in the order in which things happen.

Build the model, plan memory, compile one step (`_prepare.py`); train and watch (here);
compress, evaluate what the file holds, write the receipt (`_finish.py`). Every figure
is measured there or by the room that spent it.
"""

import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from frugax import train, watch
from frugax.budget import OverheadBudget, TimeBudget
from frugax.errors import InfeasibleBudgetError

from ._album import Album
from ._config import RunConfig
from ._finish import Trained, finish
from ._folder import RunFolder, alone_in, claim
from ._observer import Observer, Silent
from ._outcome import Outcome
from ._prepare import Prepared, prepare
from ._stopwatch import Stopwatch

# Of a time budget, what is kept back for compressing, evaluating and writing: training
# stops that much earlier. 10%, at least two seconds, never more than half.
_RESERVE_SHARE, _RESERVE_SECONDS = 0.1, 2.0

# A task's frames are taken about so often at most; the report draws half of them.
_MOST_SHOWN = 24

# What `fit` calls its seconds, and what the report does.
_PARTS = {
    "compile_s": "planning and compiling",
    "run_s": "training steps",
    "host_s": "batches and watching",
    "io_s": "checkpoints",
    "eval_s": "evaluating",
}


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
    """Train, compress and evaluate as a config says, and write the run's folder.

    JAX's compile cache is turned on for the process (`train.use_compile_cache`).

    Args:
        config: what to do.
        folder: where to; a new folder, or with `resume` one that holds a run.
        config_folder: where the user's own module is looked for.
        resume: go on from the newest checkpoint in `folder`.
        observer: told about progress.

    Returns:
        All figures of the run, as written to `receipt.json`.

    Raises:
        InfeasibleBudgetError: a budget cannot be met.
        BudgetExceededError: the training step would need one compile too many.
        CheckpointError: with `resume`, the checkpoint is damaged or of another run.
        ConfigError: the config asks the impossible, or the folder is in use.
        DivergedError: the loss is no number any more; the run can be resumed.
        OutputError: the folder cannot be written to.
        InterruptedRunError: Ctrl-C while training; the run can be resumed.
        KeyboardInterrupt: Ctrl-C at another time.
    """
    observer = observer or Silent()
    stopwatch = Stopwatch()
    train.use_compile_cache()
    with contextlib.ExitStack() as held:
        with contextlib.ExitStack() as until_ready:
            if not resume:
                until_ready.enter_context(claim(folder, config, config_folder))
            held.enter_context(alone_in(folder))
            ready = prepare(config, config_folder, stopwatch, observer)
        try:
            trained = _train(config, folder, ready, stopwatch, observer, resume=resume)
        except (InfeasibleBudgetError, KeyboardInterrupt):
            if not train.Checkpoints(folder.checkpoints).latest_step():
                shutil.rmtree(folder.path)  # not one step was taken: nothing to keep
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
        with stopwatch.on("checkpoints"):
            damaged = checkpoints.damaged()
            # None is sound: restoring the newest says what is wrong with it.
            sound = [s for s in checkpoints.steps() if s not in damaged]
            step = max(sound, default=checkpoints.latest_step())
            state, _ = checkpoints.restore(like=state, step=step)
        notes += [
            f"The checkpoint of step {step:,} was damaged ({why}); it was passed over."
            for step, why in damaged.items()
        ]
    start = int(state.step)
    journal = _journal(config, folder, start, stopwatch)
    begun = stopwatch.total
    notes += _note_changed_loss(folder, ready, resume=resume)
    if resume:
        observer.told(f"going on after step {start:,}")
    observer.stage("training")
    overhead = config.budgets.overhead or OverheadBudget(share=0.01)
    watcher = watch.Watcher(journal, overhead)
    album = None
    if ready.show is not None:
        apart = max(1, config.train.steps // _MOST_SHOWN)
        album = Album(ready.show, watcher, journal, apart=apart)
    shown = 0.0

    def show(done: int) -> None:
        latest = {k: v for k, v in watcher.latest.items() if k != "seconds"}
        observer.training(done, config.train.steps, latest)

    def on_step(
        number: int, metrics: Mapping[str, jax.Array], now_state: train.TrainState
    ) -> None:
        nonlocal shown
        now = time.perf_counter()
        watcher.record(number + 1, {**metrics, "seconds": stopwatch.total})
        if album is not None:
            album.offer(number + 1, now_state.params)
        if now - shown > 0.1:  # a person reads no more than ten figures a second
            shown = now
            show(number + 1)

    def before_save() -> None:
        # A checkpoint ahead of its journal could not be resumed without a gap.
        watcher.collect()
        journal.flush()

    evaluates = ready.task.evaluate is not None

    def fit(steps: int, budget: TimeBudget | None) -> train.FitResult:
        return train.fit(
            ready.step,
            state,
            ready.task.batches,
            steps=steps,
            budget=budget,
            on_step=on_step,
            evaluate=(lambda s: ready.evaluate(s.params)) if evaluates else None,
            evaluate_every=config.train.evaluate_every if evaluates else None,
            checkpoints=checkpoints,
            save_every=config.train.save_every,
            before_save=before_save,
        )

    with journal:
        if album is not None and start == 0:
            album.take(0, state.params)
        try:
            result = fit(config.train.steps, _time_for_training(config, stopwatch))
        except InfeasibleBudgetError as e:
            if e.unit != "seconds":
                raise
            if start == 0:
                raise _too_little_time(config, stopwatch) from e
            # Earlier parts of this run used the time up: finish with what they made.
            result = dataclasses.replace(fit(start, None), stopped_because="time")
        else:
            if album is not None and result.steps:
                album.take(int(result.state.step), result.state.params)
        finally:
            watcher.finish()  # what is known of a run that failed is worth having
    for part, name in _PARTS.items():
        stopwatch.add(name, getattr(result.ledger, part))
    done = int(result.state.step)
    show(done)
    if result.stopped_because == "interrupted":
        raise InterruptedRunError(done)
    predicted = None
    if result.plan is not None:
        # Compressing takes about as long as planning it did.
        ending = stopwatch.spent.get("planning the model file", 0.0)
        predicted = begun + result.plan.predicted + ending
    return Trained(result, watcher, predicted, tuple(notes))


def _note_changed_loss(
    folder: RunFolder, ready: Prepared, *, resume: bool
) -> list[str]:
    """Remember which program the loss is; when going on, say if it is another one."""
    if not resume:
        folder.remember(loss=ready.loss_fingerprint)
        return []
    if folder.remembered("loss") in (None, ready.loss_fingerprint):
        return []
    return [
        "The loss is not the program that this run began with: its code, or JAX, has "
        "changed since. The numbers are not those of an uninterrupted run."
    ]


def _journal(
    config: RunConfig, folder: RunFolder, start: int, stopwatch: Stopwatch
) -> watch.Journal:
    """The run's journal; when resuming, without what came after the checkpoint."""
    if not folder.journal.exists():
        return watch.Journal.create(folder.journal, meta={"name": config.name})
    journal = watch.Journal.append_to(folder.journal)
    journal.rewind(start)
    earlier = watch.read(folder.journal)
    if len(earlier.steps):
        # Time that an earlier part of this run took counts against the same budget.
        stopwatch.add_earlier(float(np.max(earlier["seconds"])))
    return journal


def _time_for_training(config: RunConfig, stopwatch: Stopwatch) -> TimeBudget | None:
    budget = config.budgets.time
    if budget is None or budget.seconds is None:
        return None
    left = budget.seconds - stopwatch.total - _reserve(budget.seconds)
    # Never zero: whether a step still fits is decided, and refused, by `fit`.
    return TimeBudget(seconds=max(left, 1e-3))


def _reserve(limit: float) -> float:
    return min(max(_RESERVE_SECONDS, _RESERVE_SHARE * limit), limit / 2)


def _too_little_time(config: RunConfig, stopwatch: Stopwatch) -> InfeasibleBudgetError:
    """The error for time that is over before the first step, for the whole run."""
    assert config.budgets.time is not None  # only a limit of seconds leads here
    assert config.budgets.time.seconds is not None
    # What was spent, and the reserve that a limit just above it would have.
    spent = stopwatch.total
    limits = (2 * spent, spent + 2, 1.001 * spent / (1 - _RESERVE_SHARE))
    needed = min(n for n in limits if n - _reserve(n) >= spent)
    return InfeasibleBudgetError(
        "budgets.time: this run, to take one step on this machine now,",
        # A tenth more, in tenths of a second: the next try may be a little slower.
        needed=math.ceil(11 * needed) / 10,
        limit=config.budgets.time.seconds,
        unit="seconds",
        hint="try again: its programs are in the compile cache now.",
    )
