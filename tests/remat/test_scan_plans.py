"""Plans for scans: on paper, in JSON, under a jit of the user's own."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from frugax import MemoryBudget, jaxprs, remat
from frugax.remat import BodyPlan, Chunk, Recompute
from frugax.remat.rewrite import trace_loss
from frugax.remat.solver import list_loop_choices
from refusals import refuses

from .checks import plain_bytes, plan_whole, temp_bytes
from .scan_cases import (
    body_of,
    prime,
    rnn,
)


@pytest.fixture(scope="module")
def planned():
    loss, args = rnn()
    limit = plain_bytes(loss, args) // 4
    return (
        loss,
        args,
        plan_whole(loss, MemoryBudget(limit_bytes=limit), example_args=args),
    )


def test_chunks_divide_the_rounds_and_are_near_the_square_root(planned):
    _, _, plan = planned
    (body_plan,) = plan.body_plans
    assert 60 % body_plan.group_length == 0
    assert 1 < body_plan.group_length < 15


def test_rounds_done_again_count_as_often_as_they_run(planned):
    loss, (w, xs), plan = planned
    cell = lambda h, x: jnp.tanh(h @ w + x)
    once = jaxprs.flops(jax.make_jaxpr(cell)(xs[0], xs[0]).jaxpr)
    (body_plan,) = plan.body_plans
    # Each iteration once more for its group, and once more if it recomputes itself.
    times = sum(
        b.iterations * (b.from_carry + bool(b.chunks)) for b in body_plan.bodies
    ) * (60 // body_plan.group_length)
    assert times > 0
    # What JAX adds for two loops is below a hundredth.
    assert plan.extra_flops == pytest.approx(times * once, rel=1e-2)
    count = lambda fn: jaxprs.flops(jax.make_jaxpr(fn)(w, xs).jaxpr)
    step = remat.apply(loss, plan)
    assert plan.extra_flops == count(step) - count(jax.value_and_grad(loss))


def test_a_plan_with_scans_describes_itself(planned):
    _, _, plan = planned
    (body_plan,) = plan.body_plans
    where = f"scan at {body_plan.operation}: of every {body_plan.group_length}"
    assert f"{where} iterations" in str(plan)


_INNER = BodyPlan(
    4, (Recompute((Chunk(0, 2, None),), 2, from_carry=True), Recompute(iterations=5))
)


_CUT = (Chunk(0, 3, (0, 2)), Chunk(3, 7, None))


NESTED = BodyPlan(1, (Recompute(_CUT, 3, body_plans=(_INNER,)), Recompute()))


def test_nested_loops_are_described():
    assert NESTED.group_length == 4
    assert str(NESTED) == (
        "scan at 1: of every 4 iterations, 3 recomputed in 2 chunks except for 2 "
        "results (scan at 4: of every 7 iterations, 2 recomputed together from the "
        "carry before them, 5 kept), 1 kept"
    )


def test_a_prime_number_of_iterations_is_cut_by_levels_only():
    plans = [p for c in list_loop_choices(body_of(prime)) for p in c.body_plans]
    assert {p.group_length for p in plans if not p.bodies[0].levels} == {1}
    assert any(p.bodies[0].levels for p in plans)


@pytest.mark.parametrize(
    ("place", "recompute", "said"),
    [
        (0, Recompute(iterations=4), "iterations"),
        (99, Recompute(iterations=4), 99),
        (1, Recompute(iterations=7), "iterations"),
        (1, Recompute(iterations=0), "iterations"),
        (1, Recompute((Chunk(0, 2, ()),)), 3),
        (1, Recompute((Chunk(0, 1, ()), Chunk(2, 3, ()))), 3),
        (1, Recompute((Chunk(0, 3, (12,)),)), 12),
        (1, Recompute((Chunk(0, 3, (-1,)),)), -1),
        (
            1,
            Recompute(body_plans=(BodyPlan(0, (Recompute(),)),)),
            "dot_general",
        ),
    ],
)
def test_a_damaged_choice_is_refused(planned, place, recompute, said):
    loss, args, plan = planned
    assert plan.body_plans[0].operation == 1
    wrong = dataclasses.replace(plan, body_plans=(BodyPlan(place, (recompute,)),))
    with refuses(ValueError, said):
        remat.apply(loss, wrong)(*args)


def test_rounds_that_write_to_the_outside_are_not_done_again():
    told = []

    def loss(w, xs):
        def cell(h, x):
            jax.debug.callback(told.append, h[0, 0], ordered=True)
            return jnp.tanh(h @ w + x), None

        return jnp.sum(lax.scan(cell, jnp.zeros((16, 32)), xs)[0] ** 2)

    body = trace_loss(loss, rnn()[1])
    assert [level.body_plans for level in list_loop_choices(body)] == [()]


def test_a_product_that_every_iteration_repeats_is_not_called_undone():
    """XLA moves it out of both loops; it says nothing about the recomputation."""

    def loss(ws, x, mask):
        def body(x, w):
            h = jnp.tanh(x @ w[0])
            y = jnp.einsum("ikc,jkc->ijc", h, h) @ w[1]
            return x + y / (100.0 + mask.T @ mask)[None], None

        return jnp.mean(lax.scan(body, x, ws)[0] ** 2)

    args = (jnp.ones((6, 2, 32, 32)) / 32, jnp.ones((32, 32, 32)), jnp.ones((8, 32)))
    plan = plan_whole(loss, MemoryBudget.share(0.6), example_args=args)
    assert plan.body_plans
    assert temp_bytes(remat.apply(loss, plan), *args) == plan.predicted
