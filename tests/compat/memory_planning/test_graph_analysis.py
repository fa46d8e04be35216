"""The analysis of a traced program agrees with the values of its operations."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from frugax.compat.memory_planning import (
    analyze_graph,
    capture_graph_jaxpr,
    summarize_frontier,
)


def branches(x):  # four arrays of 40 bytes at the most, three results for one sum
    return jnp.sin(x) + jnp.cos(x) * jnp.tan(x)


def waiting(x):  # the same, in an order that reaches the bound
    product = jnp.cos(x) * jnp.tan(x)
    return jnp.sin(x) + product


X = jax.ShapeDtypeStruct((10,), jnp.float32)


def capture(fn, x: Any = X):
    return capture_graph_jaxpr(fn, example_inputs=(x,))


def test_nodes_are_the_operations_as_written_of_arrays_or_shapes():
    for x in (jnp.ones(10), X):
        names = [n.primitive.name for n in capture(branches, x).nodes]
        assert names == ["sin", "cos", "tan", "mul", "add"]


def test_the_frontier_holds_results_that_are_still_needed():
    held = summarize_frontier(capture(branches))
    assert held.widths == (40, 80, 120, 160, 120)
    assert held.peak_bytes == 160
    assert held.names == ("sin", "cos", "tan", "mul", "add")


def test_no_order_can_hold_less_than_the_lower_bound():
    found, best = analyze_graph(capture(branches)), analyze_graph(capture(waiting))
    # The product reads two arrays and makes one; sin could have waited for it.
    assert (found.lower_bound, found.peak_frontier) == (120, 160)
    assert found.gap == pytest.approx(160 / 120)
    assert best.peak_frontier == best.lower_bound == 120
    assert best.gap == 1.0


def test_a_backward_pass_holds_results_of_the_forward_pass():
    def loss(w):
        for _ in range(6):
            w = jnp.tanh(w @ w)
        return jnp.sum(w)

    see = lambda fn: analyze_graph(capture(fn, jnp.ones((8, 8)))).peak_frontier
    assert see(loss) < 4 * 256
    assert see(jax.value_and_grad(loss)) >= 6 * 256


def test_an_empty_program_holds_zero_bytes():
    empty = capture(lambda x: x)
    found, held = analyze_graph(empty), summarize_frontier(empty)
    assert (found.peak_frontier, found.gap) == (0, 1.0)
    assert held.widths == ()
