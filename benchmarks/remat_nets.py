"""Nets that plans are compared on, each with a place for hand-written checkpoints.

Each is a function of `checkpoint`, which wraps its blocks, and returns a loss with its
arguments. `NETS` are in the table beside stock policies; the planner was not tuned on
`UNSEEN`, which were written after it, each in another library or style.
"""

import itertools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
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


def perceiver(checkpoint: Checkpoint) -> Case:
    """Flax nnx: latent vectors that read the input by cross-attention, six times."""

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.norms = nnx.List([nnx.LayerNorm(width, rngs=rngs) for _ in range(4)])
            how: dict[str, Any] = {"decode": False, "rngs": rngs}
            self.cross = nnx.MultiHeadAttention(4, width, **how)
            self.own = nnx.MultiHeadAttention(4, width, **how)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, latents: Any, x: Any) -> Any:
            x = self.norms[0](x)
            latents = latents + self.cross(self.norms[1](latents), x, x)
            y = self.norms[2](latents)
            latents = latents + self.own(y, y, y)
            y = nnx.gelu(self.up(self.norms[3](latents)))
            return latents + self.down(y)

    class Perceiver(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.latents = nnx.Param(rngs.normal((16, 32)))
            self.enter = nnx.Linear(12, 32, rngs=rngs)
            self.blocks = nnx.List([Block(32, rngs) for _ in range(6)])
            self.head = nnx.Linear(32, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = self.enter(x)
            rows = (x.shape[0], *self.latents[...].shape)
            latents = jnp.broadcast_to(self.latents[...], rows)
            for block in self.blocks:
                graph, state = nnx.split(block)
                run = checkpoint(lambda s, a, b, g=graph: nnx.merge(g, s)(a, b))
                latents = run(state, latents, x)
            return self.head(latents.mean(1))

    graph, params = nnx.split(Perceiver(nnx.Rngs(0)))

    def loss(params: Any, x: Any, labels: Any) -> Any:
        logits = nnx.merge(graph, params)(x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels, 1).mean()

    labels = jax.random.randint(jax.random.key(2), (16, 1), 0, 10)
    return loss, (params, normal(1, 16, 96, 12), labels)


def neural_ode(checkpoint: Checkpoint) -> Case:
    """Equinox: a field that is integrated by hand, with an error at each of 8 times."""
    field = eqx.nn.MLP(9, 8, 48, 2, activation=jax.nn.softplus, key=jax.random.key(0))
    params, static = eqx.partition(field, eqx.is_inexact_array)

    def loss(params: Any, start: Any, path: Any) -> Any:
        field = eqx.combine(params, static)
        slope = jax.vmap(lambda t, y: field(jnp.append(y, t)), (None, 0))
        h = 1.0 / 96

        @checkpoint
        def step(y: Any, t: Any) -> tuple[Any, None]:
            k1 = slope(t, y)
            k2 = slope(t + h / 2, y + h / 2 * k1)
            k3 = slope(t + h / 2, y + h / 2 * k2)
            k4 = slope(t + h, y + h * k3)
            return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        def until_next(y: Any, times: Any) -> tuple[Any, Any]:
            y, _ = lax.scan(step, y, times)
            return y, y

        times = h * jnp.arange(96.0).reshape(8, 12)
        _, ys = lax.scan(until_next, start, times)
        return jnp.mean((ys - path) ** 2) + 1e-4 * jnp.mean(jnp.abs(ys))

    return loss, (params, normal(1, 64, 8), normal(2, 8, 64, 8))


def message_passing(checkpoint: Checkpoint) -> Case:
    """Plain functions: nodes and edges of one graph, sums over edges, two losses."""

    def dense(key: Any, *sizes: int) -> Any:
        pairs = list(itertools.pairwise(sizes))
        keys = jax.random.split(key, len(pairs))
        draw = lambda k, a, b: jax.random.normal(k, (a, b)) / a**0.5
        return [
            {"w": draw(k, a, b), "b": jnp.zeros(b)}
            for k, (a, b) in zip(keys, pairs, strict=True)
        ]

    def run(layers: Any, x: Any) -> Any:
        for p in layers[:-1]:
            x = jax.nn.silu(x @ p["w"] + p["b"])
        return x @ layers[-1]["w"] + layers[-1]["b"]

    @checkpoint
    def pass_messages(p: Any, nodes: Any, edges: Any, ends: Any) -> tuple[Any, Any]:
        senders, receivers = ends
        both = jnp.concatenate([nodes[senders], nodes[receivers], edges], -1)
        edges = edges + run(p["edge"], both)
        scores = (edges * p["score"]).sum(-1)
        most = jax.ops.segment_max(scores, receivers, len(nodes))
        weights = jnp.exp(scores - lax.stop_gradient(most)[receivers])
        total = jax.ops.segment_sum(weights, receivers, len(nodes)) + 1e-6
        messages = edges * (weights / total[receivers])[:, None]
        received = jax.ops.segment_sum(messages, receivers, len(nodes))
        nodes = nodes + run(p["node"], jnp.concatenate([nodes, received], -1))
        return nodes, edges

    def loss(params: Any, nodes: Any, edges: Any, ends: Any, wanted: Any) -> Any:
        for p in params:
            nodes, edges = pass_messages(p, nodes, edges, ends)
        errors = jnp.mean((nodes[:, 0] - wanted) ** 2)
        return errors + 1e-3 * jnp.mean(jax.nn.logsumexp(edges, axis=-1) ** 2)

    params = [
        {
            "edge": dense(jax.random.key(i), 72, 48, 24),
            "node": dense(jax.random.key(i + 10), 48, 48, 24),
            "score": normal(i, 24, scale=0.2),
        }
        for i in range(6)
    ]
    ends = jax.random.randint(jax.random.key(1), (2, 1500), 0, 200)
    data = normal(2, 200, 24), normal(3, 1500, 24), (ends[0], ends[1]), normal(4, 200)
    return loss, (params, *data)


def selective_scan(checkpoint: Checkpoint) -> Case:
    """Flax linen: states with input-dependent decay, by an associative scan."""

    class Layer(nn.Module):
        width: int
        states: int = 4

        @nn.compact
        def __call__(self, x: Any) -> Any:
            y = nn.RMSNorm()(x)
            u, gate = jnp.split(nn.Dense(4 * self.width, use_bias=False)(y), 2, -1)
            inner = u.shape[-1]
            u = nn.Conv(inner, (4,), padding="CAUSAL", feature_group_count=inner)(u)
            u = nn.silu(u)
            step = nn.softplus(nn.Dense(inner)(nn.Dense(2)(u)))
            read, write = jnp.split(nn.Dense(2 * self.states)(u), 2, -1)
            rates = -jnp.exp(
                self.param("rates", nn.initializers.zeros, (inner, self.states))
            )
            decay = jnp.exp(step[..., None] * rates)
            new = (step * u)[..., None] * write[..., None, :]
            join = lambda a, b: (a[0] * b[0], b[0] * a[1] + b[1])
            _, h = lax.associative_scan(join, (decay, new), axis=1)
            out = (h * read[..., None, :]).sum(-1) + u
            return x + nn.Dense(self.width, use_bias=False)(out * nn.silu(gate))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, tokens: Any) -> Any:
            embed = nn.Embed(64, 24)
            x = embed(tokens)
            for i in range(4):
                x = wrapped(24, name=f"layer_{i}")(x)
            return embed.attend(nn.RMSNorm()(x))

    wrapped: Any = nn.remat(Layer) if checkpoint is jax.checkpoint else Layer
    net = Net()
    tokens = jax.random.randint(jax.random.key(1), (8, 32), 0, 64)

    def loss(params: Any, tokens: Any) -> Any:
        logits = jax.nn.log_softmax(jnp.asarray(net.apply(params, tokens))[:, :-1])
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], -1).mean()

    return loss, (net.init(jax.random.key(0), tokens), tokens)


def two_tasks(checkpoint: Checkpoint) -> Case:
    """A trunk for two views of an image: a contrastive loss, and one for each pixel."""

    def convolve(w: Any, x: Any, stride: int = 1) -> Any:
        names = ("NHWC", "HWIO", "NHWC")
        pads, steps = "SAME", (stride, stride)
        return lax.conv_general_dilated(x, w, steps, pads, dimension_numbers=names)

    @checkpoint
    def block(w: Any, x: Any) -> Any:
        groups = x.reshape(*x.shape[:3], 4, -1)
        centred = groups - groups.mean((1, 2, 4), keepdims=True)
        scale = lax.rsqrt(jnp.mean(centred**2, (1, 2, 4), keepdims=True) + 1e-5)
        y = (centred * scale).reshape(x.shape)
        return x + convolve(w[1], jax.nn.relu(convolve(w[0], y)))

    def trunk(params: Any, image: Any) -> Any:
        x = convolve(params["enter"], image)
        for w in params["blocks"]:
            x = block(w, x)
        return x

    def loss(params: Any, one: Any, other: Any, mask: Any) -> Any:
        a, b = trunk(params, one), trunk(params, other)
        flat = lambda x: x.mean((1, 2)) @ params["project"]
        unit = lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        logits = unit(flat(a)) @ unit(flat(b)).T / 0.1
        diagonal = lambda z: -jnp.diagonal(jax.nn.log_softmax(z)).mean()
        pixels = convolve(params["pixels"], a)[..., 0]
        errors = jnp.logaddexp(0.0, pixels) - mask * pixels
        return diagonal(logits) + diagonal(logits.T) + 0.5 * errors.mean()

    params = {
        "enter": normal(0, 3, 3, 3, 16, scale=0.3),
        "blocks": [normal(i, 2, 3, 3, 16, 16, scale=0.08) for i in range(1, 6)],
        "project": normal(7, 16, 16, scale=0.25),
        "pixels": normal(8, 1, 1, 16, 1, scale=0.25),
    }
    images = normal(9, 2, 16, 16, 16, 3)
    mask = (normal(10, 16, 16, 16) > 0).astype(jnp.float32)
    return loss, (params, *images, mask)


UNSEEN: dict[str, Callable[[Checkpoint], Case]] = {
    f.__name__: f
    for f in (perceiver, neural_ode, message_passing, selective_scan, two_tasks)
}
