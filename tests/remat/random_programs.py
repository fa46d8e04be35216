"""Random losses: DAGs with skips over all kinds of operations, from a seed.

Every value is a small matrix of one shape, so that any operation can follow any other.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROWS, WIDTH = 6, 4
Kind = Literal["float32", "float64", "bfloat16", "float16"]
# h: the last value; skip: any earlier one; w: its weights; side: other inputs.
Operation = Callable[[Any, Any, Any, dict[str, Any]], Any]


def product(h, skip, w, side):
    return jnp.tanh(h @ w)


def residual(h, skip, w, side):
    return h + jax.nn.gelu(h @ w)


def add_skip(h, skip, w, side):
    return jnp.sin(h @ w) + skip


def times_skip(h, skip, w, side):
    return jnp.tanh(h @ w) * skip


def same_value_twice(h, skip, w, side):
    return h * h + (h + h) @ w


def concatenate(h, skip, w, side):
    return jnp.concatenate([h, skip, h[:, :1]], axis=1)[:, 2 : 2 + WIDTH] @ w


def halves(h, skip, w, side):
    left, right = jnp.split(h @ w, 2, axis=1)
    return jnp.concatenate([right * left, left], axis=1)


def normalise(h, skip, w, side):
    far = h - h.mean(axis=1, keepdims=True)
    return far * lax.rsqrt((far**2).mean(axis=1, keepdims=True) + 1) * w[:1]


def attend(h, skip, w, side):
    scores = jnp.where(side["mask"], h @ skip.T, jnp.asarray(-9, h.dtype))
    return jax.nn.softmax(scores, axis=1) @ (h @ w)


def mean_of_all(h, skip, w, side):
    return h * jnp.tanh(skip.mean() * w.sum())


def dropout(h, skip, w, side):
    kept = jax.random.bernoulli(side["key"], 0.7, h.shape)
    return jnp.where(kept, jnp.tanh(h @ w), jnp.zeros((), h.dtype))


def noise(h, skip, w, side):
    seed = jax.random.fold_in(side["key"], 7)
    return h + w[0, 0] * jax.random.normal(seed, h.shape, h.dtype)


def gather(h, skip, w, side):
    return h[:, side["order"]] + jnp.take(w, side["index"] % WIDTH, axis=0)[None]


def constant(h, skip, w, side):
    return h * jnp.asarray(np.linspace(0.5, 1.5, WIDTH), h.dtype)[None] + skip @ w


def jitted(h, skip, w, side):
    return jax.jit(lambda a, b: jnp.cos(a @ b))(h, w)


def checkpointed(h, skip, w, side):
    return jax.checkpoint(lambda a: jnp.sin(jnp.sin(a @ w)))(h)


def mapped(h, skip, w, side):
    return jax.vmap(lambda a, b: jnp.tanh(a @ w) + b)(h, skip)


def mapped_weights(h, skip, w, side):
    rows = jax.vmap(lambda a, b, u: jnp.tanh(a @ u) * b, in_axes=(None, None, 0))
    return rows(h, skip, jnp.stack([w, w.T])).mean(0)


def sharded(h, skip, w, side):
    """Rows on each device, of which there is one, and a sum over the devices."""
    mesh = jax.sharding.Mesh(jax.devices()[:1], ("d",))
    rows, whole = jax.P("d"), jax.P()

    @functools.partial(
        jax.shard_map, mesh=mesh, in_specs=(rows, rows, whole), out_specs=rows
    )
    def on_device(a, b, u):
        return jnp.tanh(a @ u) + b * lax.psum(a.sum(), "d") / a.size

    return on_device(h, skip, w)


def branch(h, skip, w, side):
    return lax.cond(h.sum() > 0, lambda a: jnp.sin(a @ w), lambda a: a * skip, h)


def switch(h, skip, w, side):
    return lax.switch(side["index"] % 3, [jnp.sin, lambda a: a @ w, jnp.negative], h)


def scanned(h, skip, w, side):
    def one_round(carry, row):
        return jnp.tanh(carry @ w) + row, carry.sum()

    last, sums = lax.scan(one_round, h, w[:, None])
    return last + sums.mean()


def while_loop(h, skip, w, side):
    start = (side["index"] % 3, lax.stop_gradient(h))
    grow = lambda s: (s[0] + 1, s[1] / 2 + 1)
    return h * lax.while_loop(lambda s: s[0] < 4, grow, start)[1]


def stopped(h, skip, w, side):
    return h + lax.stop_gradient(jnp.cos(skip @ w))


@jax.custom_vjp
def _tamed(x):
    return 2 * x


_tamed.defvjp(lambda x: (2 * x, jnp.cos(x)), lambda cos, g: (g * cos,))


def custom_vjp(h, skip, w, side):
    return _tamed(h @ w)


@jax.custom_jvp
def _bent(x):
    return jnp.exp(-(x**2))


@_bent.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return _bent(x), jnp.cos(x) * t


def custom_jvp(h, skip, w, side):
    return _bent(h @ w)


def rectified(h, skip, w, side):
    return jax.nn.relu(h @ w) + jnp.abs(skip)


def largest(h, skip, w, side):
    return h - (h @ w).max(axis=1, keepdims=True)


def sort(h, skip, w, side):
    return jnp.sort(h @ w, axis=1)


def rounded(h, skip, w, side):
    return jnp.floor(4 * h) / 4 + skip @ w


def running_sum(h, skip, w, side):
    return jnp.cumsum(h @ w, axis=0) / ROWS


def turned(h, skip, w, side):
    z = lax.complex(h, skip) * np.exp(1j).astype(np.result_type(h.dtype, np.complex64))
    return z.real @ w + z.imag


def lower(h, skip, w, side):
    return (h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(h.dtype)


SMOOTH: tuple[Operation, ...] = (
    product,
    residual,
    add_skip,
    times_skip,
    same_value_twice,
    concatenate,
    halves,
    normalise,
    attend,
    mean_of_all,
    dropout,
    noise,
    gather,
    constant,
    jitted,
    checkpointed,
    mapped,
    mapped_weights,
    sharded,
    switch,
    scanned,
    while_loop,
    stopped,
    custom_vjp,
    custom_jvp,
)
# In few bits, two roundings of one number are often told apart by these; or they know
# no such numbers.
SHARP: tuple[Operation, ...] = (
    branch,
    rectified,
    largest,
    sort,
    rounded,
    running_sum,
    turned,
)


@dataclasses.dataclass(frozen=True)
class Case:
    """One random program; `jax.value_and_grad(loss, **how)(*args)` is the reference."""

    loss: Callable[..., Any]
    args: tuple[Any, ...]
    how: dict[str, Any]
    operations: tuple[str, ...]


def random_case(seed: int, kind: Kind) -> Case:
    """A loss of 2 to 5 operations, in numbers of this kind."""
    rng = np.random.default_rng(seed)
    pool = SMOOTH if kind in ("bfloat16", "float16") else SMOOTH + SHARP
    if kind == "float16":
        pool = (*pool, lower)
    count = int(rng.integers(2, 6))
    operations = tuple(pool[i] for i in rng.integers(0, len(pool), count))
    skips = tuple(int(rng.integers(0, i + 1)) for i in range(count))
    array = lambda *s: jnp.asarray(rng.normal(size=s) / 2, kind)
    params = {
        "layers": [array(WIDTH, WIDTH) for _ in range(count)],
        "head": (array(WIDTH), None),
    }
    side = {
        "key": jax.random.key(seed),
        "index": jnp.int32(rng.integers(0, 9)),
        "order": jnp.asarray(rng.permutation(WIDTH)),
        "mask": jnp.asarray(rng.random((ROWS, ROWS)) < 0.7),
    }
    has_aux = bool(rng.random() < 0.4)

    def loss(params, x, side, *, power):
        values = [x]
        keys = jax.random.split(side["key"], count)
        plan = zip(operations, skips, params["layers"], keys, strict=True)
        for operation, skip, w, key in plan:
            here = side | {"key": key}
            values.append(operation(values[-1], values[skip], w, here))
        out = (values[-1] + values[count // 2]) * params["head"][0][None]
        number = jnp.mean(jnp.tanh(out) ** power)
        more = {"last": values[-1], "index": side["index"] + 1, "sum": x.sum()}
        return (number, more) if has_aux else number

    argnums = ((0,), (0, 1), (1,), 0, 0)[rng.integers(0, 5)]
    how = {"argnums": argnums, "has_aux": has_aux}
    args = (params, array(ROWS, WIDTH), side)
    names = tuple(f.__name__ for f in operations)
    return Case(functools.partial(loss, power=2), args, how, names)


def random_net(seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A chain (even seeds) or a DAG of 4 to 10 blocks of random widths, and its shapes.

    Each block has one product, and its operations one result each, as the oracle wants.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 11))
    simple = ["tanh", "sin", "linear", "silu"]
    kinds = (
        simple if seed % 2 == 0 else [*simple[:3], "residual", "add", "mul", "concat"]
    )
    widths = [int(16 * rng.integers(1, 9))]
    blocks: list[tuple[str, int]] = []
    shapes: list[tuple[int, int]] = []
    for i in range(count):
        kind, skip = str(rng.choice(kinds)), int(rng.integers(0, i + 1))
        width = int(16 * rng.integers(1, 9))
        width = {"residual": widths[-1], "add": widths[skip], "mul": widths[skip]}.get(
            kind, width
        )
        read = widths[-1] + (widths[skip] if kind == "concat" else 0)
        blocks.append((kind, skip))
        shapes.append((read, width))
        widths.append(width)

    def loss(ws, x):
        values = [x]
        for (kind, skip), w in zip(blocks, ws, strict=True):
            h, other = values[-1], values[skip]
            if kind == "concat":
                h = jnp.concatenate([h, other], axis=1)
            y = h @ w
            match kind:
                case "linear":
                    new = y
                case "sin":
                    new = jnp.sin(y)
                case "silu":
                    new = y * lax.logistic(y)
                case "residual":
                    new = h + jnp.tanh(y)
                case "add":
                    new = other + jnp.tanh(y)
                case "mul":
                    new = other * jnp.tanh(y)
                case _:
                    new = jnp.tanh(y)
            values.append(new)
        return jnp.sum(values[-1])

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return loss, ([array(*s) for s in shapes], array(64, widths[0]))
