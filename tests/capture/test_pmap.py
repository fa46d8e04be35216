"""`jax.pmap` where `fx.jit` takes the place of `jax.jit`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import frugax as fx
from draws import normal
from frugax.capture import PlannedFunction, replace_jit

WEIGHTS = normal(0, 64, 64, scale=0.1)
ROWS = normal(1, 4, 512, 64)


def loss(w, x, is_shared):
    # As attention divides its scores: the root of a number of Python is weakly typed.
    root = jnp.sqrt(w.shape[0]).astype(x.dtype)
    for _ in range(4):
        x = jnp.tanh(8 * x @ w / root)
    value = jnp.mean(x**2)
    return jnp.sqrt(lax.pmean(value, "rows")) if is_shared else value


def sgd(w, x, is_shared):
    value, grad = lax.pmean(jax.value_and_grad(loss)(w, x, is_shared), "rows")
    return w - 0.1 * grad, value


def train(num_devices, *, is_shared):
    options: Any = {"static_broadcasted_argnums": 2, "donate_argnums": 0}
    step = jax.pmap(sgd, "rows", in_axes=(0, 0, None), **options)
    w = jnp.stack([WEIGHTS] * num_devices)
    for _ in range(3):
        w, value = step(w, ROWS[:num_devices], is_shared)
    return w, value


def train_agents(is_shared):
    """As in "Podracer architectures": a mean over devices and over rows of each."""

    def agent(w, x):
        value, grad = jax.value_and_grad(loss)(w, x, is_shared)
        value, grad = lax.pmean(lax.pmean((value, grad), "agents"), "rows")
        return w - 0.1 * grad, value

    step = jax.pmap(jax.vmap(agent, axis_name="agents"), "rows")
    w = jnp.broadcast_to(WEIGHTS, (2, 2, 64, 64))
    for _ in range(2):
        w, value = step(w, ROWS.reshape(2, 2, 512, 64))
    return w, value


@pytest.mark.parametrize(
    "is_shared", [False, pytest.param(True, marks=pytest.mark.thorough)]
)
def test_agents_on_each_device_are_planned_and_train_as_before(is_shared):
    made: list[PlannedFunction] = []

    def make(fun, options):
        made.append(PlannedFunction(fun, fx.MemoryBudget("60%"), options))
        return made[0]

    expected = train_agents(is_shared)
    with replace_jit(make):
        found = train_agents(is_shared)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    plan = made[0].plan
    assert plan is not None
    assert plan.gradients
    assert plan.fits


@pytest.mark.parametrize(("num_devices", "is_shared"), [(1, False), (4, True)])
def test_a_step_is_planned_and_trains_as_before(num_devices, is_shared):
    made: list[PlannedFunction] = []

    def make(fun, options):
        budget: Any = fx.MemoryBudget("60%")
        made.append(PlannedFunction(fun, budget, options, needs_gradient=False))
        return made[0]

    expected = train(num_devices, is_shared=is_shared)
    with replace_jit(make):
        found = train(num_devices, is_shared=is_shared)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        assert a.sharding.is_equivalent_to(b.sharding, a.ndim)
    (step,) = made
    assert step.plan is not None
    assert step.plan.gradients
    assert step.plan.fits
    memory = step.report().program.memory
    assert memory is not None
    # Of one device, which holds one row of each argument and donates the weights.
    row = 4 * WEIGHTS.size
    assert memory.argument_bytes == row + ROWS[:1].nbytes
    assert memory.total_bytes - memory.temp_bytes < memory.argument_bytes + row


FOUR = np.arange(4.0)
CALLS = {
    "rows": lambda: jax.pmap(lambda x: 2 * x)(FOUR),
    "fewer rows than devices": lambda: jax.pmap(lambda x: lax.psum(x, "i"), "i")(
        np.ones((2, 3))
    ),
    "one number for all": lambda: jax.pmap(jnp.multiply, in_axes=(0, None))(FOUR, 3),
    "other axes, by name too": lambda: jax.pmap(
        lambda x, d, y: x + d["a"] * y + d["n"], in_axes=(1, {"a": None, "n": 0})
    )(np.ones((3, 4)), {"a": 2.0, "n": FOUR}, y=FOUR),
    "an axis from the end": lambda: jax.pmap(jnp.sum, in_axes=-1)(np.ones((3, 4))),
    "keys": lambda: jax.pmap(jax.random.normal)(jax.random.split(jax.random.key(0), 4)),
    "None": lambda: jax.pmap(lambda x, _: x + 1)(FOUR, None),
    "an unmapped result": lambda: jax.pmap(lambda x: (x, 3), out_axes=(0, None))(FOUR),
    "other devices": lambda: jax.pmap(jnp.sin, devices=jax.devices()[2:4])(FOUR[:2]),
    "within a jitted function": lambda: jax.jit(lambda x: jax.pmap(jnp.sin)(x))(FOUR),
    "ahead": lambda: jax.pmap(jnp.sin).lower(FOUR).compile().cost_analysis()["flops"],
    "as a decorator": lambda: functools.partial(jax.pmap, axis_name="i")(jnp.sin)(FOUR),
    "more rows than devices": lambda: jax.pmap(jnp.sin)(np.ones(99)),
    "unequal rows": lambda: jax.pmap(jnp.add)(np.ones(2), np.ones(3)),
    "a number for a row": lambda: jax.pmap(jnp.sin)(3.0),
    "fewer arguments than axes": lambda: jax.pmap(jnp.sin, in_axes=(0, 0))(FOUR),
    "no arguments": lambda: jax.pmap(jnp.sin)(),
    "no function": lambda: jax.pmap(3),  # pyrefly: ignore[bad-argument-type]
    "an error of the function": lambda: jax.pmap(lambda x: x.nothing)(FOUR),
}


def outcome(call):
    try:
        leaves = jax.tree.leaves(call())
    except Exception as e:
        return type(e), str(e)[:99]  # JAX 0.12 ends it with the line of the call
    rows = [[d.id for d in x.devices()] for x in leaves if isinstance(x, jax.Array)]
    return list(map(np.asarray, leaves)), rows


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_call_gives_what_it_gives_without_us(call):
    expected = outcome(call)
    with fx.planned(memory="60%"):
        found = outcome(call)
    assert str(found) == str(expected)
