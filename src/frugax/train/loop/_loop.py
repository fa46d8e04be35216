"""The training loop behind `fit`: steps, evaluations, checkpoints, clock and signals.

JAX runs ahead of Python. The loop lets it, and waits only now and then (see `Pace`);
at each wait it checks the time, and finds a loss that is not finite.
"""

import contextlib
import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import jax
import numpy as np

from frugax.budget import TimeBudget
from frugax.errors import DivergedError, FrugaxError, InfeasibleBudgetError
from frugax.fileio import is_left_to_default
from frugax.trees import PyTree

from ..checkpoints import Checkpoints
from ..processes import Watchdog, agree_on_min, is_preempted
from ..step import Metrics, TrainState, TrainStep, find_nonfinite_weight
from ._batches import BatchFunction, ResumableIterator, prefetch_batches
from ._evaluation import EarlyStop, Evaluation, read_numbers
from ._plan import TrainPlan, steps_within
from ._timing import LapClock, Pace

StoppedBecause: TypeAlias = Literal[
    "steps", "past", "time", "interrupted", "stop", "early"
]

# Saves by their share of the time are at least this far apart: more often helps nobody.
_MIN_SAVE_INTERVAL_S = 10.0

# Names in a checkpoint: of the evaluations so far, and of an iterator's position.
_EVALUATIONS, _POSITION = "evaluations", "batches"


@dataclasses.dataclass(kw_only=True)
class Loop:
    """One run of `fit`, which documents the options."""

    step: TrainStep
    state: TrainState
    batch_of: BatchFunction
    until: int
    budget: TimeBudget | None
    on_step: Callable[[int, Metrics, TrainState], Any] | None
    evaluate: Callable[[TrainState], Mapping[str, Any]] | None
    evaluate_every: int | None
    checkpoints: Checkpoints | None
    save_every: int | None
    save_share: float | None
    before_save: Callable[[], Any] | None
    stop: Callable[[], bool] | None
    early_stop: EarlyStop | None
    max_skipped: int | None
    prefetch: int
    watchdog: Watchdog | None
    clock: LapClock
    plan: TrainPlan | None

    def __post_init__(self) -> None:
        """Read the step number, and evaluations from before an interruption."""
        self.num_taken = int(self.state.step)
        self.loss: float | None = None
        self.history: list[Evaluation] = []
        self._start = self.num_taken
        self.pace = Pace()
        self._first_batch: list[PyTree] = []  # made for compiling, not used yet
        self._first_batch_s = 0.0  # until its step is counted
        self.num_skipped = 0  # steps whose loss was not finite
        self._pending: list[jax.Array] = []  # losses of steps not waited for yet
        # Duration of the latest evaluation and checkpoint.
        self._evaluate_s = self._save_s = 0.0
        self._last_save_s: float | None = None
        self._saved_step: int | None = None
        # Evaluations from before an interruption are read back, so that a resumed run
        # stops early where an uninterrupted one does, and returns the same history.
        if self.num_taken and self.checkpoints is not None:
            saved = self.checkpoints.read_extra(self.num_taken).get(_EVALUATIONS, ())
            self.history = [Evaluation.from_plain(plain) for plain in saved]
        self._iterator: ResumableIterator | None = None
        if isinstance(self.batch_of, ResumableIterator):
            self._iterator = self.batch_of
            self._restore_iterator(self._iterator)

    def _restore_iterator(self, iterator: ResumableIterator) -> None:
        if self.num_taken == 0 or self.checkpoints is None:
            return
        position = self.checkpoints.read_extra(self.num_taken).get(_POSITION)
        if position is not None:
            iterator.restore(position, self.num_taken)

    def run(self) -> StoppedBecause:
        """Train, and return why training stopped."""
        try:
            return self._run()
        except BaseException:  # also Ctrl-C: the thread that saves must end
            # The first error is the one to report.
            # Not with others, which may never come: this process is about to end.
            if jax.process_count() == 1:
                with contextlib.suppress(FrugaxError):
                    self._finish_save()
            raise

    def _run(self) -> StoppedBecause:
        with prefetch_batches(
            self.batch_of,
            self.prefetch,
            until=self.until,
            # A layout puts each batch in its place itself.
            to_device=self.step.layout is None,
            seconds_left=self._seconds_left,
        ) as self.batch_of:
            self._save_state()
            if self.num_taken < self.until:
                # The batch that the step is compiled for is also trained on: `batch_of`
                # is called once for each step.
                self._first_batch.append(self.batch_of(self.num_taken))
                self._first_batch_s = self.clock.lap("data_s")
                self.step.prepare(self.state, self._first_batch[0])
                self.clock.lap("compile_s")
            self._evaluate_state()
            # In a run of several processes JAX catches SIGTERM; see `is_preempted`.
            saves = self.checkpoints is not None and jax.process_count() == 1
            with _catch_interrupts(also_terminate=saves) as asked:
                because = self._take_steps(asked)
                self._check_weights()
                if because != "interrupted":
                    self._evaluate_state()
                self._save_state()
                self._finish_save()
        return because

    def _take_steps(self, asked: threading.Event) -> StoppedBecause:
        if self._has_stopped_early():
            return "early"
        while self.num_taken < self.until:
            left_s = self._seconds_left()
            self._make_plan(left_s)
            # Every process of a run must take the same steps: the slowest one decides,
            # and a request to stop one of them stops all.
            ahead = agree_on_min(self.pace.steps_ahead(left_s=left_s))
            if jax.process_count() > 1 and (because := self._agree_on_stop(asked)):
                return because
            # Not even one more step is expected to fit.
            if ahead == 0:
                self._check_took_a_step()
                return "time"
            because = self._take(min(ahead, self._steps_to_pause()), asked)
            if because is not None:
                return because
            if _is_due(self.num_taken, self.evaluate_every):
                self._evaluate_state()
                if self._has_stopped_early():
                    return "early"
            if self._is_save_due():
                self._save_state()
        if self.num_taken > self.until:
            return "past"
        return "steps"

    def _has_stopped_early(self) -> bool:
        if self.early_stop is None:
            return False
        # Evaluations at the start of a resumed run, or at an end, would count twice.
        judged = [e for e in self.history if _is_due(e.step, self.evaluate_every)]
        return bool(judged) and self.early_stop.is_due(judged)

    def _take(self, steps: int, asked: threading.Event) -> StoppedBecause | None:
        """Take some steps, then wait for them."""
        because: StoppedBecause | None = None
        compile_s = 0.0
        # The first batch was made before, and tells how long others take.
        before = self.clock.elapsed - self._first_batch_s
        self._first_batch_s = 0.0
        is_single = jax.process_count() == 1
        while because is None and len(self._pending) < steps:
            if is_single and self._pending and self._is_late():
                break
            if is_single:
                because = self._find_stop(asked)
            if because is None:
                compile_s += self._take_one()
        self._wait()
        taken = len(self._pending)
        if taken:
            # A compile inside of these steps says nothing about the next ones.
            seconds = self.clock.elapsed - before - compile_s
            self.pace.record(steps=taken, seconds=seconds)
            self._check_losses()
        return because

    def _is_late(self) -> bool:
        """Return whether another step, with its batch, is not expected in time."""
        left_s = self._seconds_left()
        return left_s is not None and left_s < self.pace.slowest_s

    def _find_stop(self, asked: threading.Event) -> StoppedBecause | None:
        if asked.is_set():
            return "interrupted"
        if self.stop is not None and self.stop():
            return "stop"
        return None

    def _agree_on_stop(self, asked: threading.Event) -> StoppedBecause | None:
        """Return the stop that any process asks for; the same answer in all of them."""
        if is_preempted():
            return "interrupted"
        order: tuple[StoppedBecause | None, ...] = ("interrupted", "stop", None)
        return order[agree_on_min(order.index(self._find_stop(asked)))]

    def _take_one(self) -> float:
        """Dispatch one step; return the seconds that it spent compiling."""
        if self._first_batch:
            batch = self._first_batch.pop()
        else:
            batch = self.batch_of(self.num_taken)
        self.clock.lap("data_s")
        compiled_s = self.step.compile_seconds
        self.state, metrics = self.step(self.state, batch)
        compile_s = self.step.compile_seconds - compiled_s
        self.clock.lap("run_s", of_which=("compile_s", compile_s))
        self._pending.append(metrics["loss"])
        self.num_taken += 1
        if self.on_step is not None:
            self.on_step(self.num_taken - 1, metrics, self.state)
        self.clock.lap("host_s")
        return compile_s

    def _wait(self) -> None:
        jax.block_until_ready(self._pending)
        self.clock.lap("run_s")
        if self.watchdog is not None:
            self.watchdog.beat()

    def _check_losses(self) -> None:
        # One transfer for all losses since the last wait.
        losses = [float(loss) for loss in jax.device_get(self._pending)]
        self._pending.clear()
        first = self.num_taken - len(losses)
        skipped = {n: x for n, x in enumerate(losses, first) if not np.isfinite(x)}
        if skipped:
            self._check_skipped(skipped)
        self.loss = losses[-1]

    def _check_skipped(self, losses: dict[int, float]) -> None:
        """Refuse weights that are not finite, and too many losses that are not."""
        # An optimiser may skip such a step, as `optax.apply_if_finite` does.
        place = find_nonfinite_weight(self.state)
        for number, loss in losses.items():
            text = f"the loss of step {number} (counted from 0) is {loss}"
            if place is not None:
                text += f", and {place} is not finite any more"
                raise DivergedError(self._with_checkpoint(text))
            if self.num_skipped == self.max_skipped:
                text += f", and max_skipped={self.max_skipped} allows no more of these"
                raise DivergedError(self._with_checkpoint(text))
            self.num_skipped += 1

    def _check_weights(self) -> None:
        """Refuse final weights that are not finite: their loss is still to come."""
        if self.num_taken == self._start:
            return
        if (place := find_nonfinite_weight(self.state)) is not None:
            text = f"{place} is not finite after {self.num_taken} steps"
            raise DivergedError(self._with_checkpoint(text))

    def _with_checkpoint(self, text: str) -> str:
        text += ": lower the learning rate, clip the gradients, or look at that batch."
        saved = self.checkpoints and self.checkpoints.latest_intact_step()
        if saved is not None:
            text += f" The checkpoint of step {saved} is intact."
        return text

    def _evaluate_state(self) -> None:
        is_done = self.history and self.history[-1].step == self.num_taken
        if self.evaluate is None or is_done:
            return
        with self._watched("evaluation"):
            values = read_numbers(self.evaluate(self.state))
        self._evaluate_s = self.clock.lap("eval_s")
        self.history.append(Evaluation(self.num_taken, self.clock.elapsed, values))

    def _save_state(self) -> None:
        if self.checkpoints is None or self._is_saved(self.checkpoints):
            return
        with self._watched("checkpoint"):
            if self.before_save is not None:
                self.before_save()
            extra: dict[str, Any] = {}
            if self.history:
                extra[_EVALUATIONS] = [dataclasses.asdict(e) for e in self.history]
            if self._iterator is not None:
                extra[_POSITION] = self._iterator.position(self.num_taken)
            # In the background, but not the first one: a folder that cannot be written
            # is refused before anything is compiled.
            waits = self.num_taken == self._start
            self.checkpoints.save(self.state, extra=extra, wait=waits)
        self._save_s = self.clock.lap("io_s")
        self._last_save_s = self.clock.elapsed
        self._saved_step = self.num_taken

    def _finish_save(self) -> None:
        if self.checkpoints is not None:
            with self._watched("checkpoint"):
                self.checkpoints.wait()
            self.clock.lap("io_s")

    def _is_save_due(self) -> bool:
        if self.save_share is None or self.checkpoints is None:
            return _is_due(self.num_taken, self.save_every)
        since_s = self.clock.elapsed - (self._last_save_s or 0.0)
        # The cost of a save is that of the last one, its part in the background
        # included: on few cores that slows the steps down as well.
        cost_s = max(self._save_s, self.checkpoints.last_write_s)
        apart_s = max(_MIN_SAVE_INTERVAL_S, cost_s / self.save_share)
        return bool(agree_on_min(int(since_s >= apart_s)))

    def _watched(self, phase: str) -> contextlib.AbstractContextManager[None]:
        if self.watchdog is None:
            return contextlib.nullcontext()
        return self.watchdog.phase(phase)

    def _is_saved(self, checkpoints: Checkpoints) -> bool:
        if self._saved_step == self.num_taken:
            return True
        latest = checkpoints.latest_step()
        if latest is None or latest < self.num_taken:
            return False  # the usual case, for which no file is read
        return checkpoints.latest_intact_step() == self.num_taken

    def _steps_to_pause(self) -> int:
        """Return the steps to the next evaluation, checkpoint or the end."""
        periods = [n for n in (self.evaluate_every, self.save_every) if n is not None]
        pauses = [n - self.num_taken % n for n in periods]
        return min([self.until - self.num_taken, *pauses])

    def _seconds_left(self) -> float | None:
        """Return the seconds for steps; the last evaluation and save are set aside."""
        if self.budget is None or self.budget.seconds is None:
            return None
        save_s = self._save_s
        if self.checkpoints is not None:  # the last save is waited for
            save_s = max(save_s, self.checkpoints.last_write_s)
        reserved_s = self._evaluate_s + save_s
        return self.budget.seconds - self.clock.now - reserved_s

    def _make_plan(self, left_s: float | None) -> None:
        """Plan how many steps will fit, as soon as their duration is known."""
        step_s = self.pace.usual_s
        if self.plan is not None or step_s is None or left_s is None:
            return
        # Later evaluations and checkpoints are spread over the steps between them.
        if self.evaluate_every is not None:
            step_s += self._evaluate_s / self.evaluate_every
        # Both estimates are of the latest one; the first evaluation also compiles.
        if self.save_every is not None:
            step_s += self._save_s / self.save_every
        if left_s < step_s:
            return
        assert self.budget is not None  # for the type checker: it has seconds left
        spent = self.clock.to_ledger()
        self.plan = steps_within(
            self.budget,
            step_seconds=step_s,
            compile_seconds=spent.compile_s,
            steps=self.until - self._start,
            other_seconds=spent.eval_s + spent.io_s + self._evaluate_s + self._save_s,
        )

    # Refuse to return a result if the time ended before the first step.
    def _check_took_a_step(self) -> None:
        # A run that took some steps ran out of time in the ordinary way.
        if self.num_taken > self._start:
            return
        # For the type checker: without a limit of seconds every step fits.
        assert self.budget is not None
        assert self.budget.seconds is not None
        raise InfeasibleBudgetError(
            "training, before its first step,",
            needed=self.clock.elapsed + self._evaluate_s + self._save_s,
            limit=self.budget.seconds,
            unit="seconds",
            hint="keep compiled programs with train.use_compile_cache().",
        )


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


# Set an event at the first Ctrl-C within this block; the next acts as usual.
#
# Only the main thread can do this, and a program's own handler of a signal stays in
# place: then the event is never set.
@contextlib.contextmanager
def _catch_interrupts(*, also_terminate: bool) -> Iterator[threading.Event]:
    asked = threading.Event()
    terminated = threading.Event()
    caught: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        interrupt, terminate = map(signal.getsignal, (signal.SIGINT, signal.SIGTERM))
        if interrupt == signal.default_int_handler:
            caught[signal.SIGINT] = interrupt
        if also_terminate and is_left_to_default(terminate):
            caught[signal.SIGTERM] = terminate

    def ask(signum: int, frame: object) -> None:
        asked.set()
        if signum == signal.SIGTERM:
            terminated.set()
        # Python's for Ctrl-C; else the default, in which nothing is finished any more.
        at_once = signal.SIG_DFL if signum == signal.SIGTERM else caught[signum]
        signal.signal(signum, at_once)

    for signum in caught:
        signal.signal(signum, ask)
    try:
        yield asked
    finally:
        for signum, usual in caught.items():
            signal.signal(signum, usual)
    if terminated.is_set():
        raise SystemExit(128 + signal.SIGTERM)
