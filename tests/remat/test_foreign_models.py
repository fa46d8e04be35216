"""Models that we did not write: less memory, and the gradients of `jax.grad`."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax import lax

from frugax import InfeasibleBudgetError, MemoryBudget, remat
from refusals import refuses

from .checks import assert_same

KEY = jax.random.key(0)


class Heads(eqx.Module):
    """An equinox module with a number, a truth and functions among its leaves."""

    attend: eqx.nn.MultiheadAttention
    mlp: eqx.nn.MLP
    drop: eqx.nn.Dropout
    heads: int

    def __init__(self, key: jax.Array) -> None:
        self.attend = eqx.nn.MultiheadAttention(4, 32, key=key)
        self.mlp = eqx.nn.MLP(32, 32, 96, 3, key=key)
        self.drop = eqx.nn.Dropout(0.1, inference=True)
        self.heads = 4

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.drop(jax.vmap(self.mlp)(self.attend(x, x, x)))
        return x.reshape(self.heads, -1)


@pytest.mark.thorough
def test_a_module_of_equinox_is_planned_as_it_is():
    model, x = Heads(KEY), jax.random.normal(KEY, (16, 24, 32))

    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2)

    # As shapes, without the arrays.
    shapes = eqx.filter_eval_shape(Heads, KEY)
    plan = remat.plan(loss, MemoryBudget.share(0.8), (shapes, x))
    step = remat.apply(loss, plan)
    value, got = step(model, x)
    want_value, want = eqx.filter_value_and_grad(loss)(model, x)
    assert_same((value, got), (want_value, want), 1e-4)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    assert step.report(model, x).verdict == "kept"
    assert remat.draw_memory(loss, plan, (model, x)).planned.peak_bytes


def test_a_sum_over_an_axis_that_vmap_named_is_one_over_the_batch():
    """Batch statistics of equinox are such sums, as `psum` over a number's axis."""

    def mean_of_rows(w, x):
        rows = lambda row: lax.pmean(jnp.sum(jnp.tanh(jnp.tanh(row @ w) @ w)), "rows")
        return jax.vmap(rows, axis_name="rows")(x)[0]

    def normalised(w, x):
        def one(row):
            h = row @ w  # as many rows as numbers in each of them
            return (h - lax.pmean(h, "rows")) / jnp.sqrt(lax.pmean(h**2, "rows") + 1)

        return jnp.mean(jax.vmap(one, axis_name="rows")(x) ** 4)

    args = jnp.eye(64), jax.random.normal(KEY, (512, 64))
    square = jnp.eye(64), jax.random.normal(KEY, (64, 64))
    plan = remat.plan(mean_of_rows, MemoryBudget.share(0.25), args, cache=False)
    assert plan.batch is not None
    assert_same(
        jax.jit(remat.apply(mean_of_rows, plan))(*args),
        jax.jit(jax.value_and_grad(mean_of_rows))(*args),
    )
    with refuses(InfeasibleBudgetError, unit="bytes", proven=False):
        remat.plan(normalised, MemoryBudget("1KiB"), square, cache=False)
