"""Losses of many kinds, and the tightest plan for each."""

import dataclasses

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from draws import normal
from frugax.remat.rewrite import trace_loss
from frugax.remat.solver import build_parts, list_candidates

from .checks import follow

KEY = jax.random.key(0)


def weights(*shapes, seed=0):
    seeds = range(100 * seed, 100 * seed + len(shapes))
    pairs = zip(seeds, shapes, strict=True)
    return [normal(i, *s, scale=s[0] ** -0.5) for i, s in pairs]


def residual_mlp():
    params = [weights((32, 64), (64, 32), seed=i) for i in range(3)]

    def loss(params, x):
        for a, b in params:
            x = x + jax.nn.gelu(x @ a) @ b
        return jnp.mean(x**2)

    return loss, (params, normal(7, 256, 32)), {}


def mlp_with_aux():
    params = {f"layer{i}": w for i, w in enumerate(weights(*[(32, 32)] * 4))}

    def loss(params, batch):
        x = batch["x"]
        for w in params.values():
            x = jax.nn.relu(x @ w)
        logp = jax.nn.log_softmax(x)
        picked = jnp.take_along_axis(logp, batch["y"][:, None], axis=1)
        hits = (x.argmax(-1) == batch["y"]).mean()
        return -picked.mean(), {"accuracy": hits, "logits": x, "first": batch["y"][0]}

    batch = {"x": normal(7, 256, 32), "y": jnp.arange(256) % 32}
    return loss, (params, batch), {"has_aux": True}


def long_skips():
    def loss(ws, x):
        outs = [x]
        for w in ws:
            outs.append(jnp.tanh(outs[-1] @ w))
        back = outs[-1]
        for skip in reversed(outs[1:-1]):  # as in a U-Net
            back = jnp.sin(back) * skip
        return jnp.sum(back**2)

    return loss, (weights(*[(32, 32)] * 6), normal(7, 256, 32)), {}


def several_arguments():
    def loss(x, n, ws, scale):
        for w in ws:
            x = jnp.sin(x @ w) * scale
        return jnp.sum(x**2) / n.astype(x.dtype)

    ws = weights(*[(32, 32)] * 3)
    x = normal(7, 256, 32)
    return loss, (x, jnp.int32(7), ws, jnp.float32(1.5)), {"argnums": (2, 0, 3)}


def dropout():
    def loss(ws, x, key):
        for w, k in zip(ws, jax.random.split(key, len(ws)), strict=True):
            kept = jax.random.bernoulli(k, 0.8, x.shape)
            x = jnp.where(kept, jnp.tanh(x @ w), 0.0)
        return jnp.mean(x**2)

    x = normal(7, 256, 32)
    return loss, (weights(*[(32, 32)] * 3), x, jax.random.key(3)), {}


def attention():
    def loss(ws, x):
        mask = jnp.tril(jnp.ones((16, 16), bool))
        for q, k, v in ws:
            scores = jnp.einsum("bsd,btd->bst", x @ q, x @ k) / 4.0
            scores = jnp.where(mask[None], scores, -1e9)
            x = x + jax.nn.softmax(scores) @ (x @ v)
        return jnp.mean(x**2)

    ws = [weights(*[(16, 16)] * 3, seed=i) for i in range(2)]
    return loss, (ws, normal(7, 32, 16, 16)), {}


def convolutions():
    def loss(ws, x):
        for w in ws:
            x = lax.conv_general_dilated(
                x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        return jnp.mean(x**2)

    ws = [0.2 * w for w in weights((3, 3, 1, 8), *[(3, 3, 8, 8)] * 3)]
    return loss, (ws, normal(7, 64, 8, 8, 1)), {}


def custom_rules_and_loops():
    @jax.custom_vjp
    def clipped(x):  # its backward rule is its own; a plan must not see through it
        return x * 2

    clipped.defvjp(lambda x: (x * 2, None), lambda _, g: (jnp.clip(g, -1e-4, 1e-4),))

    def loss(ws, x):
        for w in ws:
            x = clipped(jnp.tanh(x @ w))
        x, _ = lax.scan(lambda c, _: (jnp.tanh(c @ ws[0]), None), x, length=3)
        return jnp.mean(x**2)

    return loss, (weights(*[(32, 32)] * 3), normal(7, 256, 32)), {}


def equinox_model():
    model = eqx.nn.MLP(16, 4, 64, 4, activation=jnp.tanh, key=KEY)
    params, static = eqx.partition(model, eqx.is_array)

    def loss(params, x):
        return jnp.mean(jax.vmap(eqx.combine(params, static))(x) ** 2)

    return loss, (params, normal(7, 256, 16)), {}


def flax_model():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(3):
                x = x + nn.Dense(32)(nn.relu(nn.LayerNorm()(nn.Dense(32)(x))))
            return x

    x = normal(7, 256, 32)
    net = Net()

    def loss(params, x):
        return jnp.mean(jnp.square(jnp.asarray(net.apply(params, x))))

    return loss, (net.init(KEY, x), x), {}


MODELS = [
    residual_mlp,
    mlp_with_aux,
    long_skips,
    several_arguments,
    dropout,
    attention,
    convolutions,
    custom_rules_and_loops,
    equinox_model,
    flax_model,
]


def regated(segment, gate):
    return dataclasses.replace(
        segment,
        gate=gate if segment.gate else None,
        nested=tuple(regated(s, gate) for s in segment.nested),
    )


def tightest(loss, args, *, argnums=0, has_aux=False, gate=None):
    """The draft that recomputes most, as a function, and its segments."""
    how = {"argnums": argnums, "has_aux": has_aux}
    body = trace_loss(loss, args, **how)
    parts = build_parts(list_candidates(body)[-1], jax.default_backend())
    if gate:
        segments = tuple(regated(s, gate) for s in parts.segments)
        parts = dataclasses.replace(parts, segments=segments)
    return follow(loss, args, parts, **how), parts.segments
