"""Gradients that `fx.jit` finds in a function, and plans."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import frugax as fx
from frugax.capture import (
    UnplannedWarning,
)
from planned_steps import ROWS, WEIGHTS, assert_planned, assert_same, loss, sgd
from refusals import refuses, warns
from tiers import mostly_thorough

made_before = jax.value_and_grad(loss)


def in_scan(w, x):
    def body(w, rows):
        value, grad = made_before(w, rows)
        return w - 0.1 * grad, value

    return lax.scan(body, w, x.reshape(4, -1, 64))


def in_branch(w, x):
    return lax.cond(x[0, 0] > 1e9, lambda w: w, lambda w: jax.grad(loss)(w, x), w)


def in_nested_jit(w, x):
    return jax.jit(lambda w: jax.grad(loss)(w, x))(w) * 2.0


def of_closed_over(w, x):
    doubled = 2 * x
    return jax.grad(lambda w: loss(w, doubled))(w)


def with_aux(w, x):
    def with_text(w):
        value = loss(w, x)
        return value, {"text": "kept", "number": 3, "value": value, "array": ROWS[0]}

    (_, aux), grad = jax.value_and_grad(with_text, has_aux=True)(w)
    assert aux.pop("text") == "kept"
    assert aux["number"] + 1 == 4
    return aux, grad


def by_pullback(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    (grad,) = pull(jnp.float32(3.0))
    return value, grad


def by_pullback_of_an_array(w, x):
    def outputs(w, x):
        for _ in range(8):
            x = jnp.tanh(x @ w)
        return {"a": x, "b": x.sum()}

    out, pull = jax.vjp(outputs, w, x)
    return out["b"], pull({"a": jnp.ones_like(x) * 0.5, "b": jnp.ones_like(out["b"])})


def of_complex_weights(w, x):
    def parts(w):
        rows = x
        for _ in range(8):
            rows = jnp.tanh(rows @ w.real - rows @ w.imag)
        return jnp.mean(rows**2)

    return jax.value_and_grad(parts)(lax.complex(w, w.T))


def for_seeds(w, x):
    # The weights have rows from the second pass over the loop on.
    def train(rate):
        step = lambda w, _: (w - rate * jax.grad(loss)(w, x), None)
        return lax.scan(step, w, None, length=2)[0]

    return jax.vmap(train)(jnp.array([0.1, 0.2]))


def in_checkpoint(w, x):
    return jax.checkpoint(lambda w: sgd(w, x))(w)


def for_nested_seeds(w, x):
    one = lambda w: jax.value_and_grad(loss)(w, x)
    grad = jax.vmap(jax.vmap(one, in_axes=2, out_axes=(0, 1)))
    return grad(jnp.stack([jnp.stack([w, -w], 2), jnp.stack([2 * w, w], 2)]))


def for_replicas(w, x):
    def one(w, x):
        grad = jax.grad(lambda w: lax.psum(loss(w, x), "replicas"))(w)
        return lax.pmean(grad, "replicas")

    rows = jnp.stack([w, 2 * w]), x.reshape(2, -1, 64)
    return jax.vmap(one, axis_name="replicas")(*rows)


def by_two_pullbacks(w, x):
    def losses(w):
        return loss(w, x), (jnp.abs(x @ w).mean(), x.sum())

    values, pull = jax.vjp(losses, w)
    (first,) = pull((1.0, (0.0, 0.0)))
    (second,) = pull((0.0, (jnp.float32(2), 1.0)))
    share = jnp.vdot(first, second) / jnp.vdot(second, second)
    return first - share * second, values


def by_jacobian(w, x):
    both = lambda w: (jnp.stack([loss(w, x), jnp.abs(x @ w).mean()]), x.sum())
    return jax.jacrev(both, has_aux=True)(w)


def by_pullback_of_its_value(w, x):
    value, pull = jax.vjp(lambda w: loss(w, x), w)
    return pull(value), value


def by_pullback_of_its_results(w, x):
    def outputs(w):
        rows = x
        for _ in range(8):
            rows = jnp.tanh(rows @ w)
        return rows, rows.sum(1)

    (rows, sums), pull = jax.vjp(outputs, w)
    share = rows / jnp.linalg.norm(rows)
    wanted = jnp.sin(x) @ w
    return pull((2 * (share - wanted), sums.astype(int).astype(float))), share, rows[0]


def hessian_product(w, x):
    rows = np.asarray(ROWS)  # a constant
    return jax.jvp(jax.grad(lambda w: loss(w, x * rows)), (w,), (w,))


def by_numbers_of_python(w, x):
    scaled = jax.value_and_grad(lambda scale: loss(scale * w, x))
    start = (0, 1.0, scaled(1.0)[1])
    more = lambda state: (state[0] + 1, state[1] - scaled(state[1])[1], state[2])
    return lax.while_loop(lambda state: state[0] < 2, more, start)


_IN_CI = (
    in_scan,
    in_checkpoint,
    by_numbers_of_python,
    of_complex_weights,
    for_seeds,
    hessian_product,
    by_pullback_of_its_results,
    by_two_pullbacks,
    by_jacobian,
)


@pytest.mark.parametrize(
    "fun",
    mostly_thorough(
        [
            by_numbers_of_python,
            in_scan,
            in_branch,
            in_nested_jit,
            in_checkpoint,
            of_closed_over,
            with_aux,
            by_pullback,
            by_pullback_of_an_array,
            of_complex_weights,
            for_seeds,
            for_nested_seeds,
            for_replicas,
            hessian_product,
            by_two_pullbacks,
            by_jacobian,
            by_pullback_of_its_value,
            by_pullback_of_its_results,
        ],
        in_ci=lambda fun: fun in _IN_CI,
    ),
)
def test_a_gradient_is_found_and_planned(fun):
    assert len(assert_planned(fun, WEIGHTS, ROWS).plan.gradients) == 1


@pytest.mark.parametrize(
    "cotangent", [1.0, jnp.ones((1, 64)), jnp.ones((512, 64), jnp.int32)]
)
def test_a_cotangent_of_another_type_is_refused_as_by_jax_jit(cotangent):
    def pulled(w, x):
        _, pull = jax.vjp(lambda w: jnp.tanh(x @ w), w)
        return pull(cotangent)

    for jit in (jax.jit, functools.partial(fx.jit, memory="60%")):
        with refuses(ValueError, "float32[512,64]"):
            jit(pulled)(WEIGHTS, ROWS)


def test_a_pullback_in_64_bits_keeps_them():
    with jax.enable_x64(True):
        w, x = (jnp.asarray(a, jnp.float64) for a in (WEIGHTS, ROWS))
        found = fx.jit(by_pullback_of_an_array, memory="60%")(w, x)
        expected = jax.jit(by_pullback_of_an_array)(w, x)
        for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_the_gradients_of_two_nets_are_planned_for_one_program():
    def both(w, v, x):
        fake = jnp.tanh(x @ w)
        critic = lambda v: loss(v, fake) - loss(v, x)
        v = v - 0.1 * jax.grad(critic)(v)
        w = w - 0.1 * jax.grad(lambda w: loss(w, x))(w)
        return w, v

    assert_planned(both, WEIGHTS, WEIGHTS.T, ROWS, memory="70%")


def test_gradients_that_hold_equally_much_are_planned_for_one_program():
    def other(w, x):
        for _ in range(4):
            x = jnp.sin(x @ w)
        return jnp.mean(x**2)

    def both(w, v, x):
        w = w - 0.1 * jax.grad(loss)(w, x)
        v = v - 0.1 * jax.grad(other)(v, jnp.tanh(x @ w))
        return w, v

    step = assert_planned(both, WEIGHTS, WEIGHTS.T, ROWS)
    assert len(step.plan.gradients) == 2


def test_many_losses_in_one_program_and_effects_keep_their_order():
    seen = []

    def step(w, x):
        jax.debug.callback(lambda: seen.append("before"), ordered=True)
        value, grad = jax.value_and_grad(loss)(w, x)
        jax.debug.callback(lambda v: seen.append("after"), value, ordered=True)
        return w - grad

    planned = fx.jit(step, memory="60%")
    planned(WEIGHTS, ROWS)
    jax.effects_barrier()
    assert seen == ["before", "after"]


@pytest.mark.parametrize(
    "kind", [pytest.param("Auto", marks=pytest.mark.thorough), "Explicit"]
)
def test_arrays_on_several_devices_keep_their_places(kind):
    kinds = (jax.sharding.AxisType[kind],)
    mesh = jax.make_mesh((2,), ("data",), axis_types=kinds)
    rows = jax.NamedSharding(mesh, jax.P("data"))
    everywhere = jax.NamedSharding(mesh, jax.P())
    w, x = jax.device_put(WEIGHTS, everywhere), jax.device_put(ROWS, rows)
    with jax.set_mesh(mesh):
        step = assert_planned(sgd, w, x)
    assert step(w, x)[0].sharding.is_equivalent_to(everywhere, 2)


def over_devices(w, x, *, check_vma):
    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def rectified(w, x):  # has a rule, whose types are those of the shard_map
        return loss(w, jax.nn.relu(x @ w))

    def body(w, rows):
        value, grad = jax.value_and_grad(rectified)(w, rows)
        if not check_vma:  # otherwise JAX adds up the gradients of shared weights
            grad = lax.psum(grad, "data")
        return w - 0.1 * grad, lax.pmean(value, "data")

    step = lambda w, x: lax.scan(body, w, x.reshape(2, -1, 64))
    spec = jax.P("data")
    specs: Any = {"in_specs": (jax.P(), spec), "out_specs": (jax.P(), jax.P())}
    return jax.shard_map(step, mesh=mesh, check_vma=check_vma, **specs)(w, x)


@pytest.mark.parametrize(
    "check_vma", mostly_thorough([True, False], in_ci=lambda check: check)
)
def test_a_gradient_inside_of_shard_map_is_planned(check_vma):
    rows = jnp.tile(ROWS, (2, 1))
    step = functools.partial(over_devices, check_vma=check_vma)
    assert len(assert_planned(step, WEIGHTS, rows).plan.gradients) == 1


def test_a_gradient_for_other_static_arguments_is_planned():
    def step(w, x, is_trained):
        return sgd(w, x) if is_trained else (w, loss(w, x))

    planned = fx.jit(step, memory="60%", static_argnums=2)
    with warns(UnplannedWarning, "step", "no gradient"):
        planned(WEIGHTS, ROWS, False)
    assert_same(planned(WEIGHTS, ROWS, True), jax.jit(sgd)(WEIGHTS, ROWS))
    assert planned.plan.gradients


def line_search(w, x):
    """Differentiates one function four times, twice of these in a loop."""
    value, grad = jax.value_and_grad(loss)(w, x)
    value, again = jax.value_and_grad(loss)(w - 0.1 * grad, x)

    def body(i, w):
        return w - 0.01 * jax.grad(loss)(w - 0.01 * jax.grad(loss)(w, x), x)

    return lax.fori_loop(0, 3, body, w - again), value


def test_gradients_of_one_function_have_one_plan():
    step = assert_planned(line_search, WEIGHTS, ROWS)
    assert len(step.plan.gradients) == 1
    (source,) = step.plan.sources
    assert source.count("test_gradients.py") == 3  # two on one line
