"""A training step, and checks that `fx.jit` plans it."""

import jax
import jax.numpy as jnp
import numpy as np

import frugax as fx
from draws import normal

WEIGHTS = normal(0, 64, 64, scale=0.1)


ROWS = normal(1, 512, 64)


def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


def sgd(w, x):
    value, grad = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * grad, value


def assert_same(found, expected):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(b).dtype
        # What JAX takes for a number of Python leaves the dtype to its operand.
        assert getattr(a, "weak_type", None) == getattr(b, "weak_type", None)
        size = max(float(jnp.abs(b).max()), 1.0) if jnp.size(b) else 1.0
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6 * size)


def assert_planned(fun, *args, memory="60%", **options):
    """The step gives the results of `jax.jit`, and its program fits; return it."""
    expected = jax.jit(fun, **options)(*args)
    step = fx.jit(fun, memory=memory, **options)
    assert_same(step(*args), expected)
    assert_same(step(*args), expected)
    assert step.plan is not None
    assert step.plan.gradients
    assert step.plan.predicted <= step.plan.budget.usable_bytes
    assert step.plan.predicted < step.plan.unplanned_bytes
    assert step.report().receipt.spends[0].measured == step.plan.predicted
    return step
