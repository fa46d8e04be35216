"""`fx.planned`: functions that are jitted inside of a block."""

import functools
import threading

import jax
import jax.numpy as jnp
import optax
import pytest

import frugax as fx
from frugax.capture import PlannedFunction, replace_jit
from frugax.jaxprs import intercept_vjp
from planned_steps import ROWS, WEIGHTS, assert_same, loss, sgd


def test_other_threads_and_later_calls_are_not_affected():
    seen, plain_vjp, plain_jit = [], jax.vjp, jax.jit

    def elsewhere():
        jax.grad(jnp.sin)(1.0)
        seen.append(type(jax.jit(jnp.sin)).__name__)

    def count(vjp, *args, **options):
        seen.append("here")
        return vjp(*args, **options)

    with fx.planned("60%"), intercept_vjp(count):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        jax.grad(jnp.sin)(1.0)
        seen.append(type(jax.jit(jnp.sin)).__name__)
    assert seen == ["PjitFunction", "here", "PlannedFunction"]
    assert jax.vjp is plain_vjp
    assert jax.jit is plain_jit


@pytest.mark.parametrize("wrap", ["jit", "pmap"])
def test_a_function_that_is_jitted_again_is_known_as_to_jax(wrap):
    traced = []

    def double(x):
        traced.append(x)
        return 2 * x

    x = jnp.ones((len(jax.devices()), 3))
    with fx.planned("60%"):
        getattr(jax, wrap)(double)(x)
        before = len(traced)
        assert jnp.all(getattr(jax, wrap)(double)(x) == 2)
        assert len(traced) == before
        triple = functools.wraps(double)(lambda x: 3 * x)
        assert jnp.all(getattr(jax, wrap)(triple)(x) == 3)
        donating = getattr(jax, wrap)(double, donate_argnums=0)
        assert jnp.all(donating(x + 1) == 4)


def test_loops_outside_of_jit_and_the_rows_of_a_jitted_step_are_planned():
    made: list[PlannedFunction] = []
    as_before = jax.vmap, jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop

    def make(fun, options):
        budget = fx.MemoryBudget.share("60%")
        made.append(PlannedFunction(fun, budget, options, needs_gradient=False))
        return made[-1]

    def steps(w, xs):
        return jax.lax.scan(sgd, w, xs)

    def turn(_, w):
        return sgd(w, ROWS)[0]

    batches, rows = jnp.stack([ROWS] * 3), jnp.stack([WEIGHTS] * 3)
    until = lambda state: state[0] < 3
    both = lambda state: (state[0] + 1, turn(None, state[1]))
    times = lambda x, n: n * x
    turned = jax.lax.fori_loop(0, 3, turn, WEIGHTS)
    looped, mapped = steps(WEIGHTS, batches), jax.vmap(sgd)(rows, batches)
    with replace_jit(make):
        step = jax.jit(sgd, donate_argnums=0)
        for _ in range(2):
            assert_same(steps(WEIGHTS, batches), looped)
            assert_same(jax.lax.fori_loop(0, 3, turn, WEIGHTS), turned)
            assert_same(jax.lax.while_loop(until, both, (0, WEIGHTS))[1], turned)
            assert_same(jax.vmap(step)(rows + 0, batches), mapped)
        jax.lax.fori_loop(0, jnp.int32(3), turn, WEIGHTS)
        jax.lax.scan(sgd, WEIGHTS, batches, None, True)
        jax.jit(steps)(WEIGHTS, batches)
        static = jax.vmap(jax.jit(times, static_argnums=1), (0, None))
        assert jnp.all(static(rows, 2) == 2 * rows)
    assert [f.record.calls for f in made] == [0, 2, 2, 2, 2, 1, 1, 0]
    assert [len(f.record.compiles) for f in made] == [0, 1, 1, 1, 1, 1, 1, 0]
    donation = made[2].explain().donation
    assert donation is not None
    assert {*donation.possible} == {"init_val"}
    for planned in made[1:7]:
        assert planned.plan is not None
        assert planned.plan.gradients
        assert planned.plan.fits
    loops = jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop
    assert (jax.vmap, *loops) == as_before


def test_what_frugax_jits_to_plan_is_left_alone_but_not_a_training_step():
    with fx.planned("60%"):
        own = fx.remat.fast_convolutions(jnp.sin)
        assert type(own).__name__ == "PjitFunction"
        assert type(jax.jit(inline=True)(jnp.sin)).__name__ == "PlannedFunction"
        planned = train_step_bytes()
    assert planned < 0.61 * train_step_bytes()


def train_step_bytes():
    step = fx.train.make_train_step(loss, optax.sgd(0.1))
    step(step.init(WEIGHTS), ROWS)
    return step.program.temp_bytes
