import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from frugax import watch
from frugax.budget import TimeBudget, Verdict
from frugax.errors import (
    BudgetExceededError,
    CheckpointError,
    DivergedError,
    InfeasibleBudgetError,
)
from frugax.train import Checkpoints, fit, init_state, make_train_step
from frugax.train.loop import index_batches
from refusals import refuses

OPTIMIZER = optax.adam(0.05)


def loss(params, batch):
    return ((jnp.broadcast_to(params["w"], batch.shape) - batch) ** 2).sum()


def batch_of(index):
    return np.random.default_rng(index).normal(size=3).astype(np.float32)


def start():
    return init_state({"w": jnp.zeros(3)}, OPTIMIZER)


def new_step(**budgets):
    return make_train_step(loss, OPTIMIZER, **budgets)


def bits(state):
    return [np.asarray(x).tobytes() for x in jax.tree.leaves(state)]


def test_the_loop_equals_repeated_steps():
    step, state, losses = new_step(), start(), []
    for i in range(7):
        state, metrics = step(state, batch_of(i))
        losses.append(metrics["loss"])
    result = fit(new_step(), start(), batch_of, steps=7)
    assert bits(result.state) == bits(state)
    assert result.loss == float(losses[-1])
    assert (result.steps, result.stopped_because) == (7, "steps")
    assert result.plan is None
    assert result.receipt.verdict is Verdict.KEPT


def test_resuming_from_a_checkpoint_is_bit_equal_to_never_stopping(tmp_path):
    straight = fit(new_step(), start(), batch_of, steps=60)
    saved = Checkpoints(tmp_path)
    fit(new_step(), start(), batch_of, steps=30, checkpoints=saved)
    state, _ = saved.restore(start())
    rest = fit(new_step(), state, batch_of, steps=60, checkpoints=saved, save_every=20)
    assert rest.steps == 30
    assert bits(rest.state) == bits(straight.state)
    assert saved.steps() == [40, 60]


def test_before_save_runs_before_each_checkpoint(tmp_path):
    saved, seen = Checkpoints(tmp_path), []
    fit(
        new_step(), start(), batch_of, steps=6, checkpoints=saved, save_every=3,
        before_save=lambda: seen.append(saved.latest_step()),
    )  # fmt: skip
    assert seen == [None, 0, 3]
    assert saved.latest_step() == 6


def test_a_state_at_its_last_step_is_not_trained():
    step = new_step()
    first = fit(step, start(), batch_of, steps=5)
    again = fit(step, first.state, batch_of, steps=5)
    assert (again.steps, again.loss, again.stopped_because) == (0, None, "steps")


def test_a_list_of_batches_is_cycled():
    batches = [batch_of(i) for i in range(3)]
    by_list = fit(new_step(), start(), batches, steps=7)
    by_index = fit(new_step(), start(), lambda i: batches[i % 3], steps=7)
    assert bits(by_list.state) == bits(by_index.state)


def test_the_refusal_gives_the_reason_and_the_remedy():
    for wrong in (iter([1]), (i for i in [1]), {"x": 1}, "text"):
        with refuses(TypeError, "batches"):
            index_batches(wrong)
    with refuses(ValueError):
        index_batches([])


def test_on_step_sees_every_step_in_order_with_arrays():
    seen = []
    fit(
        new_step(),
        start(),
        batch_of,
        steps=9,
        on_step=lambda i, metrics, state: seen.append((i, state.step + 0, metrics)),
    )
    assert [i for i, _, _ in seen] == list(range(9))
    assert [int(n) for _, n, _ in seen] == list(range(1, 10))
    assert all(isinstance(m["loss"], jax.Array) for _, _, m in seen)


def test_evaluations_come_first_every_few_steps_and_last():
    result = fit(
        new_step(),
        start(),
        batch_of,
        steps=10,
        evaluate=lambda s: {"norm": jnp.abs(s.params["w"]).sum()},
        evaluate_every=4,
    )
    assert [e.step for e in result.history] == [0, 4, 8, 10]
    assert result.history[0].values == {"norm": 0.0}
    assert all(type(e.values["norm"]) is float for e in result.history)
    seconds = [e.seconds for e in result.history]
    assert seconds == sorted(seconds)


def test_the_ledgers_parts_add_up_to_the_wall(tmp_path):
    began = time.perf_counter()
    result = fit(
        new_step(),
        start(),
        batch_of,
        steps=20,
        evaluate=lambda s: {"zero": 0.0},
        evaluate_every=7,
        checkpoints=Checkpoints(tmp_path),
    )
    wall = time.perf_counter() - began
    ledger = result.ledger
    parts = dataclasses.astuple(ledger)
    assert min(parts) > 0
    assert sum(parts) == pytest.approx(ledger.wall_s)
    # Every lap is counted once, so the sum lies within the call, up to rounding.
    assert ledger.wall_s <= wall + 1e-6
    assert "compile" in str(ledger)


def clocked(monkeypatch, *, step_s, compile_s, evaluate_s=0.0):
    """A step, batches, an evaluation and the fake clock on which they are slow."""
    now = [0.0]
    step = new_step()
    prepare = step.prepare

    def slow_prepare(state, batch):
        now[0] += compile_s
        prepare(state, batch)

    def slow_batch(index):
        now[0] += step_s
        return batch_of(index)

    def slow_evaluate(state):
        now[0] += evaluate_s
        return {"zero": 0.0}

    monkeypatch.setattr(step, "prepare", slow_prepare)
    return step, slow_batch, slow_evaluate, lambda: now[0]


# Whole numbers of eighths are exact in floating point: no rounding to allow for. The
# first batch is made before compiling, and so its step itself takes no time here.
@pytest.mark.parametrize(
    ("limit", "evaluate_s", "steps"),
    [(20.0, 0.0, 120), (20.0, 2.0, 88), (5.5, 0.0, 4), (6.0, 0.25, 4)],
)
def test_it_stops_after_the_last_step_that_fits(monkeypatch, limit, evaluate_s, steps):
    step, batch, evaluate, clock = clocked(
        monkeypatch, step_s=0.125, compile_s=5.0, evaluate_s=evaluate_s
    )
    result = fit(
        step,
        start(),
        batch,
        steps=1000,
        budget=TimeBudget(seconds=limit),
        evaluate=evaluate,
        clock=clock,
    )
    assert (result.stopped_because, result.steps) == ("time", steps)
    assert result.ledger.wall_s <= limit
    assert result.ledger.wall_s + 0.125 > limit
    assert result.receipt.verdict is Verdict.KEPT


def test_the_plan_of_a_time_budget_predicts_the_steps_and_the_seconds(monkeypatch):
    step, batch, evaluate, clock = clocked(
        monkeypatch, step_s=0.125, compile_s=5.0, evaluate_s=1.0
    )
    result = fit(
        step,
        start(),
        batch,
        steps=1000,
        budget=TimeBudget("30s"),
        evaluate=evaluate,
        evaluate_every=10,
        clock=clock,
    )
    assert result.plan is not None
    assert result.plan.predicted <= 30
    assert result.step_seconds == 0.125
    # Evaluations come in whole numbers, the plan spreads them over the steps.
    assert abs(result.plan.steps - result.steps) <= 10
    (spend,) = result.receipt.spends
    assert spend.predicted == result.plan.predicted
    assert spend.measured == result.ledger.wall_s


def test_running_out_of_time_before_the_first_step_is_an_error(monkeypatch):
    step, batch, _, clock = clocked(monkeypatch, step_s=0.125, compile_s=5.0)
    with refuses(InfeasibleBudgetError, unit="seconds") as e:
        fit(step, start(), batch, steps=10, budget=TimeBudget("5s"), clock=clock)
    assert e.value.needed == 5.125


def test_a_compile_budget_holds_inside_the_loop_only():
    step = new_step()
    batches = [np.zeros(3, np.float32), np.zeros((2, 3), np.float32)]
    with refuses(BudgetExceededError, "float32[2,3]", "float32[3]"):
        fit(step, start(), batches, steps=4, budget=TimeBudget(compiles=1))
    before_s = step.compile_seconds
    began = time.perf_counter()
    result = fit(step, start(), batches, steps=4, budget=TimeBudget(compiles=2))
    # The second program is compiled inside the loop: counted, and counted once.
    assert result.ledger.wall_s <= time.perf_counter() - began + 1e-6
    assert result.ledger.compile_s >= step.compile_seconds - before_s
    assert [s.unit for s in result.receipt.spends] == ["compiles"]
    assert step.report().spends == ()


@pytest.mark.parametrize("bad", [0, 5, 13])
def test_a_loss_that_is_not_finite_is_an_error_naming_the_step(tmp_path, bad):
    batches = lambda i: batch_of(i) * (np.float32("nan") if i == bad else np.float32(1))
    saved = Checkpoints(tmp_path)
    with refuses(DivergedError, f"step {bad}", "nan", f"step {bad // 4 * 4}"):
        fit(new_step(), start(), batches, steps=20, checkpoints=saved, save_every=4)
    assert saved.latest_step() == bad // 4 * 4


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    # The gradient of |x|^0.5 at 0 is infinite while the value is finite.
    root = lambda p, b: jnp.sqrt(jnp.abs(p["w"])).sum()
    step = make_train_step(root, OPTIMIZER)
    saved = Checkpoints(tmp_path)
    with refuses(DivergedError, "params['w']"):
        fit(step, start(), batch_of, steps=5, checkpoints=saved, save_every=1)
    assert saved.latest_step() == 0


@pytest.mark.parametrize(("steps", "because"), [(5, "steps"), (3, "past")])
def test_a_state_beyond_the_last_step_is_reported(steps, because):
    state = start()._replace(step=jnp.int32(5))
    result = fit(new_step(), state, batch_of, steps=steps)
    assert (result.steps, result.stopped_because) == (0, because)


def test_stop_is_asked_before_each_step():
    asked = itertools.count()
    result = fit(
        new_step(), start(), batch_of, steps=100, stop=lambda: next(asked) == 6
    )
    assert (result.steps, result.stopped_because) == (6, "stop")


def test_ctrl_c_ends_after_the_running_step_and_saves(tmp_path):
    saved = Checkpoints(tmp_path)

    def press(index, metrics, state):
        if index == 6:
            os.kill(os.getpid(), signal.SIGINT)

    result = fit(
        new_step(), start(), batch_of, steps=100, checkpoints=saved, on_step=press
    )
    assert (result.steps, result.stopped_because) == (7, "interrupted")
    assert saved.latest_step() == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def press_terminate(index, metrics, state):
    if index == 6:
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("is_watched", [False, True])
def test_sigterm_lets_the_step_finish_saves_and_ends_the_process(tmp_path, is_watched):
    saved = Checkpoints(tmp_path / "saved")
    # Without `fit`, SIGTERM would end the process once its run is written.
    watching = watch.run(tmp_path / "run") if is_watched else contextlib.nullcontext()
    with pytest.raises(SystemExit) as e, watching:
        fit(
            new_step(), start(), batch_of, steps=100, checkpoints=saved,
            on_step=press_terminate,
        )  # fmt: skip
    assert e.value.code == 128 + signal.SIGTERM
    assert saved.latest_intact_step() == 7
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_programs_own_sigterm_handler_stays_in_place(tmp_path):
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append(1))
    try:
        result = fit(
            new_step(), start(), batch_of, steps=9, checkpoints=Checkpoints(tmp_path),
            on_step=press_terminate,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (heard, result.stopped_because) == ([1], "steps")


TERMINATED = """
import atexit, jax.numpy as jnp, optax, sys
from frugax import train
atexit.register(print, "closed")
step = train.make_train_step(lambda w, x: ((w - x) ** 2).sum(), optax.sgd(0.1))
saved = train.Checkpoints(sys.argv[1]) if sys.argv[1] else None
told = lambda i, metrics, state: print(i, flush=True)
train.fit(step, step.init(jnp.zeros(2)), lambda i: jnp.ones(2), steps=10**9,
          checkpoints=saved, on_step=told)
print("after fit")
"""


def terminated(folder):
    """The exit of a process that gets a signal while it trains."""
    command = [sys.executable, "-c", TERMINATED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.terminate()
        message = run.stdout.read().splitlines()
    return run.returncode, message[-1:]


@pytest.mark.slow
def test_a_terminated_process_saves_and_has_the_usual_exit_code(tmp_path):
    assert terminated(tmp_path) == (143, ["closed"])
    like = init_state(jnp.zeros(2), optax.sgd(0.1))
    saved = Checkpoints(tmp_path)
    assert int(saved.restore(like)[0].step) == saved.latest_step() != 0


def test_the_second_ctrl_c_raises():
    def press(index, metrics, state):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(new_step(), start(), batch_of, steps=100, on_step=press)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_fit_works_outside_the_main_thread():
    results = []
    run = lambda: results.append(fit(new_step(), start(), batch_of, steps=3))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results[0].steps == 3


def test_starting_in_the_folder_of_another_run_is_refused_first(tmp_path):
    saved = Checkpoints(tmp_path)
    fit(new_step(), start(), batch_of, steps=5, checkpoints=saved)
    step = new_step()
    with refuses(CheckpointError, 0):
        fit(step, start(), batch_of, steps=9, checkpoints=saved)
    assert step.compiles == 0


def test_a_donated_state_is_refused_with_a_remedy():
    step, state = new_step(), start()
    result = fit(step, state, batch_of, steps=2)
    with refuses(ValueError):
        fit(step, state, batch_of, steps=4)
    assert fit(step, result.state, batch_of, steps=4).steps == 2


def test_resuming_from_the_latest_intact_checkpoint_replaces_the_damaged_one(tmp_path):
    straight = fit(new_step(), start(), batch_of, steps=10)
    saved = Checkpoints(tmp_path)
    fit(new_step(), start(), batch_of, steps=10, checkpoints=saved, save_every=5)
    (tmp_path / "frugax-10" / "frugax.json").write_text("{")
    state, _ = saved.restore(start(), step=saved.latest_intact_step())
    rest = fit(new_step(), state, batch_of, steps=10, checkpoints=saved)
    assert (rest.steps, bits(rest.state)) == (5, bits(straight.state))
    assert (saved.steps(), saved.find_damaged()) == ([5, 10], {})
    assert bits(saved.restore(start())[0]) == bits(straight.state)


def test_a_damaged_checkpoint_is_not_called_intact(tmp_path):
    saved = Checkpoints(tmp_path)
    nan_at_5 = lambda i: batch_of(i) * np.float32("nan" if i == 5 else 1)

    def damage(index, metrics, state):
        if index == 5:
            saved.wait()  # it is written in the background
            (tmp_path / "frugax-4" / "frugax.json").write_text("{")

    with refuses(DivergedError, 2):
        fit(
            new_step(), start(), nan_at_5, steps=9, checkpoints=saved, save_every=2,
            on_step=damage,
        )  # fmt: skip


def slow_batches(clock, seconds, asked):
    """Batches that take some seconds of a fake clock, and notes of when they began."""

    def batch(i):
        asked.append(clock())
        clock.now += seconds[i % len(seconds)]
        return batch_of(i)

    return batch


class FakeClock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("prefetch", [0, 1, 3])
@pytest.mark.parametrize(
    ("batch_s", "limit_s", "steps"),
    [(0.9, 2.0, 2), (0.6, 1.5, 2), (1.5, 2.0, 1), (2.0, 3.0, 1), (1.2, 5.0, 4)],
)
def test_no_batch_begins_that_cannot_end_in_time(batch_s, limit_s, steps, prefetch):
    clock, asked = FakeClock(), []
    batches = slow_batches(clock, [batch_s], asked)
    result = fit(
        new_step(), start(), batches, steps=100, budget=TimeBudget(seconds=limit_s),
        clock=clock, prefetch=prefetch,
    )  # fmt: skip
    # In a thread, the fake clock may run ahead of the loop.
    assert result.steps == steps if prefetch == 0 else 1 <= result.steps <= steps
    assert result.stopped_because == "time"
    assert max(asked) + batch_s <= limit_s
    assert all(s.verdict is Verdict.KEPT for s in result.receipt.spends)


def apply_if_finite_step(**options):
    optimizer = optax.apply_if_finite(optax.adam(1e-2), 5)
    return make_train_step(loss, optimizer, **options)


def nan_at(*steps):
    return lambda i: batch_of(i) * np.float32("nan" if i in steps else 1)


def test_a_step_that_the_optimiser_skips_does_not_end_training(tmp_path):
    step, saved = apply_if_finite_step(), Checkpoints(tmp_path)
    first = step.init(start().params)
    result = fit(
        step, first, nan_at(3, 4, 9), steps=12, checkpoints=saved, save_every=3
    )
    assert (result.steps, result.skipped) == (12, 3)
    assert np.isfinite(result.state.params["w"]).all()
    assert result.loss is not None
    assert np.isfinite(result.loss)


def test_final_weights_that_are_not_finite_are_refused():
    # The gradient of a norm is NaN at its zero, where the loss is 0.
    step = make_train_step(lambda w, x: jnp.linalg.norm(w - x), optax.sgd(0.1))
    with refuses(DivergedError, "params", "1 steps"):
        fit(step, step.init(jnp.ones(2)), [jnp.ones(2)], steps=1)


def test_skipped_steps_are_limited():
    step = apply_if_finite_step()
    first = lambda: step.init(start().params)
    assert fit(step, first(), nan_at(3, 5), steps=8, max_skipped=2).skipped == 2
    with refuses(DivergedError, "step 5", "max_skipped=1"):
        fit(step, first(), nan_at(3, 5), steps=8, max_skipped=1)
    with refuses(ValueError, "max_skipped", -1):
        fit(step, first(), nan_at(3), steps=8, max_skipped=-1)
    # The optimiser itself allows five in a row.
    with refuses(DivergedError, "params['w']"):
        fit(step, first(), nan_at(*range(2, 20)), steps=20)
