"""`fx.jit`: the function of `jax.jit`, within a memory budget."""

import copy
import functools
import inspect
import pickle
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import frugax as fx
from frugax.train.compiles import CompileLedger
from planned_steps import ROWS, WEIGHTS, assert_planned, assert_same, loss, sgd
from refusals import refuses


def test_a_step_fits_and_gives_the_results_of_jax_jit():
    step = assert_planned(sgd, WEIGHTS, ROWS)
    assert step.plan.budget.limit_bytes == int(0.6 * step.plan.unplanned_bytes)


def test_bytes_limit_everything_that_the_program_holds():
    plain = fx.measure.program(jax.jit(sgd).lower(WEIGHTS, ROWS).compile())
    limit = plain.total_bytes - plain.temp_bytes // 3
    step = fx.jit(sgd, memory=f"{limit}B")
    step(WEIGHTS, ROWS)
    assert step.plan.budget == fx.MemoryBudget(limit_bytes=limit, kind="total")
    assert step.report().program.memory.total_bytes <= limit < plain.total_bytes


def test_a_program_that_fits_stays_as_it_is():
    step = fx.jit(sgd, memory=fx.MemoryBudget("1GiB"))
    np.testing.assert_array_equal(
        step(WEIGHTS, ROWS)[0], jax.jit(sgd)(WEIGHTS, ROWS)[0]
    )
    assert step.plan.gradients == ()
    assert step.plan.predicted == step.plan.unplanned_bytes


def test_the_function_is_traced_once_for_each_signature():
    traces = []

    def counted(w, x):
        traces.append(x.shape)
        return sgd(w, x)

    step = fx.jit(counted, memory="60%")
    for rows in (512, 512, 256, 512, 256):
        step(WEIGHTS, ROWS[:rows])
    assert traces == [(512, 64), (256, 64)]
    assert [c.cause for c in step.compiles] == [
        "the first call",
        "x: float32[512,64] -> float32[256,64]",
    ]
    assert step.report().calls == 5


def test_the_program_that_was_planned_is_the_one_that_runs():
    step = fx.jit(sgd, memory="60%")
    step.lower(WEIGHTS, ROWS)  # plans it
    with CompileLedger() as ledger:
        jax.block_until_ready(step(WEIGHTS, ROWS))
        step(WEIGHTS, ROWS)
        step.report()
    assert ledger.functions["sgd"] == 0


def test_options_of_jax_jit_keep_their_meaning():
    def step(w, x, kind, *, lr, extra=None):
        value, grad = jax.value_and_grad(loss)(w, x)
        assert kind in ("sgd", "none")
        return (w - lr * grad if kind == "sgd" else w), {"loss": value, "extra": extra}

    options = {
        "static_argnums": 2,
        "static_argnames": "extra",
        "donate_argnames": "w",
    }
    ours, theirs = fx.jit(step, memory="60%", **options), jax.jit(step, **options)
    for kind, lr, extra in (("sgd", 0.1, None), ("none", 0.2, None), ("sgd", 0.3, 7)):
        given = WEIGHTS + 0, WEIGHTS + 0
        assert_same(
            ours(given[0], ROWS, kind, lr=lr, extra=extra),
            theirs(given[1], ROWS, kind, lr=lr, extra=extra),
        )
        assert given[0].is_deleted() == given[1].is_deleted()
    assert len(ours.compiles) == 3
    assert "kind: 'sgd' -> 'none'" in ours.compiles[1].cause


@pytest.mark.parametrize("memory", ["1GiB", None])
def test_static_arguments_may_be_any_of_the_positional_ones(memory):
    def slope(w, *rest, lr=1.0):
        return lr * jax.grad(lambda w: jnp.sum(w**2) * rest[0] * rest[1])(w)

    for place in (2, -1):
        step = fx.jit(slope, memory=memory, static_argnums=place)
        assert jnp.allclose(step(WEIGHTS, 1.0, 2), 4 * WEIGHTS)
        assert jnp.allclose(step(WEIGHTS, 1.0, 3), 6 * WEIGHTS)
        assert "args[2]: 2 -> 3" in step.compiles[1].cause
        with refuses(ValueError, "static_argnums"):
            fx.jit(slope, memory=memory, static_argnums=-1)(w=WEIGHTS)


def test_it_decorates_functions_with_and_without_options_and_methods():
    @fx.jit
    def plain(x):
        return x + 1

    @fx.jit(memory="60%", donate_argnums=0)
    def with_options(w, x):
        return sgd(w, x)

    class Trainer:
        @functools.partial(fx.jit, static_argnums=0, memory="60%")
        def step(self, w, x):
            return sgd(w, x)

    assert plain(1) == 2
    assert with_options(WEIGHTS + 0, ROWS)[1] == Trainer().step(WEIGHTS, ROWS)[1]
    assert with_options.__name__ == "with_options"


def test_the_methods_of_a_jitted_function_are_there():
    step, plain = fx.jit(sgd, memory="60%"), jax.jit(sgd)
    shapes = jax.eval_shape(lambda: (WEIGHTS, ROWS))
    assert step.eval_shape(*shapes) == plain.eval_shape(*shapes)
    lowered = step.lower(*shapes)
    compiled = lowered.compile()
    assert_same(compiled(WEIGHTS, ROWS), plain(WEIGHTS, ROWS))
    assert fx.measure.program(compiled).temp_bytes == step.plan.predicted
    assert step.trace(*shapes).out_info == plain.trace(*shapes).out_info
    assert step.eval_shape(*shapes) == plain.eval_shape(*shapes)
    step(WEIGHTS, ROWS)
    step.clear_cache()
    assert step.plan is None
    assert isinstance(step, jax.stages.Wrapped)


@pytest.mark.parametrize("memory", ["60%", None])
def test_its_attributes_are_those_of_a_jitted_function(memory):
    def scaled(w, x, *, size):
        return size * jax.grad(loss)(w, x)

    given = functools.partial(scaled, size=2.0)
    ours: Any = fx.jit(given, memory=memory)
    theirs: Any = jax.jit(given)
    for rows in (512, 512, 256):
        assert_same(ours(WEIGHTS, ROWS[:rows]), theirs(WEIGHTS, ROWS[:rows]))
        assert ours._cache_size() == theirs._cache_size()
    ours.clear_cache()
    assert ours._cache_size() == 0
    assert ours.__name__ == theirs.__name__
    assert ours._fun is ours.__wrapped__ is theirs.__wrapped__
    assert inspect.signature(ours) == inspect.signature(theirs)
    names = [f.lower(WEIGHTS, ROWS).as_text().split()[1] for f in (ours, theirs)]
    assert names[0] == names[1]


def test_it_is_copied_and_pickled_as_a_jitted_function():
    step = fx.jit(sgd, memory="60%")
    step(WEIGHTS, ROWS)
    assert copy.copy(step) is copy.deepcopy({"step": step})["step"] is step
    found = pickle.loads(pickle.dumps(step))
    assert_same(found(WEIGHTS, ROWS), step(WEIGHTS, ROWS))
    assert found.plan == step.plan


def test_inside_another_program_it_is_a_part_of_it():
    inner = fx.jit(sgd, memory="60%")
    looped = lambda w, x: lax.fori_loop(0, 3, lambda _, w: inner(w, x)[0], w)
    expected = lax.fori_loop(0, 3, lambda _, w: sgd(w, ROWS)[0], WEIGHTS)
    assert_same(jax.jit(looped)(WEIGHTS, ROWS), expected)
    assert inner.plan is None
    step = assert_planned(looped, WEIGHTS, ROWS)
    assert len(step.plan.gradients) == 1


@pytest.mark.parametrize(
    "memory", ["60%", pytest.param(None, marks=pytest.mark.thorough)]
)
def test_transformations_and_disabled_jit_give_their_results(memory):
    step = fx.jit(sgd, memory=memory)
    stacked = jnp.stack([WEIGHTS, 2 * WEIGHTS])
    assert_same(
        jax.vmap(step, (0, None))(stacked, ROWS),
        jax.vmap(sgd, (0, None))(stacked, ROWS),
    )
    compiles = len(step.compiles)
    with jax.disable_jit():
        for rows in (ROWS, ROWS[:32]):  # called before or not
            assert_same(step(WEIGHTS, rows), sgd(WEIGHTS, rows))
        assert step.eval_shape(WEIGHTS, ROWS) == jax.eval_shape(sgd, WEIGHTS, ROWS)
    assert len(step.compiles) == compiles


def test_errors_of_the_function_are_its_own():
    def wrong(w, x):
        return jax.grad(lambda w: x @ w)(w)

    with pytest.raises(TypeError) as expected:
        jax.jit(wrong)(WEIGHTS, ROWS)
    with pytest.raises(TypeError) as found:
        fx.jit(wrong, memory="60%")(WEIGHTS, ROWS)
    assert str(found.value) == str(expected.value)
    assert jax.vjp(jnp.sin, 1.0)[0] == jnp.sin(1.0)  # nothing stays replaced


@pytest.mark.parametrize("memory", [None, "60%"])
def test_threads_that_call_it_first_share_one_program(memory):
    start, traced, errors = threading.Barrier(4), [], []

    def train(w):
        traced.append(threading.get_ident())
        return jax.grad(loss)(w, ROWS)

    step = fx.jit(train, memory=memory)

    def call():
        start.wait()
        try:
            step(WEIGHTS)
        except Exception as e:
            errors.append(e)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    report = step.report()
    assert (report.calls, report.program.problem) == (4, "")
    if memory is not None:
        assert len(traced) == len(report.compiles) == 1


@pytest.mark.parametrize(
    ("memory", "error", "named"),
    [
        (5, TypeError, "5"),
        ("40", ValueError, "40"),
        ("0%", ValueError, "0%"),
        ("140%", ValueError, "140%"),
    ],
)
def test_a_wrong_budget_is_refused(memory, error, named):
    with refuses(error, "memory", named):
        fx.jit(sgd, memory=memory)


def test_what_is_not_a_function_is_refused():
    with refuses(TypeError, "7"):
        fx.jit(7)
