"""Nets that plans are compared on, each with a place for hand-written checkpoints.

Each is a function of `checkpoint`, which wraps its blocks, and returns a loss with its
arguments.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Checkpoint = Callable[[Callable[..., Any]], Callable[..., Any]]
Case = tuple[Callable[..., Any], tuple[Any, ...]]


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    return scale * jax.random.normal(jax.random.key(seed), shape)


def _norm(x: jax.Array) -> jax.Array:
    x = x - x.mean(-1, keepdims=True)
    return x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)


def _attend(w: jax.Array, x: jax.Array) -> jax.Array:
    q, k, v = jnp.split(_norm(x) @ w[:, :-1].reshape(w.shape[0], -1), 3, axis=-1)
    scores = jnp.einsum("bsd,btd->bst", q, k) / w.shape[0] ** 0.5
    return jax.nn.softmax(scores) @ v @ w[:, -1]


def mlp(checkpoint: Checkpoint) -> Case:
    block = checkpoint(lambda w, x: x + jax.nn.gelu(x @ w[0]) @ w[1])

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    return loss, (
        [normal(i, 2, 64, 64, scale=0.1) for i in range(8)],
        jnp.ones((512, 64)),
    )


def transformer(checkpoint: Checkpoint) -> Case:
    @checkpoint
    def block(w: Any, x: jax.Array) -> jax.Array:
        x = x + _attend(w["a"], x)
        return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"]

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "up": normal(i, 32, 128, scale=0.2),
            "down": normal(i, 128, 32, scale=0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 48, 32))


def experts(checkpoint: Checkpoint) -> Case:
    """The two best of four experts for each token, and a loss that balances them."""

    @checkpoint
    def block(w: Any, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = x + _attend(w["a"], x)
        h = _norm(x)
        probabilities = jax.nn.softmax(h @ w["gate"])
        top, _ = lax.top_k(probabilities, 2)
        chosen = jnp.where(probabilities >= top[..., -1:], probabilities, 0)
        u = jax.nn.gelu(jnp.einsum("btd,edf->btef", h, w["up"]))
        y = jnp.einsum("btef,efd->bted", u, w["down"])
        used = jnp.mean(chosen > 0, (0, 1)) @ probabilities.mean((0, 1))
        return x + jnp.einsum("bted,bte->btd", y, chosen), used

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        balance = jnp.zeros(())
        for w in ws:
            x, used = block(w, x)
            balance += used
        return jnp.mean(x**2) + 0.01 * balance

    ws = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "gate": normal(i, 32, 4),
            "up": normal(i, 4, 32, 64, scale=0.2),
            "down": normal(i, 4, 64, 32, scale=0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 48, 32))


def maml(checkpoint: Checkpoint) -> Case:
    """A gradient through a gradient step."""
    block = checkpoint(lambda w, x: x + jnp.tanh(x @ w[0]) @ w[1])

    def fit(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean((x - 1) ** 2)

    def loss(ws: Any, x: jax.Array) -> jax.Array:
        moved = jax.tree.map(lambda w, g: w - g, ws, jax.grad(fit)(ws, x))
        return fit(moved, x[::-1])

    return loss, (
        [normal(i, 2, 32, 32, scale=0.2) for i in range(5)],
        normal(9, 1024, 32),
    )


def gru(checkpoint: Checkpoint) -> Case:
    def loss(w: Any, xs: jax.Array) -> jax.Array:
        @checkpoint
        def cell(h: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            a, b = jnp.split(x @ w[0], 3, -1), jnp.split(h @ w[1], 3, -1)
            r, z = jax.nn.sigmoid(a[0] + b[0]), jax.nn.sigmoid(a[1] + b[1])
            return (1 - z) * jnp.tanh(a[2] + r * b[2]) + z * h, None

        return jnp.mean(lax.scan(cell, jnp.zeros((8, 32)), xs)[0] ** 2)

    return loss, (
        (normal(0, 8, 96, scale=0.3), normal(1, 32, 96, scale=0.2)),
        normal(2, 997, 8, 8),
    )


def scanned(checkpoint: Checkpoint) -> Case:
    def loss(ws: Any, x: jax.Array) -> jax.Array:
        @checkpoint
        def block(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            x = x + _attend(w["a"], x)
            return x + jax.nn.gelu(_norm(x) @ w["up"]) @ w["down"], None

        return jnp.mean(lax.scan(block, x, ws)[0] ** 2)

    ws = {
        "a": normal(0, 12, 32, 4, 32, scale=0.2),
        "up": normal(1, 12, 32, 128, scale=0.2),
        "down": normal(2, 12, 128, 32, scale=0.1),
    }
    return loss, (ws, normal(9, 8, 48, 32))


def pinn(checkpoint: Checkpoint) -> Case:
    """The residual of a differential equation: second derivatives of the input."""
    block = checkpoint(lambda w, x: jnp.tanh(w @ x))

    def net(ws: Any, x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return x.sum()

    def loss(ws: Any, xs: jax.Array) -> jax.Array:
        def residual(x: jax.Array) -> jax.Array:
            return jnp.trace(jax.hessian(net, argnums=1)(ws, x)) - jnp.sin(x).sum()

        return jnp.mean(jax.vmap(residual)(xs) ** 2)

    ws = [normal(0, 32, 2), *(normal(i, 32, 32, scale=0.2) for i in range(1, 4))]
    return loss, (ws, normal(9, 512, 2))


def batch_norm(checkpoint: Checkpoint) -> Case:
    """Convolutions with statistics of the batch, which cannot be divided."""

    @checkpoint
    def block(w: jax.Array, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        y = (y - y.mean((0, 1, 2))) * lax.rsqrt(y.var((0, 1, 2)) + 1e-5)
        return x + jax.nn.relu(y)

    def loss(ws: list[jax.Array], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [normal(i, 3, 3, 16, 16, scale=0.1) for i in range(6)]
    return loss, (ws, normal(9, 16, 16, 16, 16))


def convnext(checkpoint: Checkpoint) -> Case:
    """Convolutions by channel, a wide pair of products, and a learned scale."""

    @checkpoint
    def block(w: Any, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            x,
            w["by_channel"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
        )
        return x + w["scale"] * (jax.nn.gelu(_norm(y) @ w["up"]) @ w["down"])

    def loss(ws: list[Any], x: jax.Array) -> jax.Array:
        for w in ws:
            x = block(w, x)
        return jnp.mean(x**2)

    ws = [
        {
            "by_channel": normal(i, 5, 5, 1, 24, scale=0.2),
            "up": normal(i, 24, 96, scale=0.2),
            "down": normal(i, 96, 24, scale=0.1),
            "scale": jnp.full(24, 0.1),
        }
        for i in range(6)
    ]
    return loss, (ws, normal(9, 8, 16, 16, 24))


def decoder(checkpoint: Checkpoint) -> Case:
    """Queries that attend to an encoded image, and the nearest of several boxes."""

    def across(w: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
        scores = jnp.einsum("bqd,bmd->bqm", _norm(x) @ w["q"], memory @ w["k"])
        return jax.nn.softmax(scores / w["q"].shape[0] ** 0.5) @ (memory @ w["v"])

    @checkpoint
    def block(w: Any, x: jax.Array, memory: jax.Array) -> jax.Array:
        x = x + _attend(w["a"], x)
        x = x + across(w, x, memory)
        return x + jax.nn.relu(_norm(x) @ w["up"]) @ w["down"]

    def loss(ws: Any, memory: jax.Array, boxes: jax.Array) -> jax.Array:
        layers, queries = ws
        x = jnp.broadcast_to(queries, (memory.shape[0], *queries.shape))
        for w in layers:
            x = block(w, x, memory)
        apart = jnp.abs(x[:, :, None, :4] - boxes[:, None]).sum(-1)
        return jnp.mean(apart.min(1))

    layers = [
        {
            "a": normal(i, 32, 4, 32, scale=0.2),
            "q": normal(i + 20, 32, 32, scale=0.2),
            "k": normal(i + 40, 32, 32, scale=0.2),
            "v": normal(i + 60, 32, 32, scale=0.2),
            "up": normal(i, 32, 128, scale=0.2),
            "down": normal(i, 128, 32, scale=0.1),
        }
        for i in range(5)
    ]
    data = normal(9, 8, 64, 32), normal(10, 8, 6, 4)
    return loss, ((layers, normal(8, 24, 32)), *data)


NETS: dict[str, Callable[[Checkpoint], Case]] = {
    f.__name__: f
    for f in (
        mlp,
        transformer,
        experts,
        maml,
        gru,
        scanned,
        pinn,
        batch_norm,
        convnext,
        decoder,
    )
}
