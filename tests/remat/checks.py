"""The comparisons: gradients with those of JAX, and bytes as XLA counts them."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from frugax import measure, remat
from frugax.remat import BodyPlan, Chunk, PlanParts, Segment
from frugax.remat.rewrite import (
    RematGraph,
    build_value_and_grad,
    rewrite_loops,
    trace_loss,
)

# Most nets of the tests would only divide their batch. What is tested with this is
# recomputation.
plan_whole = functools.partial(remat.plan, divide_batch=False)


def assert_same(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Equal up to sums in another order: 1e-5 (f32) of each array's largest number."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(*map(jax.tree.leaves, (got, want)), strict=True):
        assert (jnp.result_type(g), np.shape(g)) == (jnp.result_type(w), np.shape(w))
        g, w = np.asarray(g, np.float64), np.asarray(w, np.float64)
        assert np.isfinite(w).all()
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance * np.abs(w).max())


def temp_bytes(fn: Any, *args: Any) -> int:
    """The peak bytes of `fn`, which is jitted if it is not yet."""
    jitted = fn if hasattr(fn, "lower") else jax.jit(fn)
    return measure.program(jitted.lower(*args).compile()).temp_bytes


def plain_bytes(loss: Callable[..., Any], args: Sequence[Any]) -> int:
    """The bytes of the loss and its gradients without a plan."""
    return temp_bytes(jax.value_and_grad(loss), *args)


def follow(
    loss: Callable[..., Any],
    args: Sequence[Any],
    parts: PlanParts,
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """The loss and its gradients, as these parts of a plan say."""
    mark = trace_loss(loss, args, argnums, has_aux=has_aux).graph.fingerprint
    return build_value_and_grad(loss, parts, mark, argnums=argnums, has_aux=has_aux)


def recompute_bodies(
    loss: Callable[..., Any], args: Sequence[Any], body_plans: Sequence[BodyPlan]
) -> Callable[..., Any]:
    """The loss and its gradients, recomputed only inside its scans and conds."""
    body = trace_loss(loss, args)
    stop = len(rewrite_loops(body, body_plans).eqns)
    keep = Segment(start=0, stop=stop, gate=None, saved_bytes=0, recomputed_flops=0)
    return follow(loss, args, PlanParts(segments=(keep,), body_plans=tuple(body_plans)))


def again(body: RematGraph, *kept: int) -> tuple[Chunk, ...]:
    """Everything in the body of a loop or in a branch again, but for these."""
    return (Chunk(0, len(body.eqns), kept),)
