"""Plans beside the checkpoints that a user could place by hand."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from draws import normal
from frugax import MemoryBudget, jaxprs, measure
from frugax.remat.rewrite import trace_loss
from frugax.remat.solver import Stage, build_parts, list_named
from remat.checks import assert_same, follow, plan_whole

KEEP_BARRIERS: dict[str, str | bool] = {
    "xla_disable_hlo_passes": "cse_barrier_expander"
}


def residual_blocks(checkpoint):
    block = checkpoint(lambda w, x: x + jnp.tanh(x @ w[0]) @ w[1])

    def loss(ws, x):
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [normal(i, 2, 32, 32, scale=1 / 8) for i in range(6)]
    return loss, (ws, normal(6, 512, 32))


def scan_of_prime_length(checkpoint):
    def loss(w, xs):
        @checkpoint
        def cell(h, x):
            h = jnp.tanh(h @ w + x)
            return h, jnp.sum(h, -1)

        h, sums = lax.scan(cell, jnp.zeros((8, 16)), xs)
        return jnp.mean(h**2) + jnp.mean(sums**2)

    return loss, (normal(0, 16, 16, scale=1 / 4), normal(1, 29, 8, 16))


def inner_gradient(checkpoint):
    fit, (ws, x) = residual_blocks(checkpoint)

    def loss(ws, x):
        moved = jax.tree.map(lambda w, g: w - g, ws, jax.grad(fit)(ws, x))
        return fit(moved, x[::-1])

    return loss, (ws[:4], x)


def figures_of(make, policy):
    loss, args = make(functools.partial(jax.checkpoint, policy=policy))
    traced = jax.jit(jax.value_and_grad(loss)).trace(*args)
    compiled = traced.lower().compile(compiler_options=KEEP_BARRIERS)
    return measure.program(compiled).temp_bytes, jaxprs.flops(traced.jaxpr.jaxpr)


@pytest.mark.parametrize(
    ("make", "policy"),
    [
        (residual_blocks, "nothing_saveable"),
        pytest.param(inner_gradient, "nothing_saveable", marks=pytest.mark.thorough),
        (scan_of_prime_length, "dots_saveable"),
    ],
)
def test_checkpoints_by_hand_are_not_cheaper_at_their_bytes(make, policy):
    chosen = getattr(jax.checkpoint_policies, policy)
    size, flops = figures_of(make, chosen)
    loss, args = make(lambda f: f)
    # The gates look at a few numbers of each gradient, which take some bytes and flops.
    limit = MemoryBudget(limit_bytes=int(1.001 * size))
    plan = plan_whole(loss, limit, args, cache=False)
    assert plan.unplanned_flops + plan.extra_flops <= 1.0001 * flops


def named_plans(make, stride=1):
    loss, args = make(lambda f: f)
    body = trace_loss(loss, args)
    found = list_named(body)[::stride]
    return body, [build_parts(n, "cpu") for n in found]


@pytest.mark.parametrize(
    "make",
    [
        residual_blocks,
        pytest.param(scan_of_prime_length, marks=pytest.mark.thorough),
    ],
)
def test_gradients_under_named_policies_equal_jax(make):
    loss, args = make(lambda f: f)
    _, plans = named_plans(make, stride=11)
    want = jax.jit(jax.value_and_grad(loss))(*args)
    for parts in plans:
        assert_same(jax.jit(follow(loss, args, parts))(*args), want)


def test_iterations_in_chunks_of_the_batch_follow_named_policies():
    _, (ws, x) = residual_blocks(lambda f: f)

    def looped(ws, x):
        step = lambda x, w: (x + jnp.tanh(x @ w[0]) @ w[1], None)
        return jnp.mean(lax.scan(step, x, ws)[0] ** 2)

    args = (jnp.stack(ws), x)
    body = trace_loss(looped, args)
    named = list_named(body, stage=Stage.ALL)
    plain = list_named(body)
    in_chunks = [c for c in named if c.source.batch is not None]
    assert len(named) == len(plain) + len(in_chunks) > len(plain)
    smallest = min(named, key=lambda c: c.peak_bytes)
    assert smallest in in_chunks
    parts = build_parts(smallest, "cpu")
    assert parts.batch is not None
    assert parts.batch.body_plans
    step = follow(looped, args, parts)
    assert_same(jax.jit(step)(*args), jax.jit(jax.value_and_grad(looped))(*args))
