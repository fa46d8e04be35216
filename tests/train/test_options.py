"""Wrong options are refused immediately, with name, value and the allowed values."""

import pytest

import forked
from frugax.options import (
    check_choice,
    check_flag,
    check_function,
    check_integer,
    check_number,
    check_path,
)
from refusals import refuses

WHOLE = "must be an integer >= "
# Each call, and how its message begins.
CALLS = {
    "make(loss, sgd, accum='4')": f"accum {WHOLE}1, got '4'.",
    "make(loss, sgd, accum=2.5)": f"accum {WHOLE}1, got 2.5.",
    "make(loss, sgd, accum=True)": f"accum {WHOLE}1, got True.",
    "make(loss, sgd, accum=0)": f"accum {WHOLE}1, got 0.",
    "make(loss, sgd, donate='x')": "donate must be True or False, got 'x'.",
    "make(loss, sgd, clip=-1)": "clip must be a number > 0, got -1.",
    "make(loss, sgd, clip=float('nan'))": "clip must be a number > 0, got nan.",
    "make(loss, sgd, clip='1')": "clip must be a number > 0, got '1'.",
    "make(loss, sgd, precision='fp16')": (
        'precision must be one of "f32", "bf16", "f16", got \'fp16\'.'
    ),
    "make(loss, sgd, compile_budget=1.5)": f"compile_budget {WHOLE}1, got 1.5.",
    "make(loss, sgd, compile_budget=0)": f"compile_budget {WHOLE}1, got 0.",
    "make(loss, sgd, layout='data')": "layout must be of class Layout, such as",
    "make(loss, sgd, budget='1MiB')": (
        "budget must be a MemoryBudget, such as MemoryBudget(\"1MiB\"), got"
    ),
    "make(loss, sgd, budget=TimeBudget('10s'))": (
        "budget must be a MemoryBudget, such as MemoryBudget(\"1MiB\"), got"
    ),
    "make(loss, 1e-3)": (
        "optimizer must be an optax optimiser, such as optax.adam(1e-3), got 0.001."
    ),
    "make(loss, optax.adam)": (
        "optimizer must be an optax optimiser, such as optax.adam(1e-3), got <f"
    ),
    "make(3, sgd)": "loss must be a function, called as loss(model, batch), got 3.",
    "train.init_state(1.0, 1e-3)": (
        "optimizer must be an optax optimiser, such as optax.adam(1e-3), got 0.001."
    ),
    "train.init_state({}, sgd)": "there is nothing to train: the model has no fl",
    "fit(steps=2.5)": f"steps {WHOLE}0, got 2.5.",
    "fit(steps=-1)": f"steps {WHOLE}0, got -1.",
    "fit(steps=1, budget='1s')": (
        "budget must be a TimeBudget, such as TimeBudget(\"10min\"), got '1s'."
    ),
    "fit(steps=1, evaluate_every='1', evaluate=len)": (
        f"evaluate_every {WHOLE}1, got '1'."
    ),
    "fit(steps=1, prefetch='2')": f"prefetch {WHOLE}0, got '2'.",
    "fit(steps=1, checkpoints='/tmp/x')": (
        "checkpoints must be of class Checkpoints, such as "
        "Checkpoints(\"folder\"), got '/tmp/x'."
    ),
    "fit(steps=1, watchdog='no')": "watchdog must be of class Watchdog, such as Watc",
    "fit(steps=1, compile_cache='no')": "compile_cache must be True or False, got 'no'",
    "fit(steps=1, on_step=3)": (
        "on_step must be a function, called as on_step(number, metrics, state), got 3."
    ),
    "fit(steps=1, evaluate=lambda s: 3.0)": (
        'evaluate must return named numbers, such as {"loss": 0.5}, got 3.0.'
    ),
    "fit(steps=1, evaluate=lambda s: {'a': 'b'})": (
        "evaluate must return one number for each name, got 'b' for 'a'."
    ),
    "fit(steps=1, early_stop=3, evaluate=len, evaluate_every=1)": (
        "early_stop must be of class EarlyStop, such as EarlyStop(), got 3."
    ),
    "train.fit(len, state, [1.0], steps=1)": "step must be of class TrainStep, such",
    "train.fit(step, 1.0, [1.0], steps=1)": (
        "state must be a TrainState, got a float: make the first one from your weights "
        "or module with `state = step.init(model)`."
    ),
    "fit(steps=1, early_stop=train.EarlyStop())": "early_stop needs evaluate= and",
    "fit(steps=1, evaluate_every=1)": "evaluate_every needs evaluate=",
    "fit(steps=1, save_every=1)": "save_every needs checkpoints=",
    "fit(steps=1, evaluate_every=0, evaluate=len)": f"evaluate_every {WHOLE}1, got 0.",
    "fit(steps=1, save_every=0, checkpoints=train.Checkpoints('x'))": (
        f"save_every {WHOLE}1, got 0."
    ),
    "fit(steps=1, prefetch=-1)": f"prefetch {WHOLE}0, got -1.",
    "train.EarlyStop(patience=2.5)": f"patience {WHOLE}1, got 2.5.",
    "train.EarlyStop(patience=0)": f"patience {WHOLE}1, got 0.",
    "train.EarlyStop(min_delta='0')": "min_delta must be a finite number >= 0, got '0'",
    "train.EarlyStop(better='low')": (
        'better must be one of "lower", "higher", got \'low\'.'
    ),
    "train.Checkpoints(None)": "folder must be a path, such as 'runs/one', got None.",
    "train.Checkpoints('x', keep='2')": f"keep {WHOLE}1, got '2'.",
    "train.Checkpoints('x', keep=0)": f"keep {WHOLE}1, got 0.",
    "train.steps_within('1s', step_seconds=1, compile_seconds=1, steps=1)": (
        "budget must be a TimeBudget, such as TimeBudget(\"10min\"), got '1s'."
    ),
    "train.steps_within(TimeBudget('1s'), step_seconds='1', compile_seconds=1, steps=1"
    ")": (
        "step_seconds must be a finite number > 0, got '1'."
    ),
    "train.steps_within(TimeBudget('1s'), step_seconds=0.0, compile_seconds=1, steps=1"
    ")": (
        "step_seconds must be a finite number > 0, got 0.0."
    ),
    "train.steps_within(TimeBudget('1s'), step_seconds=1, compile_seconds=-1, steps=1"
    ")": (
        "compile_seconds must be a finite number >= 0, got -1."
    ),
    "train.plan(step, '1s', state=state, batch=1.0, steps=1)": (
        "budget must be a TimeBudget, such as TimeBudget(\"10min\"), got '1s'."
    ),
    "train.plan(TimeBudget('1s'), step, state=state, batch=1.0, steps=1)": (
        "budget must be a TimeBudget, such as TimeBudget(\"10min\"), got <fr"
    ),
    "train.plan(step, TimeBudget('1s'), state=state, batch=1.0, steps=0)": (
        f"steps {WHOLE}1, got 0."
    ),
    "train.apply(step, 3, state=state, batches=[1.0])": (
        "plan must be of class TrainPlan, such as train.plan(...), got 3."
    ),
    "step(None, 1.0)": (
        "state must be a TrainState, got None: make the first one from your weights or "
        "module with `state = step.init(model)`."
    ),
    "step((state, {}), 1.0)": (
        "state must be a TrainState, got a tuple that holds one: step returns two "
        "values, so write `state, metrics = step(state, batch)`."
    ),
    "step(1.0, state)": (
        "state and batch are swapped: write step(state, batch)."
    ),
    "train.Checkpoints('x').save(1.0)": "state must be a TrainState, got a float: make",
}  # fmt: skip

BEFORE = """
import optax
from frugax import MemoryBudget, TimeBudget, train
make, loss, sgd = train.make_train_step, lambda p, b: p * b, optax.sgd(0.1)
step = make(loss, sgd)
state = step.init(1.0)
layout = train.distributed.Layout.over((1,))
fit = lambda **options: train.fit(step, step.init(1.0), [1.0], **options)
"""


def test_options_are_checked_without_a_type_checker():
    # In its own process: in this one every call is type-checked before it is made.
    code = BEFORE + "".join(
        f"try: {call}\nexcept (TypeError, ValueError) as e: print(e)\n"
        f"else: print('nothing')\n"
        for call in CALLS
    )
    out = forked.python(code).stdout
    for (call, begins), said in zip(CALLS.items(), out.splitlines(), strict=True):
        assert said.startswith(begins), f"{call}: {said}"


@pytest.mark.parametrize(
    ("check", "value", "kind"),
    [
        (lambda v: check_integer("n", v), 2.0, TypeError),
        (lambda v: check_integer("n", v, minimum=3), 2, ValueError),
        (lambda v: check_number("n", v), float("inf"), ValueError),
        (lambda v: check_number("n", v), 1j, TypeError),
        (lambda v: check_flag("n", v), 1, TypeError),
        (lambda v: check_choice("n", v, ["a"]), ["a"], ValueError),
        (lambda v: check_function("n", v, example="n()"), "n", TypeError),
        (lambda v: check_path("n", v), "a\0b", ValueError),
    ],
)
def test_wrong_kinds_are_type_errors_and_wrong_sizes_value_errors(check, value, kind):
    with refuses(kind, "n"):
        check(value)


def test_numbers_of_numpy_are_numbers():
    import numpy as np

    check_integer("n", np.int64(2), minimum=2)
    check_number("n", np.float32(0.5), above=0)
    check_number("n", float("inf"), allow_infinite=True)
