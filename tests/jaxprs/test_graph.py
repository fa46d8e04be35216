import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from frugax import jaxprs


def program(w, x):
    h = jax.jit(lambda a: jax.nn.relu(a @ w))(x)
    h, sums = lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), h, None, length=3)
    return h, {"sums": sums, "input": x}


W, X = jnp.eye(4) * 0.5, jnp.arange(12.0).reshape(3, 4)


def test_the_flat_program_equals_the_function():
    graph = jaxprs.trace(program, (W, X))
    assert "jit" not in [e.primitive.name for e in graph.eqns]
    flat = graph.run(graph.eqns, graph.inputs, graph.outputs)(W, X)
    got = jax.tree.unflatten(graph.out_tree, flat)
    for g, w in zip(*map(jax.tree.leaves, (got, program(W, X))), strict=True):
        np.testing.assert_array_equal(g, w)


def test_one_function_called_twice_gives_two_sets_of_variables():
    double = jax.jit(lambda x: x + x)
    graph = jaxprs.trace(lambda x: double(double(x)), (jnp.ones(3),))
    run = graph.run(graph.eqns, graph.inputs, graph.outputs)
    np.testing.assert_array_equal(run(jnp.ones(3))[0], 4 * np.ones(3))


def test_values_the_function_closed_over_become_inputs():
    table = np.arange(8.0, dtype=np.float32)
    graph = jaxprs.trace(lambda i: jnp.asarray(table)[i], (jnp.int32(3),))
    run = graph.run(graph.eqns, graph.inputs, graph.outputs)
    assert run(*graph.const_values, jnp.int32(3))[0] == 3


@pytest.mark.parametrize(
    "other",
    [
        lambda x: jnp.cos(jnp.sin(x)),  # another order
        lambda x: jnp.sin(jnp.cos(x)) + x,  # one operation more
    ],
)
def test_fingerprints_tell_programs_apart(other):
    mark = lambda fn, x: jaxprs.trace(fn, (x,)).fingerprint
    fn = lambda x: jnp.sin(jnp.cos(x))
    assert mark(fn, jnp.ones(3)) == mark(fn, jnp.zeros(3))
    assert mark(fn, jnp.ones(3)) != mark(fn, jnp.ones(4))
    assert mark(fn, jnp.ones(3)) != mark(other, jnp.ones(3))


def test_fingerprints_tell_wiring_apart():
    mark = lambda fn: jaxprs.trace(fn, (jnp.ones(3), jnp.ones(3))).fingerprint
    assert mark(lambda a, b: jnp.sin(a) - b) != mark(lambda a, b: jnp.sin(b) - a)


def test_the_peak_counts_values_that_are_live_together():
    def branches(x):  # three results of 40 bytes wait for the sum
        return jnp.sin(x) + jnp.cos(x) * jnp.tan(x)

    graph = jaxprs.trace(branches, (jnp.ones(10),))
    assert max(jaxprs.live_bytes(graph)) == 4 * 40
