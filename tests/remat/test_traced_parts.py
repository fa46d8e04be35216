"""Equal parts of a loss are traced once, and parts that only look alike are not."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from frugax.remat import PlanParts, Segment
from frugax.remat.rewrite import build_value_and_grad, prepare_loss

HOW = {"argnums": 0, "has_aux": False}


def planned(loss, args, edges):
    """The gradients with every segment recomputed, and the prepared loss."""
    body = prepare_loss(loss, args, **HOW)
    every = [0, *(min(e, len(body.eqns)) for e in edges), len(body.eqns)]
    segments = tuple(
        Segment(start=a, stop=b, gate="cond", saved_bytes=0, recomputed_flops=0)
        for a, b in itertools.pairwise(every)
    )
    mark, prepare = body.graph.fingerprint, lambda args, is_opened: body
    parts = PlanParts(segments=segments)
    return build_value_and_grad(loss, parts, mark, prepare=prepare, **HOW), body


def test_equal_layers_are_traced_once():
    counts = []
    for depth in (3, 6):

        def loss(ws, x):
            for w in ws:
                x = jnp.sin(x @ w)
            return x.sum()

        args = [jnp.ones((4, 4))] * depth, jnp.ones((4, 4))
        step, body = planned(loss, args, range(2, 2 * depth, 2))
        for _ in range(2):
            jax.make_jaxpr(step)(*args)
        counts.append(len(body.traced))
    assert counts[0] == counts[1]


def test_parts_that_look_alike_keep_their_own_gradients():
    def loss(w, x):
        # Pairs of operations that differ in a parameter, a literal or a body alone.
        for reverse in (True, False):
            x = lax.cumsum(x * w, axis=0, reverse=reverse)
        for factor in (2.0, -3.0):
            x = (x * w) * factor
        for start in (0, 1):
            x = x + jnp.pad(x[start : start + 3] * w, ((0, 1), (0, 0)))
        for f in (jnp.sin, jnp.cos):
            x = lax.scan(lambda c, _, f=f: (f(c * w), None), x, None, 2)[0]
            x = jax.checkpoint(lambda x, f=f: f(x) * w)(x)
        return (x**2).sum()

    args = jnp.float32(0.9), jnp.arange(12.0).reshape(4, 3) / 10
    want = jax.jit(jax.value_and_grad(loss))(*args)
    step, _ = planned(loss, args, range(2, 40, 2))
    for got, wanted in zip(jax.jit(step)(*args), want, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_reshapes_from_different_shapes_to_one_shape_stay_separate():
    def loss(w, x):
        for shape in ((6, 2), (2, 3, 2)):
            x = jnp.tanh(x * w).reshape(shape).reshape(4, 3)
        return (x**2).sum()

    args = jnp.float32(0.9), jnp.arange(12.0).reshape(4, 3) / 10
    want = jax.jit(jax.value_and_grad(loss))(*args)
    for edges in ([2], [3, 6], [2, 4], [3, 4, 7, 8]):
        got = jax.jit(planned(loss, args, edges)[0])(*args)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
        np.testing.assert_allclose(got[1], want[1], rtol=1e-6)
