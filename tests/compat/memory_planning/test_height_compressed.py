"""Gradients that recompute blocks run their plan, or are left to JAX."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import MemoryBudget, measure
from frugax.compat.memory_planning import height_compressed_grad
from refusals import refuses

KEY = jax.random.key(0)
WS = list(jax.random.normal(KEY, (4, 2, 64, 64)) / 8)
X = jax.random.normal(KEY, (256, 64))


def loss(ws, x):
    for w in ws:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return jnp.mean(x**2)


def temp_bytes(fn, *args):
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    return measure.program(jitted.lower(*args).compile()).temp_bytes


def assert_same(got, want):
    """Equal up to sums in another order: 1e-5 (f32) of each array's largest number."""
    for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=1e-5 * np.abs(w).max())


PLAIN = temp_bytes(jax.value_and_grad(loss), WS, X)
TINY = MemoryBudget(limit_bytes=1, kind="total")
HALF = MemoryBudget(limit_bytes=PLAIN // 2)


def executor_of(gradient):
    executor = gradient.last_executor
    assert executor is not None
    return executor


def test_a_compressed_gradient_executes_its_plan():
    gradient = height_compressed_grad(loss, block_size=12)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    executor = executor_of(gradient)
    meta = executor.checkpoint_plan.meta
    assert meta["block_size"] == 12
    assert meta["blocks"] > 0
    assert 0 < meta["peak_frontier"] < meta["unplanned_peak_frontier"]
    assert temp_bytes(executor.value_and_grad, WS, X) < 0.6 * PLAIN


@pytest.mark.parametrize("block_size", [9, 11])
@pytest.mark.thorough
def test_no_recomputed_block_is_larger_than_asked(block_size):
    gradient = height_compressed_grad(loss, block_size)
    gradient(WS, X)
    segments = executor_of(gradient).checkpoint_plan.segments
    blocks = [s.stop - s.start for s in segments if s.gate]
    assert max(blocks) <= block_size
    free = height_compressed_grad(loss)
    free(WS, X)
    assert executor_of(free).checkpoint_plan.meta["block_size"] > block_size


def test_a_block_without_a_cut_is_not_recomputed():
    gradient = height_compressed_grad(loss, block_size=1)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    meta = executor_of(gradient).checkpoint_plan.meta
    assert (meta["blocks"], meta["recomputed_flops"]) == (0, 0)
    assert meta["peak_frontier"] == meta["unplanned_peak_frontier"]


def test_a_budget_is_met_as_measured():
    gradient = height_compressed_grad(loss, block_size=12, budget=HALF)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    executor = executor_of(gradient)
    meta = executor.checkpoint_plan.meta
    measured = temp_bytes(executor.value_and_grad, WS, X)
    assert measured == meta["measured_bytes"] <= HALF.limit_bytes


@pytest.mark.parametrize(
    ("fn", "budget", "why"),
    [
        (lambda x: jnp.sum(x**2) if x[0] > 0 else 0.0, None, "cannot be traced"),
        (lambda x: jnp.sum(x[x > 0] ** 2), None, "bool"),
        (lambda x: jnp.sum(x**2), TINY, "needs"),
    ],
)
def test_a_loss_that_cannot_be_planned_runs_in_jax_with_one_warning(fn, budget, why):
    gradient = height_compressed_grad(fn, budget=budget)
    x = jnp.arange(1.0, 4.0)
    with pytest.warns(UserWarning, match=f"no plan .*{why}") as told:
        assert_same(gradient(x), 2 * np.asarray(x))
    assert len(told) == 1
    assert gradient.last_executor is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(gradient(x), 2 * np.asarray(x))


def test_a_block_holds_something():
    with refuses(ValueError, 0):
        height_compressed_grad(loss, block_size=0)
