"""The nets of `models.py` by hand in JAX, in frugax, flax nnx, equinox and torch.

All start from the same float32 weights: NumPy arrays under one set of names and in one
layout, that of torch: `(out, in)` for matrices, `(out, in, height, width)` for kernels,
images with channels first. Each library turns them into its own form. A program returns
loss and gradients of all weights; the loss is the mean square, which needs no labels.
"""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from frugax import models

Arrays = dict[str, np.ndarray]
Params = dict[str, jax.Array]
KEY = jax.random.key(0)
EPSILON = 1e-5  # of LayerNorm


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net:
    """The common fields of all nets.

    Attributes:
        batch: examples a step.
    """

    batch: int

    @property
    def input_shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the weights."""
        raise NotImplementedError

    def weights(self) -> dict[str, np.ndarray]:
        """The same at every call: matrices that keep the scale, biases that show."""
        rng = np.random.default_rng(0)
        made = {}
        for name, shape in self.shapes().items():
            drawn = rng.standard_normal(shape)
            if name.endswith("bias"):
                drawn = 0.1 * drawn
            elif len(shape) == 1:
                drawn = 1 + 0.1 * drawn
            else:
                drawn = drawn / math.sqrt(math.prod(shape[1:]))
            made[name] = drawn.astype(np.float32)
        return made

    def data(self) -> np.ndarray:
        """A batch."""
        drawn = np.random.default_rng(1).standard_normal(self.input_shape)
        return drawn.astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Net):
    """Linear layers, a ReLU between each two.

    Attributes:
        sizes: features, from the input to the output.
    """

    sizes: tuple[int, ...]

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.sizes[0]

    @property
    def depth(self) -> int:
        return len(self.sizes) - 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(itertools.pairwise(self.sizes)):
            made |= {f"{i}.weight": (after, before), f"{i}.bias": (after,)}
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoder(Net):
    """Pre-norm transformer blocks: attention, then two linear layers and a GELU (erf).

    Attributes:
        layers: blocks.
        length: tokens of an example.
        width: features of a token.
        heads: of attention.
        hidden: features between the two linear layers.
    """

    layers: int = 4
    length: int = 64
    width: int = 128
    heads: int = 4
    hidden: int = 512

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.length, self.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        linear = {
            "qkv": (3 * self.width, self.width),
            "out": (self.width, self.width),
            "up": (self.hidden, self.width),
            "down": (self.width, self.hidden),
        }
        made: dict[str, tuple[int, ...]] = {}
        for i in range(self.layers):
            for norm in ("norm1", "norm2"):
                made[f"{i}.{norm}.weight"] = (self.width,)
                made[f"{i}.{norm}.bias"] = (self.width,)
            for name, shape in linear.items():
                made[f"{i}.{name}.weight"] = shape
                made[f"{i}.{name}.bias"] = shape[:1]
        return made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conv(Net):
    """3x3 convolutions that keep the size, each with ReLU and 2x2 max-pooling; linear.

    Attributes:
        size: height and width of an image.
        channels: from the input's to those of the last convolution.
        classes: outputs.
    """

    size: int = 32
    channels: tuple[int, ...] = (3, 16, 32, 64)
    classes: int = 10

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.batch, self.channels[0], self.size, self.size

    @property
    def depth(self) -> int:
        return len(self.channels) - 1

    @property
    def last(self) -> tuple[int, int, int]:
        """The input of the linear layer: channels, height, width."""
        side = self.size // 2**self.depth
        return self.channels[-1], side, side

    def shapes(self) -> dict[str, tuple[int, ...]]:
        made: dict[str, tuple[int, ...]] = {}
        for i, (before, after) in enumerate(itertools.pairwise(self.channels)):
            made |= {f"{i}.weight": (after, before, 3, 3), f"{i}.bias": (after,)}
        made["head.weight"] = (self.classes, math.prod(self.last))
        made["head.bias"] = (self.classes,)
        return made


NETS: dict[str, Net] = {
    "mlp": MLP(sizes=(784, 256, 128, 10), batch=128),
    "encoder": Encoder(batch=8),
    "conv": Conv(batch=16),
    "linear4": MLP(sizes=(4, 4), batch=1),
    "deep8": MLP(sizes=(8,) * 11, batch=1),
}
# Nets timed by their step, and nets timed by their dispatch.
SIZED = ("mlp", "encoder", "conv")
TINY = ("linear4", "deep8")


@dataclasses.dataclass(frozen=True)
class Program:
    """One net in one library: loss with gradients, and the output alone."""

    step: Callable[[], Any]
    forward: Callable[[], Any]


def loss_of(out: jax.Array) -> jax.Array:
    return jnp.mean(out * out)


# --- by hand in JAX -----------------------------------------------------------------


def rows_by(x: jax.Array, weight: jax.Array) -> jax.Array:
    """`x W^T`, with no transpose written."""
    return lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))


def transposed(arrays: Arrays) -> Arrays:
    """Transpose matrices between `(out, in)` and `(in, out)`; keep other arrays."""
    return {k: v.T if v.ndim == 2 else v for k, v in arrays.items()}


def channels_last(net: Conv, arrays: Arrays) -> Arrays:
    """Kernels as `HWIO`, and the matrix behind them for images with channels last."""
    made = {k: v.transpose(2, 3, 1, 0) if v.ndim == 4 else v for k, v in arrays.items()}
    matrix = made["head.weight"].reshape(-1, *net.last).transpose(2, 3, 1, 0)
    return made | {"head.weight": matrix.reshape(-1, net.classes)}


def normal(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPSILON)


def heads_first(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    q, k, v = (y.transpose(0, 2, 1, 3) for y in (q, k, v))
    scores = q * q.shape[-1] ** -0.5 @ k.swapaxes(2, 3)
    return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)


def gelu_by_erf(x: jax.Array) -> jax.Array:
    return 0.5 * x * (1 + lax.erf(x * 0.5**0.5))


def separate(arrays: Arrays) -> Arrays:
    """Separate weights for queries, keys and values."""
    made = {k: v for k, v in arrays.items() if ".qkv." not in k}
    for name, both in arrays.items():
        if ".qkv." in name:
            for one, part in zip("qkv", np.split(both, 3), strict=True):
                made[name.replace("qkv", one)] = part
    return made


def stacked(arrays: Arrays) -> Arrays:
    """Each kind of weight of all blocks as one array, the block first."""
    blocks = max(int(name.partition(".")[0]) for name in arrays) + 1
    kinds = [name.partition(".")[2] for name in arrays if name.startswith("0.")]
    return {k: np.stack([arrays[f"{i}.{k}"] for i in range(blocks)]) for k in kinds}


def mlp_by_hand(net: MLP, linear: Callable[..., Any]) -> Callable[..., Any]:
    def forward(params: Params, x: jax.Array) -> jax.Array:
        for i in range(net.depth):
            x = linear(x, params[f"{i}.weight"]) + params[f"{i}.bias"]
            x = jax.nn.relu(x) if i < net.depth - 1 else x
        return x

    return forward


def encoder_by_hand(
    net: Encoder,
    *,
    attention: Callable[..., jax.Array],
    linear: Callable[..., jax.Array],
    gelu: Callable[[jax.Array], jax.Array],
    flat: bool = False,
) -> Callable[..., Any]:
    """An encoder.

    Args:
        net: its sizes.
        attention: of queries, keys, values `(batch, length, heads, features)`.
        linear: `jnp.matmul` for weights `(in, out)`, else `(out, in)`.
        gelu: with the error function.
        flat: whether examples and tokens are one axis outside attention.
    """
    split = (net.batch, net.length, net.heads, net.width // net.heads)
    inside = (net.batch * net.length, net.width) if flat else net.input_shape

    def block(own: Params, x: jax.Array) -> jax.Array:
        def affine(name: str, x: jax.Array) -> jax.Array:
            return linear(x, own[f"{name}.weight"]) + own[f"{name}.bias"]

        def normed(name: str, x: jax.Array) -> jax.Array:
            return normal(x) * own[f"{name}.weight"] + own[f"{name}.bias"]

        parts = jnp.split(affine("qkv", normed("norm1", x)), 3, -1)
        mixed = attention(*(p.reshape(split) for p in parts))
        x = x + affine("out", mixed.reshape(inside))
        return x + affine("down", gelu(affine("up", normed("norm2", x))))

    def forward(params: Params, x: jax.Array) -> jax.Array:
        x = x.reshape(inside)
        kinds = [name.partition(".")[2] for name in params if name.startswith("0.")]
        for i in range(net.layers):
            x = block({k: params[f"{i}.{k}"] for k in kinds}, x)
        return x.reshape(net.input_shape)

    return forward


def pool_by_window(x: jax.Array) -> jax.Array:
    """2x2 max-pooling as JAX has it."""
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def pool_by_halves(x: jax.Array) -> jax.Array:
    """2x2 max-pooling as the larger of two strided slices, one axis after the other."""
    for axis in (1, 2):
        even = lax.slice_in_dim(x, 0, None, 2, axis)
        x = jnp.maximum(even, lax.slice_in_dim(x, 1, None, 2, axis))
    return x


def conv_by_hand(net: Conv, pool: Callable[..., Any]) -> Callable[..., Any]:
    names = ("NHWC", "HWIO", "NHWC")

    def forward(params: Params, x: jax.Array) -> jax.Array:
        for i in range(net.depth):
            w, b = params[f"{i}.weight"], params[f"{i}.bias"]
            y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=names)
            x = pool(jax.nn.relu(y + b))
        return x.reshape(net.batch, -1) @ params["head.weight"] + params["head.bias"]

    return forward


def by_hand(net: Net) -> dict[str, Program]:
    """The usual form of a net, and the quickest that was found."""
    weights, x = net.weights(), net.data()
    forms: dict[str, tuple[Callable[..., Any], Arrays]]
    if isinstance(net, MLP):
        forms = {
            "x @ W, W (in, out)": (mlp_by_hand(net, jnp.matmul), transposed(weights)),
            "x @ W.T, W (out, in)": (mlp_by_hand(net, lambda x, w: x @ w.T), weights),
        }
    elif isinstance(net, Encoder):
        usual = encoder_by_hand(
            net,
            attention=jax.nn.dot_product_attention,
            linear=jnp.matmul,
            gelu=functools.partial(jax.nn.gelu, approximate=False),
        )
        best = encoder_by_hand(
            net, attention=heads_first, linear=rows_by, gelu=gelu_by_erf, flat=True
        )
        forms = {
            "as usual": (usual, transposed(weights)),
            "flat, W (out, in), heads first": (best, weights),
        }
    else:
        assert isinstance(net, Conv)
        x, own = x.transpose(0, 2, 3, 1).copy(), channels_last(net, weights)
        forms = {
            "NHWC, reduce_window": (conv_by_hand(net, pool_by_window), own),
            "NHWC, pool by halves": (conv_by_hand(net, pool_by_halves), own),
        }
    made: dict[str, Program] = {}
    for name, (forward, own) in forms.items():
        params = {k: jnp.asarray(v) for k, v in own.items()}
        loss = lambda p, x, f=forward: loss_of(f(p, x))
        step = jax.jit(jax.value_and_grad(loss))
        both = (
            functools.partial(f, params, jnp.asarray(x))
            for f in (step, jax.jit(forward))
        )
        made[f"JAX: {name}"] = Program(*both)
    return made


# --- frugax -------------------------------------------------------------------------

# Inside a block: the benchmark's names, and those of the layers.
BLOCK = {
    "norm1": "attention_norm",
    "q": "attention.query",
    "k": "attention.key",
    "v": "attention.value",
    "out": "attention.output",
    "norm2": "mlp_norm",
    "up": "mlp.up",
    "down": "mlp.down",
}


def model_of(net: Net) -> models.Layer:
    if isinstance(net, MLP):
        *hidden, last = net.sizes[1:]
        if not hidden:
            return models.Linear(last)
        return models.MLP(net.sizes[0], hidden, last)
    if isinstance(net, Encoder):
        block = models.TransformerBlock(net.width, net.heads, net.hidden)
        return models.Model(models.Repeat(block, net.layers, name="block"))
    assert isinstance(net, Conv)
    model = models.Model()
    for channels in net.channels[1:]:
        model += models.Conv2D(channels)
        model += models.Relu()
        model += models.MaxPool2D(2)
    model += models.Flatten()
    model += models.Linear(net.classes)
    return model


def in_frugax(net: Net) -> Program:
    """The net as a frugax model."""
    given, x = net.weights(), net.data()
    if isinstance(net, Encoder):
        given = separate(given)
    elif isinstance(net, Conv):
        x = x.transpose(0, 2, 3, 1).copy()
        given = channels_last(net, given)
        given |= {"head.weight": given["head.weight"].T}
    compiled = models.compile(
        model_of(net),
        models.JaxBackend(),
        shapes={"input": x.shape},
    )
    own = list(compiled.weights)
    if isinstance(net, Encoder):
        if any("*" in key for key in own):
            given = {f"*.{k}": v for k, v in stacked(given).items()}
        names = {}
        for name in given:
            place, kind, leaf = name.split(".")
            names[f"block_{place}.{BLOCK[kind]}.{leaf}"] = name
    else:
        # Its parameters come in the order of the layers, as the net's own do.
        names = dict(zip(own, given, strict=True))
    params = {k: jnp.asarray(given[names[k]]) for k in own}
    inputs = {"input": jnp.asarray(x)}
    loss = lambda outputs: loss_of(outputs["output"])
    step = functools.partial(compiled.value_and_grad, params, inputs, loss)
    return Program(step, functools.partial(compiled.evaluate, params, inputs))


# --- flax nnx -----------------------------------------------------------------------


class FlaxMLP(nnx.Module):
    """`MLP`."""

    def __init__(self, net: MLP):
        rngs = nnx.Rngs(0)
        pairs = zip(net.sizes[:-1], net.sizes[1:], strict=True)
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in pairs])

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)

    def named(self) -> dict[str, Any]:
        """Its variables, by the net's names."""
        made = {}
        for i, layer in enumerate(self.layers):
            made |= {f"{i}.weight": layer.kernel, f"{i}.bias": layer.bias}
        return made


class FlaxBlock(nnx.Module):
    """One block of `Encoder`."""

    def __init__(self, net: Encoder, rngs: nnx.Rngs):
        self.norm1 = nnx.LayerNorm(net.width, epsilon=EPSILON, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            net.heads, net.width, decode=False, rngs=rngs
        )
        self.norm2 = nnx.LayerNorm(net.width, epsilon=EPSILON, rngs=rngs)
        self.up = nnx.Linear(net.width, net.hidden, rngs=rngs)
        self.down = nnx.Linear(net.hidden, net.width, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norm1(x))
        hidden = nnx.gelu(self.up(self.norm2(x)), approximate=False)
        return x + self.down(hidden)


class FlaxEncoder(nnx.Module):
    """`Encoder`."""

    def __init__(self, net: Encoder):
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([FlaxBlock(net, rngs) for _ in range(net.layers)])

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x

    def named(self) -> dict[str, Any]:
        made = {}
        for i, block in enumerate(self.blocks):
            for name in ("norm1", "norm2"):
                norm = getattr(block, name)
                made |= {
                    f"{i}.{name}.weight": norm.scale,
                    f"{i}.{name}.bias": norm.bias,
                }
            layers = {"q": block.attention.query, "k": block.attention.key}
            layers |= {"v": block.attention.value, "out": block.attention.out}
            layers |= {"up": block.up, "down": block.down}
            for name, layer in layers.items():
                made[f"{i}.{name}.weight"] = layer.kernel
                made[f"{i}.{name}.bias"] = layer.bias
        return made


class FlaxConv(nnx.Module):
    """`Conv`."""

    def __init__(self, net: Conv):
        rngs = nnx.Rngs(0)
        pairs = zip(net.channels[:-1], net.channels[1:], strict=True)
        self.layers = nnx.List([nnx.Conv(a, b, (3, 3), rngs=rngs) for a, b in pairs])
        channels, height, width = net.last
        self.head = nnx.Linear(channels * height * width, net.classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.max_pool(nnx.relu(layer(x)), (2, 2), (2, 2))
        return self.head(x.reshape(x.shape[0], -1))

    def named(self) -> dict[str, Any]:
        made = {"head.weight": self.head.kernel, "head.bias": self.head.bias}
        for i, layer in enumerate(self.layers):
            made |= {f"{i}.weight": layer.kernel, f"{i}.bias": layer.bias}
        return made


FLAX: dict[type, Any] = {MLP: FlaxMLP, Encoder: FlaxEncoder, Conv: FlaxConv}


def in_flax(net: Net) -> dict[str, Program]:
    """From its own layers; called in the ways it documents."""
    weights, x = transposed(net.weights()), net.data()
    if isinstance(net, Encoder):
        weights = transposed(separate(net.weights()))
    elif isinstance(net, Conv):
        x = x.transpose(0, 2, 3, 1).copy()
        weights = channels_last(net, net.weights())
    model = FLAX[type(net)](net)
    for name, variable in model.named().items():
        value = weights[name].reshape(variable.get_value().shape)
        variable.set_value(jnp.asarray(value))
    data = jnp.asarray(x)
    loss = lambda model, x: loss_of(model(x))
    forward = lambda model, x: model(x)
    graph, state = nnx.split(model)
    whole, whole_out = nnx.jit(nnx.value_and_grad(loss)), nnx.jit(forward)
    how: dict[str, Any] = {"graph": True, "graph_updates": True}
    cached, cached_out = (
        nnx.cached_partial(nnx.jit(f, **how), model)
        for f in (nnx.value_and_grad(loss), forward)
    )
    pure = jax.jit(jax.value_and_grad(lambda s, x: loss(nnx.merge(graph, s), x)))
    pure_out = jax.jit(lambda s, x: nnx.merge(graph, s)(x))
    return {
        "flax nnx.jit": Program(
            lambda: whole(model, data), lambda: whole_out(model, data)
        ),
        "flax nnx.cached_partial": Program(
            lambda: cached(data), lambda: cached_out(data)
        ),
        "flax split, jax.jit": Program(
            lambda: pure(state, data), lambda: pure_out(state, data)
        ),
    }


# --- equinox ------------------------------------------------------------------------


class EquinoxBlock(eqx.Module):
    """One block of `Encoder`."""

    norm1: eqx.nn.LayerNorm
    norm2: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, net: Encoder):
        self.norm1, self.norm2 = (
            eqx.nn.LayerNorm(net.width, eps=EPSILON) for _ in range(2)
        )
        parts = ("query", "key", "value", "output")
        biases: dict[str, Any] = {f"use_{part}_bias": True for part in parts}
        self.attention = eqx.nn.MultiheadAttention(
            net.heads, net.width, **biases, key=KEY
        )
        self.up = eqx.nn.Linear(net.width, net.hidden, key=KEY)
        self.down = eqx.nn.Linear(net.hidden, net.width, key=KEY)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y)
        hidden = jax.vmap(self.up)(jax.vmap(self.norm2)(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(hidden, approximate=False))


def equinox_module(net: Net) -> Any:
    """A module of one example, from equinox's own layers."""
    layers: list[Any] = []
    if isinstance(net, MLP):
        for a, b in itertools.pairwise(net.sizes):
            layers += [eqx.nn.Linear(a, b, key=KEY), eqx.nn.Lambda(jax.nn.relu)]
        return eqx.nn.Sequential(layers[:-1])
    if isinstance(net, Encoder):
        blocks = [eqx.nn.Lambda(EquinoxBlock(net)) for _ in range(net.layers)]
        return eqx.nn.Sequential(blocks)
    assert isinstance(net, Conv)
    for a, b in itertools.pairwise(net.channels):
        layers += [eqx.nn.Conv2d(a, b, 3, padding=1, key=KEY)]
        layers += [eqx.nn.Lambda(jax.nn.relu), eqx.nn.MaxPool2d(2, 2)]
    head = eqx.nn.Linear(math.prod(net.last), net.classes, key=KEY)
    return eqx.nn.Sequential([*layers, eqx.nn.Lambda(jnp.ravel), head])


def in_equinox(net: Net) -> dict[str, Program]:
    """From its own layers; called in the two ways it documents."""
    weights = net.weights()
    names = list(weights)  # in the order of the module's arrays
    if isinstance(net, Encoder):
        weights = separate(weights)
        kinds = ("norm1", "norm2", "q", "k", "v", "out", "up", "down")
        order = itertools.product(range(net.layers), kinds, ("weight", "bias"))
        names = [".".join(map(str, name)) for name in order]
    own, rest = eqx.partition(equinox_module(net), eqx.is_array)
    arrays, tree = jax.tree.flatten(own)
    values = [
        jnp.asarray(weights[name].reshape(array.shape))
        for name, array in zip(names, arrays, strict=True)
    ]
    model = eqx.combine(tree.unflatten(values), rest)
    x = jnp.asarray(net.data())
    batched = lambda model, x: jax.vmap(model)(x)
    loss = lambda model, x: loss_of(batched(model, x))
    params, static = eqx.partition(model, eqx.is_array)
    pure = jax.jit(jax.value_and_grad(lambda p, x: loss(eqx.combine(p, static), x)))
    pure_out = jax.jit(lambda p, x: batched(eqx.combine(p, static), x))
    whole = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    whole_out = eqx.filter_jit(batched)
    return {
        "equinox filter_jit": Program(
            lambda: whole(model, x), lambda: whole_out(model, x)
        ),
        "equinox partition, jax.jit": Program(
            lambda: pure(params, x), lambda: pure_out(params, x)
        ),
    }


# --- torch --------------------------------------------------------------------------


def torch_module(net: Net) -> Any:
    """A module whose parameters are in the order of the net's own."""
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, net: Encoder):
            super().__init__()
            self.heads = net.heads
            self.norm1 = nn.LayerNorm(net.width, EPSILON)
            self.norm2 = nn.LayerNorm(net.width, EPSILON)
            self.qkv = nn.Linear(net.width, 3 * net.width)
            self.out = nn.Linear(net.width, net.width)
            self.up = nn.Linear(net.width, net.hidden)
            self.down = nn.Linear(net.hidden, net.width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
            q, k, v = parts.permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(q, k, v)
            x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    layers: list[Any] = []
    if isinstance(net, MLP):
        for a, b in itertools.pairwise(net.sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    if isinstance(net, Encoder):
        return nn.Sequential(*(Block(net) for _ in range(net.layers)))
    assert isinstance(net, Conv)
    for a, b in itertools.pairwise(net.channels):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    head = nn.Linear(math.prod(net.last), net.classes)
    return nn.Sequential(*layers, nn.Flatten(), head)


def in_torch(net: Net) -> dict[str, Program]:
    """Eager, and by `torch.compile` (inductor)."""
    # Its threads would spin while they wait, and take the core from the next program.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch

    def program(wrap: Callable[..., Any]) -> Program:
        model, x = torch_module(net), torch.tensor(net.data())
        for parameter, w in zip(
            model.parameters(), net.weights().values(), strict=True
        ):
            parameter.data.copy_(torch.tensor(w))
        leaves = list(model.parameters())

        def loss_of(x: Any) -> Any:
            out = model(x)
            return (out * out).mean()

        loss, run = wrap(loss_of), wrap(model)

        def step() -> Any:
            value = loss(x)
            return value, torch.autograd.grad(value, leaves)

        def forward() -> Any:
            with torch.inference_mode():
                return run(x)

        return Program(step, forward)

    made = {"torch eager": program(lambda fn: fn)}
    if net is not NETS["linear4"]:  # where there is something to compile
        made["torch.compile"] = program(torch.compile)
    return made
