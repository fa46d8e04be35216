"""Gradients that recompute blocks run their plan, or are left to JAX."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

from draws import normal
from frugax import measure
from frugax.compat.memory_planning import height_compressed_grad
from refusals import refuses

WS = [normal(i, 2, 64, 64, scale=1 / 8) for i in range(4)]
X = normal(4, 256, 64)


def loss(ws, x):
    for w in ws:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return jnp.mean(x**2)


def temp_bytes(fn):
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    return measure.program(jitted.lower(WS, X).compile()).temp_bytes


def assert_same(got, want):
    """Equal up to sums in another order: 1e-5 (f32) of each array's largest number."""
    for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * np.abs(w).max())


@pytest.mark.parametrize(
    "block_size", [None, pytest.param(9, marks=pytest.mark.thorough)]
)
def test_a_compressed_gradient_executes_its_plan(block_size):
    gradient = height_compressed_grad(loss, block_size)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    executor = gradient.last_executor
    assert executor is not None
    plan, meta = executor.checkpoint_plan.plan, executor.checkpoint_plan.meta
    blocks = [s.stop - s.start for s in plan.segments if s.gate]
    assert 0 < max(blocks) <= meta["block_size"]
    assert block_size in (None, meta["block_size"])
    assert meta["peak_frontier"] == temp_bytes(executor.value_and_grad)
    assert meta["peak_frontier"] < 0.8 * temp_bytes(jax.value_and_grad(loss))


def test_a_block_without_a_cut_is_not_recomputed():
    gradient = height_compressed_grad(loss, block_size=1)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    executor = gradient.last_executor
    assert executor is not None
    assert executor.checkpoint_plan.plan.extra_flops == 0


def test_it_plans_inside_a_jit_of_the_caller():
    gradient = height_compressed_grad(loss, block_size=9)
    assert_same(jax.jit(gradient)(WS, X), jax.grad(loss)(WS, X))
    assert gradient.last_executor is not None


def test_arguments_on_several_devices_are_planned_as_they_are_divided():
    mesh = jax.make_mesh((2,), ("d",))
    place = lambda x, *axes: jax.device_put(x, NamedSharding(mesh, P(*axes)))
    args = place(WS), place(X, "d")
    gradient = height_compressed_grad(loss, block_size=9)
    assert_same(gradient(*args), jax.grad(loss)(WS, X))
    executor = gradient.last_executor
    assert executor is not None
    divided = executor.checkpoint_plan.meta["peak_frontier"]
    gradient(WS, X)
    executor = gradient.last_executor
    assert executor is not None
    assert divided < executor.checkpoint_plan.meta["peak_frontier"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.sum(x**2) if x[0] > 0 else 0.0,  # a Python branch on a value
        lambda x: jnp.sum(x[x > 0] ** 2),  # a shape that depends on values
    ],
)
def test_a_loss_that_cannot_be_planned_runs_in_jax_with_one_warning(fn):
    gradient = height_compressed_grad(fn)
    x = jnp.arange(1.0, 4.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            assert_same(gradient(x), 2 * np.asarray(x))
    assert [w.category for w in told] == [UserWarning]
    assert gradient.last_executor is None


def test_a_block_holds_something():
    with refuses(ValueError, 0):
        height_compressed_grad(loss, block_size=0)
