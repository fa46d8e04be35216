"""The six nets that rematerialisation is measured on: losses in plain JAX.

Each is the kind of thing that runs out of memory: deep and straight, deep and
branching, long skips, many rounds. Widths are small, so that all six compile and run
on a laptop; shares of memory and flops do not depend on that much.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class Net:
    """A loss and the shapes it is called with.

    Attributes:
        loss: from (params, x) to one number.
        params: their shapes.
        x: the shape of a batch.
        by_layer: from a wrapper, such as `jax.checkpoint`, to the same loss with that
            around each layer, as people place it by hand.
        unrolled: whether its layers are written out, not scanned.
    """

    loss: Callable[..., Any]
    params: Any
    x: jax.ShapeDtypeStruct
    by_layer: Callable[[Callable[..., Any]], Callable[..., Any]]
    unrolled: bool = True

    @property
    def shapes(self) -> tuple[Any, Any]:
        """Abstract arguments for planning."""
        return self.params, self.x

    def arrays(self, seed: int = 0) -> tuple[Any, Any]:
        """Concrete arguments: weights of a sensible size, and normal data."""
        leaves, tree = jax.tree.flatten(self.params)
        keys = jax.random.split(jax.random.key(seed), len(leaves) + 1)
        made = []
        for key, s in zip(keys, leaves, strict=False):
            fan_in = max(s.size // s.shape[-1], 1) if len(s.shape) > 1 else 1
            made.append(jax.random.normal(key, s.shape, s.dtype) / fan_in**0.5)
        return tree.unflatten(made), jax.random.normal(keys[-1], self.x.shape)


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _net(
    make: Callable[..., Any], params: Any, x: Any, *, unrolled: bool = True
) -> Net:
    return Net(make(lambda layer: layer), params, x, make, unrolled)


def mlp(depth: int = 24, width: int = 256, batch: int = 1024) -> Net:
    """A residual MLP, one matrix a layer."""

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(lambda w, x: x + jax.nn.gelu(x @ w))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            for w in params:
                x = layer(w, x)
            return jnp.mean(x**2)

        return loss

    return _net(make, [_f32(width, width)] * depth, _f32(batch, width))


def _norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def _block(p: Any, x: jax.Array, heads: int) -> jax.Array:
    batch, length, width = x.shape
    split = lambda y: y.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
    q, k, v = (split(y) for y in jnp.split(_norm(x) @ p["qkv"], 3, -1))
    scores = q @ k.transpose(0, 1, 3, 2) / (width / heads) ** 0.5
    causal = jnp.tril(jnp.ones((1, 1, length, length), bool))
    mixed = jax.nn.softmax(jnp.where(causal, scores, -1e9)) @ v
    x = x + mixed.transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
    return x + jax.nn.gelu(_norm(x) @ p["up"]) @ p["down"]


def _block_shapes(width: int, *lead: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        "qkv": _f32(*lead, width, 3 * width),
        "out": _f32(*lead, width, width),
        "up": _f32(*lead, width, 4 * width),
        "down": _f32(*lead, 4 * width, width),
    }


def transformer(
    depth: int = 12, width: int = 128, batch: int = 8, length: int = 128, heads: int = 4
) -> Net:
    """Pre-norm decoder blocks, written out one after the other."""

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(functools.partial(_block, heads=heads))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            for p in params:
                x = layer(p, x)
            return jnp.mean(x**2)

        return loss

    return _net(make, [_block_shapes(width)] * depth, _f32(batch, length, width))


def scanned_transformer(
    depth: int = 48, width: int = 128, batch: int = 4, length: int = 128, heads: int = 4
) -> Net:
    """The same blocks in a `lax.scan` over their weights."""

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(functools.partial(_block, heads=heads))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            x, _ = lax.scan(lambda x, p: (layer(p, x), None), x, params)
            return jnp.mean(x**2)

        return loss

    shapes = _block_shapes(width, depth)
    return _net(make, shapes, _f32(batch, length, width), unrolled=False)


def rnn(steps: int = 1000, width: int = 64, batch: int = 32) -> Net:
    """A plain recurrent net over many steps."""

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        cell = wrap(lambda p, h, x: jnp.tanh(h @ p["h"] + x @ p["x"]))

        def loss(params: Any, x: jax.Array) -> jax.Array:
            start = jnp.zeros((batch, width))
            h, _ = lax.scan(lambda h, x: (cell(params, h, x), None), start, x)
            return jnp.mean(h**2)

        return loss

    params = {"h": _f32(width, width), "x": _f32(width, width)}
    return _net(make, params, _f32(steps, batch, width), unrolled=False)


def _conv(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _channel_norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean((1, 2), keepdims=True)
    return centred * lax.rsqrt((centred**2).mean((1, 2), keepdims=True) + 1e-5)


def resnet(
    blocks: tuple[int, ...] = (3, 4, 6, 3),
    width: int = 16,
    batch: int = 8,
    size: int = 32,
) -> Net:
    """Basic residual blocks in four stages, as in ResNet-34."""

    def basic(p: Any, x: jax.Array) -> jax.Array:
        stride = p["a"].shape[-1] // x.shape[-1]
        y = jax.nn.relu(_channel_norm(_conv(x, p["a"], stride)))
        y = _channel_norm(_conv(y, p["b"]))
        return jax.nn.relu(y + (_conv(x, p["skip"], stride) if "skip" in p else x))

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(basic)

        def loss(params: Any, x: jax.Array) -> jax.Array:
            x = jax.nn.relu(_channel_norm(_conv(x, params["stem"])))
            for p in params["blocks"]:
                x = layer(p, x)
            return jnp.mean(jax.nn.logsumexp(x.mean((1, 2)) @ params["head"], axis=-1))

        return loss

    params: dict[str, Any] = {"stem": _f32(3, 3, 3, width), "blocks": []}
    before = width
    for stage, n in enumerate(blocks):
        after = width * 2**stage
        for _ in range(n):
            p = {"a": _f32(3, 3, before, after), "b": _f32(3, 3, after, after)}
            if before != after:
                p["skip"] = _f32(1, 1, before, after)
            params["blocks"].append(p)
            before = after
    params["head"] = _f32(before, 10)
    return _net(make, params, _f32(batch, size, size, 3))


def unet(depth: int = 3, width: int = 16, batch: int = 4, size: int = 64) -> Net:
    """Down and up again, with a skip across each level."""

    def double(p: Any, x: jax.Array) -> jax.Array:
        x = jax.nn.gelu(_channel_norm(_conv(x, p["a"])))
        return jax.nn.gelu(_channel_norm(_conv(x, p["b"])))

    def make(wrap: Callable[..., Any]) -> Callable[..., Any]:
        layer = wrap(double)

        def loss(params: Any, x: jax.Array) -> jax.Array:
            given, skips = x, []
            for p in params["down"]:
                x = layer(p, x)
                skips.append(x)
                n, h, w, c = x.shape
                x = x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))
            x = layer(params["middle"], x)
            for p, skip in zip(params["up"], reversed(skips), strict=True):
                x = jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)
                x = layer(p, jnp.concatenate([x, skip], -1))
            return jnp.mean((_conv(x, params["head"]) - given) ** 2)

        return loss

    pair = lambda a, b: {"a": _f32(3, 3, a, b), "b": _f32(3, 3, b, b)}
    at = [width * 2**i for i in range(depth + 1)]
    down = [pair(a, b) for a, b in zip([3, *at], at[:-1], strict=False)]
    up = [pair(a + b, b) for a, b in zip(at[:0:-1], at[-2::-1], strict=True)]
    params = {
        "down": down,
        "middle": pair(at[-2], at[-1]),
        "up": up,
        "head": _f32(1, 1, width, 3),
    }
    return _net(make, params, _f32(batch, size, size, 3))


NETS: dict[str, Callable[[], Net]] = {
    "mlp24": mlp,
    "transformer12": transformer,
    "unet": unet,
    "resnet34": resnet,
    "rnn1000": rnn,
    "scan48": scanned_transformer,
}
