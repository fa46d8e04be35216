"""The nets in equinox, from its own layers; called in the two ways it documents."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from .by_hand_encoder import encoder
from .contestant import Arrays, Contestant
from .nets import EPSILON, MLP, Conv, Encoder, Net
from .variant import loss_of, rows_by

KEY = jax.random.key(0)


class Perceptron(eqx.Module):
    """`MLP`, of one example."""

    layers: list[eqx.nn.Linear]

    def __init__(self, net: MLP):
        pairs = zip(net.sizes[:-1], net.sizes[1:], strict=True)
        self.layers = [eqx.nn.Linear(a, b, key=KEY) for a, b in pairs]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x)

    def named(self) -> dict[str, Any]:
        """Its arrays, by the net's names."""
        made = {}
        for i, layer in enumerate(self.layers):
            made |= {f"{i}.weight": layer.weight, f"{i}.bias": layer.bias}
        return made


class Block(eqx.Module):
    """One block of `Encoder`."""

    norm1: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    norm2: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, net: Encoder):
        self.norm1 = eqx.nn.LayerNorm(net.width, eps=EPSILON)
        self.attention = eqx.nn.MultiheadAttention(
            net.heads,
            net.width,
            use_query_bias=True,
            use_key_bias=True,
            use_value_bias=True,
            use_output_bias=True,
            key=KEY,
        )
        self.norm2 = eqx.nn.LayerNorm(net.width, eps=EPSILON)
        self.up = eqx.nn.Linear(net.width, net.hidden, key=KEY)
        self.down = eqx.nn.Linear(net.hidden, net.width, key=KEY)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = jax.vmap(self.norm1)(x)
        x = x + self.attention(y, y, y)
        hidden = jax.vmap(self.up)(jax.vmap(self.norm2)(x))
        return x + jax.vmap(self.down)(jax.nn.gelu(hidden, approximate=False))


class Encoding(eqx.Module):
    """`Encoder`, of one example."""

    blocks: list[Block]

    def __init__(self, net: Encoder):
        self.blocks = [Block(net) for _ in range(net.layers)]

    def __call__(self, x: jax.Array) -> jax.Array:
        for block in self.blocks:
            x = block(x)
        return x

    def named(self) -> dict[str, Any]:
        made = {}
        for i, block in enumerate(self.blocks):
            of = block.attention
            layers = {"norm1": block.norm1, "norm2": block.norm2}
            layers |= {"q": of.query_proj, "k": of.key_proj, "v": of.value_proj}
            layers |= {"out": of.output_proj, "up": block.up, "down": block.down}
            for name, layer in layers.items():
                made[f"{i}.{name}.weight"] = layer.weight
                made[f"{i}.{name}.bias"] = layer.bias
        return made


class Convolving(eqx.Module):
    """`Conv`, of one example."""

    layers: list[eqx.nn.Conv2d]
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.Linear

    def __init__(self, net: Conv):
        pairs = zip(net.channels[:-1], net.channels[1:], strict=True)
        self.layers = [eqx.nn.Conv2d(a, b, 3, padding=1, key=KEY) for a, b in pairs]
        self.pool = eqx.nn.MaxPool2d(2, 2)
        channels, height, width = net.last
        self.head = eqx.nn.Linear(channels * height * width, net.classes, key=KEY)

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = self.pool(jax.nn.relu(layer(x)))
        return self.head(x.reshape(-1))

    def named(self) -> dict[str, Any]:
        made = {"head.weight": self.head.weight, "head.bias": self.head.bias}
        for i, layer in enumerate(self.layers):
            made |= {f"{i}.weight": layer.weight, f"{i}.bias": layer.bias}
        return made


MODULES = {MLP: Perceptron, Encoder: Encoding, Conv: Convolving}


def contestants(net: Net) -> dict[str, Contestant]:
    weights, unload = net.weights(), lambda arrays: arrays
    if isinstance(net, Encoder):
        # Queries, keys and values apart; matrices (out, in), so not transposed.
        form = encoder(net, fused=False, linear=rows_by)
        weights, unload = form.load(weights), form.unload
    model = MODULES[type(net)](net)
    values = [
        jnp.asarray(weights[name].reshape(array.shape))
        for name, array in model.named().items()
    ]
    model = eqx.tree_at(lambda m: list(m.named().values()), model, values)
    x = jnp.asarray(net.data())
    batched = lambda model, x: jax.vmap(model)(x)
    loss = lambda model, x: loss_of(batched(model, x))
    params, static = eqx.partition(model, eqx.is_array)
    pure = jax.jit(jax.value_and_grad(lambda p, x: loss(eqx.combine(p, static), x)))
    pure_out = jax.jit(lambda p, x: batched(eqx.combine(p, static), x))
    whole = eqx.filter_jit(eqx.filter_value_and_grad(loss))
    whole_out = eqx.filter_jit(batched)
    calls = {
        "equinox filter_jit": (lambda: whole(model, x), lambda: whole_out(model, x)),
        "equinox partition, jax.jit": (
            lambda: pure(params, x),
            lambda: pure_out(params, x),
        ),
    }

    def entered(step: Any, forward: Any) -> Contestant:
        def result() -> tuple[float, Arrays]:
            value, grads = step()
            arrays = {
                name: np.asarray(array).reshape(weights[name].shape)
                for name, array in grads.named().items()
            }
            return float(value), unload(arrays)

        return Contestant(step, forward, jax.block_until_ready, result)

    return {name: entered(*both) for name, both in calls.items()}
