"""The training loop behind `fit`: steps, waits, evaluations, checkpoints, the clock.

JAX runs ahead of Python. The loop lets it, and waits only now and then (`_pace.py`):
there the time is checked and a loss that is not finite is found.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from frugax.budget import TimeBudget
from frugax.errors import DivergedError, InfeasibleBudgetError
from frugax.trees import PyTree

from ._checkpoints import Checkpoints
from ._clock import LapClock
from ._early_stop import EarlyStop
from ._interrupt import asking_first
from ._pace import Pace
from ._plan import TrainPlan, plan
from ._prefetch import ahead
from ._processes import agreed_least, is_preempted
from ._state import TrainState
from ._step import Metrics, TrainStep
from ._watchdog import Watchdog

StoppedBecause: TypeAlias = Literal[
    "steps", "past", "time", "interrupted", "stop", "early"
]


@dataclasses.dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` said about one state.

    Attributes:
        step: steps that the state had taken.
        seconds: when, counted from the start of `fit`.
        values: its answer.
    """

    step: int
    seconds: float
    values: Mapping[str, float]


_EVALUATIONS = "evaluations"  # what a checkpoint calls those that were judged


class Loop:
    """One run of `fit`, which documents the arguments.

    Attributes:
        state: after the last step taken.
        at: how many steps it has taken, those of earlier runs included.
        loss: of the last step taken; None before the first.
        history: evaluations so far.
        clock: where the seconds went so far.
        plan: made once steps were timed, if the budget limits seconds.
    """

    def __init__(
        self,
        *,
        step: TrainStep,
        state: TrainState,
        batch_of: Callable[[int], PyTree],
        until: int,
        budget: TimeBudget | None,
        on_step: Callable[[int, Metrics, TrainState], Any] | None,
        evaluate: Callable[[TrainState], Mapping[str, Any]] | None,
        evaluate_every: int | None,
        checkpoints: Checkpoints | None,
        save_every: int | None,
        before_save: Callable[[], Any] | None,
        stop: Callable[[], bool] | None,
        early_stop: EarlyStop | None,
        prefetch: int,
        watchdog: Watchdog | None,
    ) -> None:
        self.clock = LapClock()
        self.state = state
        self.at = int(state.step)
        self.loss: float | None = None
        self.history: list[Evaluation] = []
        self.plan: TrainPlan | None = None
        self._step, self._batch_of, self._until = step, batch_of, until
        self._budget = budget
        self._on_step, self._stop = on_step, stop
        self._early_stop, self._prefetch = early_stop, prefetch
        self._watchdog = watchdog
        self._evaluate, self._evaluate_every = evaluate, evaluate_every
        self._checkpoints, self._save_every = checkpoints, save_every
        self._before_save = before_save
        self._start = self.at
        self._pace = Pace()
        # What early stopping goes by: also evaluations from before an interruption.
        self._judged: list[Evaluation] = []
        if early_stop is not None and checkpoints is not None:
            told = checkpoints.extra_of(self.at).get(_EVALUATIONS, ())
            self._judged = [Evaluation(**evaluation) for evaluation in told]
        self._first_batch: list[PyTree] = []  # made to compile for, not yet used
        self._running: list[jax.Array] = []  # losses of steps not yet waited for
        # What one evaluation and one checkpoint took, the last time.
        self._evaluate_s = self._save_s = 0.0

    def run(self) -> StoppedBecause:
        """Train, and say why it ended."""
        with ahead(self._batch_of, self._prefetch, until=self._until) as batch_of:
            self._batch_of = batch_of
            return self._run()

    def _run(self) -> StoppedBecause:
        self._save_state()
        if self.at < self._until:
            self._first_batch.append(self._batch_of(self.at))
            self.clock.lap("host_s")
            self._step.prepare(self.state, self._first_batch[0])
            self.clock.lap("compile_s")
        self._evaluate_state()
        # A run of several processes hears of SIGTERM through JAX.
        saves = self._checkpoints is not None and jax.process_count() == 1
        with asking_first(also_terminate=saves) as asked:
            because = self._take_steps(asked)
            if because != "interrupted":
                self._evaluate_state()
            self._save_state()
        return because

    def _take_steps(self, asked: threading.Event) -> StoppedBecause:
        if self._has_stopped_early():
            return "early"
        while self.at < self._until:
            left_s = self._seconds_left()
            self._make_plan(left_s)
            # Every process of a run must take the same steps: the most careful one
            # decides, and what one was asked to do all do.
            ahead = agreed_least(self._pace.steps_ahead(left_s=left_s))
            if jax.process_count() > 1 and (said := self._asked_to_stop(asked)):
                return said
            if ahead == 0:
                self._refuse_no_step()
                return "time"
            because = self._take(min(ahead, self._steps_to_halt()), asked)
            if because is not None:
                return because
            if _due(self.at, self._evaluate_every):
                self._evaluate_state()
                if self._has_stopped_early():
                    return "early"
            if _due(self.at, self._save_every):
                self._save_state()
        return "past" if self.at > self._until else "steps"

    def _has_stopped_early(self) -> bool:
        return (
            self._early_stop is not None
            and bool(self._judged)
            and self._early_stop.is_due(self._judged)
        )

    def _take(self, steps: int, asked: threading.Event) -> StoppedBecause | None:
        """Take so many steps, then wait for them."""
        because: StoppedBecause | None = None
        compiling_s = 0.0
        before = self.clock.elapsed
        alone = jax.process_count() == 1
        while because is None and len(self._running) < steps:
            because = self._wants_to_stop(asked) if alone else None
            if because is None:
                compiling_s += self._take_one()
        self._wait()
        taken = len(self._running)
        if taken:
            seconds = self.clock.elapsed - before - compiling_s
            self._pace.record(steps=taken, seconds=seconds)
            self._look_at_losses()
        return because

    def _wants_to_stop(self, asked: threading.Event) -> StoppedBecause | None:
        if asked.is_set():
            return "interrupted"
        return "stop" if self._stop is not None and self._stop() else None

    def _asked_to_stop(self, asked: threading.Event) -> StoppedBecause | None:
        """What any process of the run wants; the same answer in all of them."""
        if is_preempted():
            return "interrupted"
        order: tuple[StoppedBecause | None, ...] = ("interrupted", "stop", None)
        return order[agreed_least(order.index(self._wants_to_stop(asked)))]

    def _take_one(self) -> float:
        """Dispatch one step; gives the seconds that compiling for it took."""
        made = self._first_batch
        batch = made.pop() if made else self._batch_of(self.at)
        self.clock.lap("host_s")
        compiled_s = self._step.compile_seconds
        self.state, metrics = self._step(self.state, batch)
        compiling_s = self._step.compile_seconds - compiled_s
        self.clock.lap("run_s", of_which=("compile_s", compiling_s))
        self._running.append(metrics["loss"])
        self.at += 1
        if self._on_step is not None:
            self._on_step(self.at - 1, metrics, self.state)
        self.clock.lap("host_s")
        return compiling_s

    def _wait(self) -> None:
        jax.block_until_ready(self._running)
        self.clock.lap("run_s")
        if self._watchdog is not None:
            self._watchdog.beat()

    def _look_at_losses(self) -> None:
        losses = [float(loss) for loss in jax.device_get(self._running)]
        self._running.clear()
        first = self.at - len(losses)
        for number, loss in enumerate(losses, start=first):
            if not np.isfinite(loss):
                raise DivergedError(self._not_finite(number, loss))
        self.loss = losses[-1]

    def _not_finite(self, number: int, loss: float) -> str:
        saved = self._checkpoints and self._checkpoints.latest_sound_step()
        kept = "" if saved is None else f" The checkpoint of step {saved} is sound."
        return (
            f"the loss of step {number} (counted from 0) is {loss}: lower the learning "
            f"rate, clip the gradients, or look at that batch.{kept}"
        )

    def _evaluate_state(self) -> None:
        done = self.history and self.history[-1].step == self.at
        if self._evaluate is None or done:
            return
        with self._during("evaluation"):
            values = _numbers(self._evaluate(self.state))
        self._evaluate_s = self.clock.lap("eval_s")
        self.history.append(Evaluation(self.at, self.clock.elapsed, values))
        # Those at the start of a run that goes on, or at an end, would count twice.
        new = not self._judged or self._judged[-1].step < self.at
        if new and _due(self.at, self._evaluate_every):
            self._judged.append(self.history[-1])

    def _save_state(self) -> None:
        if self._checkpoints is None or self._is_saved(self._checkpoints):
            return
        with self._during("checkpoint"):
            if self._before_save is not None:
                self._before_save()
            told = [dataclasses.asdict(evaluation) for evaluation in self._judged]
            extra = None if self._early_stop is None else {_EVALUATIONS: told}
            self._checkpoints.save(self.state, extra=extra)
        self._save_s = self.clock.lap("io_s")

    def _during(self, kind: str) -> contextlib.AbstractContextManager[None]:
        dog = self._watchdog
        return contextlib.nullcontext() if dog is None else dog.during(kind)

    def _is_saved(self, checkpoints: Checkpoints) -> bool:
        latest = checkpoints.latest_step()
        if latest is None or latest < self.at:
            return False  # the usual case, and no file was read for it
        return checkpoints.latest_sound_step() == self.at

    def _steps_to_halt(self) -> int:
        """Steps to the next evaluation, checkpoint or the end, the first of them."""
        periods = [n for n in (self._evaluate_every, self._save_every) if n is not None]
        return min([self._until - self.at, *(n - self.at % n for n in periods)])

    def _seconds_left(self) -> float | None:
        """Seconds for steps, the last evaluation and checkpoint set aside."""
        if self._budget is None or self._budget.seconds is None:
            return None
        aside = self._evaluate_s + self._save_s
        return self._budget.seconds - self.clock.elapsed - aside

    def _make_plan(self, left_s: float | None) -> None:
        """Say how many steps will fit, as soon as that is known."""
        step_s = self._pace.usual_s
        if self.plan is not None or step_s is None or left_s is None:
            return
        # Later evaluations and checkpoints are spread over the steps between them.
        for each_s, every in (
            (self._evaluate_s, self._evaluate_every),
            (self._save_s, self._save_every),
        ):
            step_s += 0.0 if every is None else each_s / every
        if left_s < step_s:
            return
        assert self._budget is not None  # for the type checker: seconds are left of it
        spent = self.clock.ledger()
        self.plan = plan(
            self._budget,
            step_seconds=step_s,
            compile_seconds=spent.compile_s,
            steps=self._until - self._start,
            other_seconds=spent.eval_s + spent.io_s + self._evaluate_s + self._save_s,
        )

    def _refuse_no_step(self) -> None:
        """Time that is over before the first step is an error, not a result.

        Raises:
            InfeasibleBudgetError: that happened.
        """
        if self.at > self._start:
            return
        # For the type checker: without a limit of seconds every step fits.
        assert self._budget is not None
        assert self._budget.seconds is not None
        raise InfeasibleBudgetError(
            "training, before its first step,",
            needed=self.clock.elapsed + self._evaluate_s + self._save_s,
            limit=self._budget.seconds,
            unit="seconds",
            hint="keep compiled programs with train.use_compile_cache().",
        )


def _numbers(said: object) -> dict[str, float]:
    """What `evaluate` gave, as numbers on the host.

    Raises:
        TypeError: it gave something else than named numbers.
    """
    if not isinstance(said, Mapping):
        raise TypeError(
            'evaluate must give named numbers, such as {"loss": 0.5}, got '
            f"{said!r:.99}."
        )
    wrong = {k: v for k, v in said.items() if isinstance(v, str) or np.ndim(v)}
    for name, value in wrong.items():
        raise TypeError(
            f"evaluate must give one number for each name, got {value!r:.99} for "
            f"{name!r}."
        )
    return {str(k): float(v) for k, v in said.items()}


def _due(at: int, every: int | None) -> bool:
    return every is not None and at % every == 0
