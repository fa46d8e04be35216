"""Plans for nets that the planner was not tuned on, each written in another way.

    python -m benchmarks.remat_unseen [NET ...]

Each net is planned for 0.5 and 0.25 of its plain temporary bytes. Beside it stands one
`jax.checkpoint` for each of its blocks, by hand, with XLA's barriers kept. Bytes and
flops are the same each time. Gradients are compared with those of JAX: the column shows
the largest error, relative to the largest number of its array, or to 1e-4 of that of
all arrays where this is more: gradients that are zero in theory are rounding alone.
"""

import itertools
import sys
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.remat_cases import said
from benchmarks.remat_policies import Case, Checkpoint, compile_gradient, normal
from flax import nnx
from jax import lax

from frugax import InfeasibleBudgetError, MemoryBudget, remat
from frugax.budget import table
from frugax.targets import Target

SHARES = (0.5, 0.25)
HERE = Target("cpu")
_ROUNDING = 1e-4


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


NETS: dict[str, Callable[[Checkpoint], Case]] = {
    f.__name__: f
    for f in (perceiver, neural_ode, message_passing, selective_scan, two_tasks)
}


def worst_error(loss: Any, args: Any, plan: remat.RematPlan) -> float:
    """The largest error of the value and the gradients of a plan.

    Gradients that are zero but for rounding, such as those of the biases of keys, are
    compared with `_ROUNDING` of the largest number of all.
    """
    got = jax.tree.leaves(jax.jit(remat.apply(loss, plan))(*args))
    want = jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(*args))
    sizes = [float(np.abs(w).max()) for w in want]
    least = _ROUNDING * max(sizes)
    errors = [float(np.abs(g - w).max()) for g, w in zip(got, want, strict=True)]
    return max(e / max(s, least) for e, s in zip(errors, sizes, strict=True))


def measure_rows(name: str) -> list[list[str]]:
    """The rows of one net: by hand, and each share."""
    make = NETS[name]
    loss, args = make(lambda f: f)
    plain, plain_flops = compile_gradient(loss, args, HERE)
    size, count = compile_gradient(*make(jax.checkpoint), HERE)
    more = f"+{count / plain_flops - 1:.1%}"
    rows = [[name, "a checkpoint a block", f"{size / plain:.3f}", more, "-", "-", "-"]]
    budgets: list[tuple[str, Any]]
    budgets = [(f"{share:g}", MemoryBudget.share(share)) for share in SHARES]
    if size < plain:
        budgets.append(("that of by hand", MemoryBudget(limit_bytes=size)))
    for told, budget in budgets:
        begun = time.process_time()
        start = ""
        try:
            plan = remat.plan(loss, budget, args, cache=False)
        except InfeasibleBudgetError as e:
            plan, start = e.best, "**needs** "
        assert isinstance(plan, remat.RematPlan)
        seconds = time.process_time() - begun
        measured = remat.apply(loss, plan).report(*args).spends[0].measured
        assert measured is not None
        used = f"{start}{measured / plain:.3f}"
        if measured > plan.budget.usable_bytes:
            used += " **over**"
        chunks = str(plan.batch.count) if plan.batch else "1"
        error = f"{worst_error(loss, args, plan):.0e}"
        more = f"+{plan.extra_share:.1%}"
        rows.append([name, told, used, more, chunks, error, f"{seconds:.0f}"])
    return rows


def main() -> None:
    names = sys.argv[1:] or list(NETS)
    if unknown := set(names) - set(NETS):
        sys.exit(f"no such net: {', '.join(sorted(unknown))}; have {', '.join(NETS)}.")
    rows: list[list[str]] = []
    for name in names:
        said(name)
        rows += measure_rows(name)
        print(table([""] * 7, rows[-4:]), file=sys.stderr, flush=True)
    head = ["net", "budget", "measured", "more flops", "chunks", "error", "planning, s"]
    print(table(head, rows))


if __name__ == "__main__":
    main()
