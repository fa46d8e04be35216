"""Gradients that are planned when first called."""

import jax
import jax.numpy as jnp
import pytest

from draws import normal
from frugax import InfeasibleBudgetError, MemoryBudget, remat
from refusals import refuses

from .checks import assert_same, temp_bytes

WS = [normal(i, 2, 64, 64, scale=1 / 8) for i in range(2)]
X = normal(2, 256, 64)


def loss(ws, x):
    for w in ws:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return jnp.mean(x**2)


PLAIN = temp_bytes(jax.value_and_grad(loss), WS, X)
TINY = MemoryBudget(limit_bytes=1, kind="total")
HALF = MemoryBudget(limit_bytes=PLAIN // 2)


def test_value_and_grad_is_planned_at_the_first_call_for_each_shape():
    both = remat.value_and_grad(loss, HALF)
    assert_same(both(WS, X), jax.jit(jax.value_and_grad(loss))(WS, X))
    planned = both.planned_for(WS, X)
    assert planned.plan.predicted <= HALF.limit_bytes
    assert both.planned_for(WS, X) is planned
    assert_same(both(WS, X[:8]), jax.jit(jax.value_and_grad(loss))(WS, X[:8]))
    assert both.planned_for(WS, X[:8]).plan.segments == ()


def test_it_plans_inside_a_jit_of_the_users_own():
    both = remat.value_and_grad(loss, HALF)
    assert temp_bytes(lambda ws, x: both(ws, x), WS, X) <= HALF.limit_bytes


def test_grad_equals_jax_grad():
    with_aux = lambda x, n: (jnp.sum(x**2) * n, {"n": n})
    got = remat.grad(with_aux, HALF, argnums=(0, 1), has_aux=True)(X, 2.0)
    assert_same(got, jax.grad(with_aux, argnums=(0, 1), has_aux=True)(X, 2.0))
    assert_same(remat.grad(loss, HALF)(WS, X), jax.jit(jax.grad(loss))(WS, X))


def test_a_gradient_that_does_not_fit_is_not_run():
    with pytest.raises(InfeasibleBudgetError):
        remat.grad(loss, TINY)(WS[:1], X)


def test_an_argument_that_is_a_function_is_named_with_its_place():
    with refuses(TypeError, "args[1]"):
        remat.grad(lambda p, act: act(p["w"]), HALF)({"w": jnp.ones(3)}, jnp.sum)


@pytest.mark.parametrize("act", [jnp.tanh, jnp.sin])
def test_a_function_within_an_argument_is_not_differentiated(act):
    weights = {"w": jnp.ones(3), "act": act, "key": jax.random.key(0), "n": 2}

    def loss(p, x):
        return (p["act"](p["w"] * x) * jax.random.normal(p["key"], p["n"] + 1)).sum()

    both = remat.value_and_grad(loss, HALF)
    value, got = both(weights, 2.0)
    assert value == loss(weights, 2.0)
    want = jax.grad(lambda w: loss(weights | {"w": w}, 2.0))(weights["w"])
    assert_same(got["w"], want)
    assert got | {"w": None} == dict.fromkeys(weights)
    # Another function is another loss.
    other = both(weights | {"act": jnp.cos}, 2.0)[0]
    assert other == loss(weights | {"act": jnp.cos}, 2.0)


def test_a_block_holds_something():
    with refuses(ValueError, -1):
        remat.plan(loss, HALF, example_args=(WS, X), block_size=-1)
