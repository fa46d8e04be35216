"""The analysis of a traced program agrees with the values of its operations."""

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


@pytest.fixture(scope="module")
def graph():
    return capture_graph_jaxpr(branches, example_inputs=(jnp.ones(10),))


def test_nodes_are_the_operations_as_written(graph):
    assert [n.name for n in graph.nodes] == ["sin", "cos", "tan", "mul", "add"]
    assert {(n.shapes, n.bytes, n.flops) for n in graph.nodes} == {(((10,),), 40, 10)}


def test_capturing_needs_only_shapes(graph):
    shape = jax.ShapeDtypeStruct((10,), jnp.float32)
    again = capture_graph_jaxpr(branches, example_inputs=(shape,))
    assert again.nodes == graph.nodes


def test_the_frontier_holds_results_that_are_still_needed(graph):
    held = summarize_frontier(graph)
    assert held.widths == (40, 80, 120, 160, 120)
    assert (held.peak_bytes, held.peak_at) == (160, 3)
    assert "3 (mul)  <- peak" in str(held)


def test_no_order_can_hold_less_than_the_lower_bound(graph):
    found = analyze_graph(graph)
    # The product reads two arrays and makes one; sin could have waited for it.
    assert (found.busiest_bytes, found.result_bytes) == (120, 40)
    assert found.lower_bound == 120 < found.peak_bytes == 160
    assert found.gap == pytest.approx(160 / 120)
    assert "160 B" in str(found)
    assert "1.33x" in str(found)

    def waiting(x):  # the same, in an order that reaches the bound
        product = jnp.cos(x) * jnp.tan(x)
        return jnp.sin(x) + product

    best = capture_graph_jaxpr(waiting, example_inputs=(jnp.ones(10),))
    assert analyze_graph(best).peak_bytes == found.lower_bound
    assert analyze_graph(best).gap == 1.0


def test_a_backward_pass_holds_results_of_the_forward_pass():
    def loss(w):
        for _ in range(6):
            w = jnp.tanh(w @ w)
        return jnp.sum(w)

    see = lambda fn: analyze_graph(
        capture_graph_jaxpr(fn, example_inputs=(jnp.ones((8, 8)),))
    )
    there, back = see(loss), see(jax.value_and_grad(loss))
    assert there.peak_bytes < 4 * 256
    assert back.peak_bytes >= 6 * 256


def test_an_empty_program_holds_zero_bytes():
    empty = capture_graph_jaxpr(lambda x: x, example_inputs=(jnp.ones(3),))
    found, held = analyze_graph(empty), summarize_frontier(empty)
    assert (found.peak_bytes, found.peak_at, found.gap) == (0, -1, 1.0)
    assert held.widths == ()
    assert "none" in str(held)
