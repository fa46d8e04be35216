import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from frugax import jaxprs

X = jnp.ones((8, 8))


def flops(fn, *args):
    return jaxprs.flops(jax.make_jaxpr(fn)(*args).jaxpr)


def test_a_matrix_product_counts_multiplications_and_additions():
    batched = lambda a, b: jnp.einsum("bij,bjk->bik", a, b)
    assert flops(batched, jnp.ones((5, 2, 3)), jnp.ones((5, 3, 7))) == 2 * 5 * 2 * 3 * 7


@pytest.mark.parametrize("groups", [1, 2])
def test_a_convolution_counts_as_xla_counts_it(groups):
    x, w = jnp.ones((2, 9, 9, 4)), jnp.ones((3, 3, 4 // groups, 6))

    def conv(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (1, 1),
            "VALID",  # XLA does not count products with padding; we do
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )

    xla = jax.jit(conv).lower(x, w).cost_analysis()
    assert xla is not None
    assert flops(conv, x, w) == xla["flops"]


def test_a_loop_counts_as_often_as_it_runs():
    once = flops(lambda x: jnp.tanh(x @ x), X)
    loop = lambda x: lax.scan(lambda c, _: (jnp.tanh(c @ c), None), x, length=7)[0]
    assert flops(loop, X) == 7 * once


def test_the_dearest_branch_counts():
    fn = lambda p, x: lax.cond(p, lambda x: x @ x, lambda x: x, x)
    assert flops(fn, True, X) == flops(lambda x: x @ x, X)


def test_a_name_has_zero_flops():
    assert flops(lambda x: checkpoint_name(jnp.tanh(x), "kept"), X) == X.size


def test_dead_code_has_zero_flops():
    def fn(x):
        _ = jnp.sin(x) @ x
        return x + 1

    assert flops(fn, X) == X.size


def test_traced_and_compiled_products_agree_without_merging():
    def fn(x):
        loop = lambda c, _: (jnp.tanh(c @ x), None)
        return lax.scan(loop, x @ x, length=4)[0]

    traced = jax.jit(fn).trace(X)
    left = jaxprs.count_heavy_in_hlo(traced.lower().compile().as_text() or "")
    assert jaxprs.count_heavy(traced.jaxpr.jaxpr) == left == 2


def test_products_that_are_the_same_in_each_iteration_do_not_count():
    """XLA computes them before the loop, and once for all loops that need them."""

    def fn(x, w):
        def loop(carry, _):
            c, kept = carry
            gram = lambda: jax.jit(lambda a: a.T @ a)(w) + kept @ w
            layer = jax.checkpoint(lambda c: jnp.tanh(c @ gram()))
            return (layer(c), kept), None

        (c, _), _ = lax.scan(loop, (x, w), length=4)
        return c

    traced = jax.jit(fn).trace(X, X)
    assert jaxprs.count_heavy(traced.jaxpr.jaxpr) == 1


def test_a_product_that_xla_merges_is_seen_to_be_gone():
    fn = jax.jit(lambda x: (x @ x) + jnp.sin(x @ x))
    traced = fn.trace(X)
    left = jaxprs.count_heavy_in_hlo(traced.lower().compile().as_text() or "")
    assert jaxprs.count_heavy(traced.jaxpr.jaxpr) == 2
    assert left == 1


def test_a_custom_jvp_that_is_called_by_keywords_is_counted():
    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def total(x, axis, scale=None):
        return jnp.sum(x, axis)

    total.defjvp(lambda axis, primals, tangents: (primals[0], tangents[0]))
    # JAX lists two names for its one input.
    (eqn,) = jax.make_jaxpr(lambda x: total(x, axis=0))(X).eqns
    assert jaxprs.flops_of(eqn) == 64
