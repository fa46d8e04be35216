"""Gradients that are planned when first called."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from frugax import InfeasibleBudgetError, MemoryBudget, remat

from .checks import assert_same, temp_bytes

KEY = jax.random.key(0)
WS = list(jax.random.normal(KEY, (4, 2, 64, 64)) / 8)
X = jax.random.normal(KEY, (256, 64))


def loss(ws, x):
    for w in ws:
        x = x + jax.nn.gelu(x @ w[0]) @ w[1]
    return jnp.mean(x**2)


PLAIN = temp_bytes(jax.value_and_grad(loss), WS, X)
TINY = MemoryBudget(limit_bytes=1, kind="total")
HALF = MemoryBudget(limit_bytes=PLAIN // 2)


def executor_of(gradient):
    executor = gradient.last_executor
    assert executor is not None
    return executor


def test_value_and_grad_is_planned_at_the_first_call_for_each_shape():
    both = remat.value_and_grad(loss, HALF)
    assert_same(both(WS, X), jax.value_and_grad(loss)(WS, X))
    planned = both.planned_for(WS, X)
    assert planned.plan.predicted <= HALF.limit_bytes
    assert both.planned_for(WS, X) is planned
    assert_same(both(WS, X[:8]), jax.value_and_grad(loss)(WS, X[:8]))
    assert both.planned_for(WS, X[:8]).plan.segments == ()


def test_it_plans_inside_a_jit_of_the_users_own():
    both = remat.value_and_grad(loss, HALF)
    assert temp_bytes(lambda ws, x: both(ws, x), WS, X) <= HALF.limit_bytes


def test_grad_gives_what_jax_grad_gives():
    with_aux = lambda x, n: (jnp.sum(x**2) * n, {"n": n})
    got = remat.grad(with_aux, HALF, argnums=(0, 1), has_aux=True)(X, 2.0)
    assert_same(got, jax.grad(with_aux, argnums=(0, 1), has_aux=True)(X, 2.0))
    assert_same(remat.grad(loss, HALF)(WS, X), jax.grad(loss)(WS, X))


def test_what_does_not_fit_is_not_run_anyway():
    with pytest.raises(InfeasibleBudgetError):
        remat.grad(loss, TINY)(WS, X)


def test_a_compressed_gradient_executes_its_plan():
    gradient = remat.height_compressed_grad(loss, block_size=12)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    executor = executor_of(gradient)
    meta = executor.checkpoint_plan.meta
    assert meta["block_size"] == 12
    assert meta["blocks"] > 0
    assert 0 < meta["peak_frontier"] < meta["unplanned_peak_frontier"]
    assert temp_bytes(executor.value_and_grad, WS, X) < 0.6 * PLAIN


@pytest.mark.parametrize("block_size", [9, 11])
def test_no_recomputed_block_is_larger_than_asked(block_size):
    gradient = remat.height_compressed_grad(loss, block_size)
    gradient(WS, X)
    segments = executor_of(gradient).checkpoint_plan.segments
    blocks = [s.stop - s.start for s in segments if s.gate]
    assert max(blocks) <= block_size
    free = remat.height_compressed_grad(loss)
    free(WS, X)
    assert executor_of(free).checkpoint_plan.meta["block_size"] > block_size


def test_a_block_too_small_for_any_cut_recomputes_nothing():
    gradient = remat.height_compressed_grad(loss, block_size=1)
    assert_same(gradient(WS, X), jax.grad(loss)(WS, X))
    meta = executor_of(gradient).checkpoint_plan.meta
    assert (meta["blocks"], meta["recomputed_flops"]) == (0, 0)
    assert meta["peak_frontier"] == meta["unplanned_peak_frontier"]


def test_a_budget_is_met_as_measured():
    gradient = remat.height_compressed_grad(loss, block_size=12, budget=HALF)
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
        (lambda x: jnp.sum(x**2), TINY, "needs at least"),
    ],
)
def test_what_cannot_be_planned_is_left_to_jax_and_said_so_once(fn, budget, why):
    gradient = remat.height_compressed_grad(fn, budget=budget)
    x = jnp.arange(1.0, 4.0)
    with pytest.warns(UserWarning, match=f"no plan .*{why}") as told:
        assert_same(gradient(x), 2 * np.asarray(x))
    assert len(told) == 1
    assert gradient.last_executor is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same(gradient(x), 2 * np.asarray(x))


def test_a_block_holds_something():
    with pytest.raises(ValueError, match="at least 1 operation, got 0"):
        remat.height_compressed_grad(loss, block_size=0)
    with pytest.raises(ValueError, match="got -1"):
        remat.plan(loss, (WS, X), HALF, block_size=-1)
