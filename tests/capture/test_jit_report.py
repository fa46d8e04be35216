"""The report of a function of `fx.jit`."""

import functools
import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import frugax as fx
from frugax.capture import (
    JitReport,
    ProgramRecord,
)
from frugax.measure import StepTime
from planned_steps import ROWS, WEIGHTS, assert_same, sgd
from refusals import assert_names


def test_a_cause_names_a_few_of_many_changes():
    step = fx.jit(lambda params: jax.tree.map(jnp.sum, params))
    for size in (2, 3):
        step({f"w{i}": jnp.ones(size) for i in range(40)})
    assert_names(step.compiles[1].cause, "params['w0']: float32[2] -> float32[3]", "35")
    assert "w39" not in step.compiles[1].cause


class Doubled:
    def __call__(self, x):
        return 2 * x


def test_a_report_names_the_function_and_its_line():
    line = lambda code: f"{Path(code.co_filename).name}:{code.co_firstlineno}"
    partial = functools.partial(functools.partial(sgd, WEIGHTS))
    for fun, name, code in (
        (sgd, "sgd", sgd.__code__),
        (partial, "sgd", sgd.__code__),
        (Doubled(), "Doubled", Doubled.__call__.__code__),
    ):
        step = fx.jit(fun)
        assert (step.record.name, step.record.place) == (name, line(code))
    made: dict[str, Any] = {}
    exec("def update(w): return w", made)  # as libraries make functions
    assert fx.jit(made["update"]).record.place.startswith(Path(__file__).name)


def test_the_report_is_of_the_program_that_needs_most_of_its_limit():
    step = fx.jit(sgd, memory="60%")
    step(WEIGHTS, ROWS)
    alone = step.report()
    step(WEIGHTS, ROWS[:100])  # the last batch of an epoch
    both = step.report()
    assert both.programs == 2
    assert both.program.memory is not None
    assert alone.program.memory is not None
    needed = [
        r.program.memory.temp_bytes / r.program.plan.budget.limit_bytes
        for r in (alone, both)
    ]
    assert needed[1] >= needed[0]
    watched = fx.jit(sgd)
    watched(WEIGHTS, ROWS)
    largest = watched.report().program.memory
    watched(WEIGHTS, ROWS[:100])
    assert watched.report().program.memory == largest


def test_a_program_too_small_to_plan_does_not_hide_one_that_is_planned():
    step = fx.jit(sgd, memory="60%")
    for rows in (ROWS[:8], ROWS, ROWS[:4]):
        step(WEIGHTS, rows)
    assert step.report().programs == 3
    assert step.report().receipt is not None
    assert step.plan is None  # of the last call


def test_a_program_that_cannot_be_measured_runs_and_the_report_says_why(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("a bug")

    monkeypatch.setattr(fx.measure, "program", fail)
    step = fx.jit(sgd)
    assert_same(step(WEIGHTS, ROWS), jax.jit(sgd)(WEIGHTS, ROWS))
    explanation = step.explain()
    assert (explanation.report.program.memory, explanation.peak) == (None, None)
    assert_names(str(explanation), "sgd", "AssertionError: a bug")


def test_without_a_budget_it_only_watches():
    step = fx.jit(sgd)
    for rows in (512, 512, 256):
        step(WEIGHTS, ROWS[:rows])
    np.testing.assert_array_equal(
        step(WEIGHTS, ROWS)[0], jax.jit(sgd)(WEIGHTS, ROWS)[0]
    )
    report = step.report()
    assert step.plan is None
    assert report.receipt is None
    assert report.calls == 4
    assert len(report.compiles) == 2
    assert report.program.memory.temp_bytes > 0


def test_a_watched_function_holds_no_arrays():
    step = fx.jit(lambda x: x + 1)
    x = jnp.ones(3)
    step(x)
    kept = weakref.ref(x)
    del x
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "cannot tell"), (1.5, "kept"), (3.0, "cannot tell"), (None, "cannot tell")],
)
def test_calls_as_far_apart_as_predicted_keep_the_prediction(seconds, said):
    report = JitReport(
        name="step",
        place="train.py:1",
        calls=9,
        step_seconds=seconds,
        compiles=(),
        programs=1,
        program=ProgramRecord(step_time=StepTime(low=1.0, high=2.0)),
    )
    # Calls that lie further apart hold work of the script; nearer ones did not end.
    assert report.step_time_verdict == said
    assert f"predicted 1 s to 2 s: {said}" in str(report)
