"""Losses with scans, and the permitted costs of their plans."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from draws import normal
from frugax.remat.rewrite import loop_bodies, trace_loss

W = normal(0, 32, 32, scale=1 / 6)


def rnn(iterations=60):
    def loss(w, xs):
        cell = lambda h, x: (jnp.tanh(h @ w + x), None)
        return jnp.sum(lax.scan(cell, jnp.zeros((16, 32)), xs)[0] ** 2)

    return loss, (W, normal(1, iterations, 16, 32))


def stacked_layers():
    def loss(layers, x):
        def layer(x, w):
            return x + jax.nn.gelu(x @ w["in"]) @ w["out"], None

        return jnp.mean(lax.scan(layer, x, layers)[0] ** 2)

    layers = {
        "in": normal(0, 12, 32, 64, scale=1 / 6),
        "out": normal(1, 12, 64, 32, scale=1 / 8),
    }
    return loss, (layers, normal(2, 256, 32))


def backwards_with_results():
    def loss(w, xs):
        def cell(carry, x):
            h, n = carry  # a whole number is carried along
            h = jnp.tanh(h @ w + x)
            return (h, n + 1), (jnp.sin(h), n)

        start = jnp.zeros((16, 32)), jnp.int32(0)
        (h, n), (ys, ns) = lax.scan(cell, start, xs, reverse=True)
        weight = 1.0 + ns.astype(ys.dtype)[:, None, None] / n.astype(ys.dtype)
        return jnp.sum(h**2) + jnp.mean(weight * ys**2)

    return loss, rnn()[1]


def prime():
    return rnn(59)


def dropout_from_keys():
    def loss(w, x, key):
        def layer(x, key):
            kept = jax.random.bernoulli(key, 0.8, x.shape)
            return jnp.where(kept, jnp.tanh(x @ w), 0.0), None

        return jnp.mean(lax.scan(layer, x, jax.random.split(key, 16))[0] ** 2)

    return loss, (W, normal(1, 64, 32), jax.random.key(3))


def among_other_operations():
    def loss(ws, xs):
        xs = jnp.tanh(xs @ ws[0])
        cell = lambda h, x: (jnp.tanh(h @ ws[1] + x), jnp.cos(h))
        h, ys = jax.jit(lambda xs: lax.scan(cell, xs[0], xs, unroll=3))(xs)
        h = h + jnp.tanh(jnp.tanh(h @ ws[2]) @ ws[2])
        again, _ = lax.scan(lambda h, _: (jnp.sin(h @ ws[0]), None), h, length=16)
        return jnp.mean(again**2) + jnp.mean(jax.nn.gelu(ys @ ws[2]) ** 2)

    return loss, ([W] * 3, rnn(20)[1][1])


def rnn_inside_layers():
    def loss(ws, xs):
        def layer(xs, w):
            def cell(h, x):
                h = jnp.tanh(h @ w + x)
                return h, h

            return xs + lax.scan(cell, jnp.zeros((8, 32)), xs)[1], None

        return jnp.mean(lax.scan(layer, xs, ws)[0] ** 2)

    ws = normal(0, 6, 32, 32, scale=1 / 6)
    return loss, (ws, normal(1, 20, 8, 32))


# By `make test` those that compile quickly; all by `make thorough`.
QUICK = (rnn, stacked_layers)


MODELS = [
    rnn,
    stacked_layers,
    backwards_with_results,
    prime,
    dropout_from_keys,
    among_other_operations,
    rnn_inside_layers,
]


every_model = pytest.mark.parametrize(
    "model",
    [
        pytest.param(model, marks=[pytest.mark.thorough] * (model not in QUICK))
        for model in MODELS
    ],
    ids=lambda m: m.__name__,
)


def body_of(model):
    loss, args = model()
    return trace_loss(loss, args)


def scans_of(body):
    return [i for i, e in enumerate(body.graph.eqns) if e.primitive.name == "scan"]


def scan_body_of(body, place):
    (inner,) = loop_bodies(body.graph.eqns[place], body)
    return inner
