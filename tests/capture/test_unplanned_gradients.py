"""Gradients that `fx.jit` leaves as they are, with a reason."""

import functools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, io_callback

import frugax as fx
from frugax.capture import (
    UnplannedWarning,
)
from planned_steps import ROWS, WEIGHTS, assert_same, loss, sgd
from refusals import assert_names, warns


def hessian_products(w, x):
    def find(w, x):
        scaled = lambda w: jnp.array([jnp.mean(jnp.tanh(x @ w) ** 2), w.sum()])
        (value, _), pull, place = jax.vjp(
            lambda w: (scaled(w), x.argmax()), w, has_aux=True
        )
        return pull(jnp.stack([value, 1.0]))[0], place

    def more(v, _):
        (grad, place), (product, _) = jax.jvp(find, (w, x), (v, x))
        return product, (grad, place)

    return lax.scan(more, w, None, length=2)


def exchanged_in_the_loss(w, x):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def step(w, x):
        return jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)

    return jax.shard_map(
        step, mesh=mesh, in_specs=(jax.P(), jax.P("data")), out_specs=jax.P()
    )(w, x)


def by_a_rule_on_devices(w, x):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    double = jax.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (2 * x, None), lambda _, ct: (2 * ct,))
    each = lambda w, x: jax.grad(lambda w: loss(w, double(x @ w)))(w)
    specs: Any = {"in_specs": (jax.P(), jax.P("data")), "out_specs": jax.P()}
    return jax.shard_map(each, mesh=mesh, **specs)(w, x)


def rows_on_devices(w, x):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    each = lambda w, x: jax.vmap(lambda w: jax.grad(loss)(w, x))(w)
    specs: Any = {"in_specs": (jax.P("data"), jax.P()), "out_specs": jax.P("data")}
    return jax.shard_map(each, mesh=mesh, **specs)(jnp.stack([w, 2 * w]), x)


def per_example(w, x):
    return jax.vmap(jax.grad(loss), (None, 0))(w, x[:4, None])


def hessian(w, x):
    return jax.hessian(lambda scale: loss(scale[0] * w, scale[1] * x))(jnp.ones(2))


def by_a_rule_for_reverse_mode(w, x):
    clipped = jax.custom_vjp(lambda rows: rows)
    clipped.defvjp(lambda rows: (rows, None), lambda _, g: (jnp.clip(g, -1, 1),))
    return jax.jvp(jax.grad(lambda w: loss(w, clipped(x @ w))), (w,), (w,))


def jacobian(w, x):
    return jax.jacrev(lambda w: jnp.tanh(x[:3] @ w).sum(1))(w)


def jacobian_of_rows(w, x):
    return jax.vmap(jax.jacrev(lambda row: jnp.tanh(row @ w)[:3]))(x[:5])


def pulled_by_its_printed_value(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    shape = jax.ShapeDtypeStruct((), value.dtype)
    return pull(io_callback(np.sin, shape, value, ordered=True))


def pulled_by_its_gradient(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    return pull(jax.grad(jnp.sin)(value))


def pulled_by_its_pullback(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    (grad,) = pull(jnp.float32(1))
    return value, pull(grad[0, 0])


def pulled_twice(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    return pull(value), pull(2 * value)


def pulled_in_a_loop(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    return lax.fori_loop(0, 3, lambda _, g: g + pull(value)[0], w)


def never_pulled(w, x):
    return jax.vjp(lambda w: loss(w, x), w)[0]


def summed_over_a_name(w, x):
    def one(x):
        return jax.grad(lambda w: lax.psum(loss(w, x), "rows"))(w)

    return jax.vmap(one, axis_name="rows")(x.reshape(2, -1, 64))


def mapped_later(w, x):
    step = jax.jit(lambda w, x: jax.grad(loss)(w, x))
    return jax.vmap(step, (None, 0))(w, x.reshape(2, -1, 64))


def differentiated_later(w, x):
    step = jax.jit(lambda w: w - jax.grad(loss)(w, x))
    return jax.grad(lambda w: loss(step(w), x))(w), jax.jvp(step, (w,), (w,))


def by_a_rule_of_the_step(w, x, *, in_loss=False):
    def differentiate(limit, w):
        clipped = jax.custom_vjp(lambda rows: rows)
        clipped.defvjp(
            lambda rows: (rows, None), lambda _, g: (jnp.clip(g, -limit, limit),)
        )
        return loss(w, clipped(x @ w) * x)

    if in_loss:
        return jax.grad(lambda w: differentiate(x.max() / 1e9, w))(w)
    return jax.grad(functools.partial(differentiate, x.max() / 1e9))(w)


def by_a_rule_of_the_loss(w, x):
    return by_a_rule_of_the_step(w, x, in_loss=True)


def with_checks(w, x):
    def checked(w):
        checkify.check((x < 1e9).all(), "too large")
        return loss(w, x) + 0 * jnp.log(w[0, 0] - w[0, 0])

    errors = checkify.user_checks | checkify.nan_checks
    error, grad = checkify.checkify(jax.grad(checked), errors)(w)
    # Its numbers of the places count on from trace to trace.
    return [x for x in jax.tree.leaves(error) if x.dtype == bool], grad


@pytest.mark.parametrize(
    "fun",
    [
        by_a_rule_of_the_step,
        by_a_rule_of_the_loss,
        with_checks,
        per_example,
        hessian,
        hessian_products,
        by_a_rule_for_reverse_mode,
        jacobian,
        jacobian_of_rows,
        pulled_twice,
        pulled_by_its_pullback,
        pulled_by_its_printed_value,
        pulled_by_its_gradient,
        summed_over_a_name,
        mapped_later,
        exchanged_in_the_loss,
        by_a_rule_on_devices,
        rows_on_devices,
        pytest.param(differentiated_later, marks=pytest.mark.thorough),
    ],
)
def test_a_gradient_of_another_kind_keeps_its_results(fun):
    step = fx.jit(fun, memory="60%")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnplannedWarning)
        found = step(WEIGHTS, ROWS)
    assert_same(found, jax.jit(fun)(WEIGHTS, ROWS))


@pytest.mark.parametrize(
    "fun",
    [
        per_example,
        jacobian_of_rows,
        mapped_later,
        hessian,
        by_a_rule_for_reverse_mode,
    ],
)
def test_where_nothing_is_planned_the_program_is_as_small(fun):
    step = fx.jit(fun, memory="60%")
    with warns(UnplannedWarning, fun.__name__):
        step(WEIGHTS, ROWS)
    plain = fx.measure.program(jax.jit(fun).lower(WEIGHTS, ROWS).compile())
    assert step.report().program.memory.temp_bytes == plain.temp_bytes


@pytest.mark.parametrize(
    ("fun", "cause"),
    [
        (by_a_rule_of_the_step, "custom_vjp"),
        (by_a_rule_of_the_loss, "custom_vjp"),
        (with_checks, "checkify"),
        *((fun, "2 times") for fun in (pulled_twice, pulled_by_its_pullback)),
        (pulled_in_a_loop, "inside of scan"),
        (never_pulled, "is never called"),
        (pulled_by_its_printed_value, "with effects"),
        (pulled_by_its_gradient, "by another gradient"),
        (hessian, "derivative"),
        *((fun, "jax.vmap") for fun in (per_example, mapped_later)),
        (by_a_rule_for_reverse_mode, "has a custom_vjp"),
        (exchanged_in_the_loss, "shard_map"),
        (by_a_rule_on_devices, "custom_vjp"),
        (rows_on_devices, "shard_map"),
    ],
)
def test_a_warning_names_what_is_not_planned(fun, cause):
    with warns(UnplannedWarning, fun.__name__, "test_unplanned_gradients.py", cause):
        fx.jit(fun, memory="60%")(WEIGHTS, ROWS)


def test_a_hessian_is_named_as_one_derivative_inside_of_another():
    step = fx.jit(hessian, memory="60%")
    with warns(UnplannedWarning, "hessian"):
        step(WEIGHTS, ROWS)
    (reason,) = step.report().program.unplanned
    assert_names(reason, "derivative")


def test_where_marks_fail_the_function_runs_as_it_is(monkeypatch):
    def fail(*_, **__):
        raise TypeError("no marks here")

    monkeypatch.setattr("frugax.capture._gradients.gradient_p.bind", fail)
    with warns(UnplannedWarning, "sgd", "no marks here"):
        found = fx.jit(sgd, memory="60%")(WEIGHTS, ROWS)
    assert_same(found, jax.jit(sgd)(WEIGHTS, ROWS))


def test_a_function_without_a_gradient_runs_and_warns():
    def double(x):
        return 2 * x

    with warns(UnplannedWarning, "double"):
        assert fx.jit(double, memory="60%")(1.0) == 2.0


def test_the_line_names_a_rule_of_a_library_that_no_plan_can_change():
    def mix(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
            x = x - x.mean(0, keepdims=True)  # so it cannot run in chunks of rows
        return jnp.mean(x**2)

    own = jax.custom_vjp(mix)
    own.defvjp(lambda w, x: jax.vjp(mix, w, x), lambda pull, ct: pull(ct))
    step = fx.jit(lambda w, x: jax.grad(own)(w, x), memory="60%")
    with warns(UnplannedWarning, "custom_vjp"):
        found = step(WEIGHTS, ROWS)
    assert_same(found, jax.jit(jax.grad(mix))(WEIGHTS, ROWS))
