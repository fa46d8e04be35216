"""Losses that take a gradient inside: layers are computed again for late readers."""

import jax
import jax.numpy as jnp
import pytest

from draws import normal
from frugax import MemoryBudget, remat
from frugax.remat import LateCopies, PlanParts
from frugax.remat.rewrite import copy_late, trace_loss
from frugax.remat.solver import find_blocks
from refusals import refuses

from .checks import assert_same, follow, plain_bytes, plan_whole, temp_bytes

LAYERS = 5


def maml():
    """The loss of a net after one gradient step, as in meta-learning."""
    params = [normal(i, 16, 16, scale=1 / 4) for i in range(LAYERS)]
    x = normal(LAYERS, 512, 16)

    def fit(params, x):
        for w in params:
            x = x + jax.nn.gelu(x @ w)
        return jnp.mean((x - 1) ** 2)

    def loss(params, x):
        moved = jax.tree.map(lambda p, g: p - g, params, jax.grad(fit)(params, x))
        return fit(moved, x[::-1])

    return loss, (params, x)


@pytest.mark.parametrize(
    "gate", ["select", pytest.param("barrier", marks=pytest.mark.thorough)]
)
def test_copies_change_no_gradient_and_the_loss_holds_less(gate):
    loss, args = maml()
    body = trace_loss(loss, args)
    copies = LateCopies(find_blocks(body)[:1], gate)
    copied = copy_late(body, copies)
    held = lambda b: max(b.crossing_bytes(active_only=False))
    assert held(copied) < 0.6 * held(body)
    products = lambda b: sum(e.primitive.name == "dot_general" for e in b.eqns)
    # The last layer's results are read soon after it has run.
    assert products(copied) == products(body) + LAYERS - 1
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), args)
        want = jax.jit(jax.value_and_grad(loss))(*wide)
        assert_same(
            follow(loss, wide, PlanParts(copies=copies))(*wide), want, tolerance=1e-12
        )


def test_the_compiler_does_not_merge_copies():
    loss, args = maml()
    run = lambda p, x: loss(p, x)
    body = trace_loss(loss, args)
    copied = copy_late(body, LateCopies(find_blocks(body)[:1], "select"))
    graph = copied.graph
    again = graph.run(graph.eqns, graph.inputs, graph.outputs)
    leaves = [*graph.const_values, *jax.tree.leaves(args)]
    assert temp_bytes(again, *leaves) < 0.7 * temp_bytes(run, *args)


@pytest.mark.parametrize("edges", [(0, 4, 9999), (4, 0, 8), (3, 3, 5), (3,), ()])
def test_damaged_copies_are_refused(edges):
    loss, args = maml()
    with refuses(ValueError, "remat.plan"):
        follow(loss, args, PlanParts(copies=LateCopies((edges,), "select")))(*args)


def test_copies_are_described():
    said = "computed again where the loss reads them late: 2 blocks"
    assert said in str(LateCopies(((0, 4, 8),), "select"))


@pytest.mark.thorough
def test_a_gradient_through_a_gradient_step_fits_in_half_its_memory():
    loss, args = maml()
    limit = plain_bytes(loss, args) * 45 // 100
    plan = plan_whole(loss, MemoryBudget(limit_bytes=limit), args, cache=False)
    step = remat.apply(loss, plan)
    assert plan.copies is not None
    assert temp_bytes(step, *args) == plan.predicted <= limit
    assert_same(jax.jit(step)(*args), jax.jit(jax.value_and_grad(loss))(*args))
