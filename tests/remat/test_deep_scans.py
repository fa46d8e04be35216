"""Scans that keep few carries and are recomputed level by level."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from draws import normal
from frugax import jaxprs
from frugax.remat import BodyPlan, Recompute
from frugax.remat.solver import list_loop_choices
from refusals import refuses

from ..tiers import mostly_thorough
from .checks import assert_same, plain_bytes, recompute_bodies, temp_bytes
from .scan_cases import (
    MODELS,
    body_of,
    prime,
    rnn,
    scans_of,
)


def by_levels(model, *levels):
    """The loss's gradients, with its first scan recomputed by these levels."""
    loss, args = model()
    body = body_of(model)
    place = scans_of(body)[0]
    length = body.graph.eqns[place].params["length"]
    again = Recompute((), length, from_carry=True, levels=levels)
    plan = BodyPlan(body.graph.numbered.index(place), (again,))
    return recompute_bodies(loss, args, (plan,)), loss, args


@pytest.mark.parametrize(
    "model",
    mostly_thorough(MODELS, lambda m: m.__name__ == "backwards_with_results"),
    ids=lambda m: m.__name__,
)
def test_gradients_by_levels_equal_jax(model):
    # Neither level divides the iterations, so a shorter group is left at each.
    step, loss, args = by_levels(model, 5, 2)
    want = jax.jit(jax.value_and_grad(loss))(*args)
    assert_same(jax.jit(step)(*args), want)


def test_one_level_is_enough_for_a_prime_number_of_iterations():
    step, loss, args = by_levels(prime, 8)
    want = jax.jit(jax.value_and_grad(loss))(*args)
    assert_same(jax.jit(step)(*args), want)
    assert temp_bytes(step, *args) < 0.35 * plain_bytes(loss, args)


def test_the_weights_gradients_are_held_once_for_all_levels():
    # The carry is small beside the weights, so that their gradients weigh most.
    w, xs = normal(0, 64, 64, scale=1 / 8), jnp.ones((512, 2, 64))

    def model():
        cell = lambda h, x, w: (jnp.tanh(h @ w + x), None)

        def loss(w, xs):
            start = jnp.zeros((2, 64))
            return jnp.sum(lax.scan(lambda h, x: cell(h, x, w), start, xs)[0] ** 2)

        return loss, (w, xs)

    step, _, args = by_levels(model, 64, 8)
    assert temp_bytes(step, *args) < 3.5 * w.nbytes


@pytest.mark.thorough
def test_a_second_derivative_passes_through_levels():
    step, loss, args = by_levels(lambda: rnn(7), 3)
    twice = lambda fn: jax.grad(lambda w: jnp.sum(fn(w) ** 2))(args[0])
    got = twice(lambda w: step(w, *args[1:])[1])
    assert_same(got, twice(lambda w: jax.grad(loss)(w, *args[1:])), tolerance=1e-4)


def test_levels_cost_the_flops_that_are_stated():
    step, loss, args = by_levels(rnn, 10, 3)
    count = lambda fn: jaxprs.flops(jax.make_jaxpr(fn)(*args).jaxpr)
    extra = count(step) - count(jax.value_and_grad(loss))
    stated = {
        c.body_plans[0].bodies[0].levels: c.flops
        for c in list_loop_choices(body_of(rnn))
        if c.body_plans
    }
    depth_2 = [flops for levels, flops in stated.items() if len(levels) == 2]
    assert depth_2
    assert extra == pytest.approx(depth_2[0], rel=0.1)


@pytest.mark.parametrize("levels", [(60,), (3, 5), (5, 5), (0,)])
def test_damaged_levels_are_refused(levels):
    with refuses(ValueError, "remat.plan"):
        by_levels(rnn, *levels)


def test_a_plan_by_levels_is_described():
    again = Recompute((), 60, from_carry=True, levels=(10, 3))
    assert str(BodyPlan(1, (again,))) == (
        "scan at 1: each iteration recomputed from the carry before groups of 10, and "
        "within these of 3"
    )
