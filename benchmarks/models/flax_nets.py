"""The nets in flax nnx, from its own layers; called in the three ways it documents."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from .by_hand import mlps
from .by_hand_conv import conv
from .by_hand_encoder import encoder
from .contestant import Arrays, Contestant
from .nets import EPSILON, MLP, Conv, Encoder, Net
from .variant import Variant, loss_of


class Perceptron(nnx.Module):
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


class Block(nnx.Module):
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


class Encoding(nnx.Module):
    """`Encoder`."""

    def __init__(self, net: Encoder):
        rngs = nnx.Rngs(0)
        self.blocks = nnx.List([Block(net, rngs) for _ in range(net.layers)])

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


class Convolving(nnx.Module):
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


MODULES = {MLP: Perceptron, Encoder: Encoding, Conv: Convolving}


def form_of(net: Net) -> Variant:
    """The hand-written variant that has weights and data as flax has them."""
    if isinstance(net, MLP):
        return mlps(net)["x @ W, W (in, out)"]
    if isinstance(net, Encoder):
        return encoder(net, fused=False)
    assert isinstance(net, Conv)
    return conv(net)


def contestants(net: Net) -> dict[str, Contestant]:
    form = form_of(net)
    model = MODULES[type(net)](net)
    named, wanted = model.named(), form.load(net.weights())
    for name, variable in named.items():
        value = wanted[name].reshape(variable.get_value().shape)
        variable.set_value(jnp.asarray(value))
    x = jnp.asarray(form.data(net.data()))
    loss = lambda model, x: loss_of(model(x))
    graph, state = nnx.split(model)

    def unload(grads: Any) -> Arrays:
        arrays = {}
        for name, variable in nnx.merge(graph, grads).named().items():
            arrays[name] = np.asarray(variable.get_value()).reshape(wanted[name].shape)
        return form.unload(arrays)

    whole = nnx.jit(nnx.value_and_grad(loss))
    whole_out = nnx.jit(lambda model, x: model(x))
    cached = nnx.jit(nnx.value_and_grad(loss), graph=True, graph_updates=True)
    cached_out = nnx.jit(lambda model, x: model(x), graph=True, graph_updates=True)
    cached = nnx.cached_partial(cached, model)
    cached_out = nnx.cached_partial(cached_out, model)
    pure = jax.jit(
        jax.value_and_grad(lambda state, x: loss(nnx.merge(graph, state), x))
    )
    pure_out = jax.jit(lambda state, x: nnx.merge(graph, state)(x))
    calls = {
        "flax nnx.jit": (lambda: whole(model, x), lambda: whole_out(model, x)),
        "flax nnx.cached_partial": (lambda: cached(x), lambda: cached_out(x)),
        "flax split, jax.jit": (lambda: pure(state, x), lambda: pure_out(state, x)),
    }

    def entered(step: Any, forward: Any) -> Contestant:
        def result() -> tuple[float, Arrays]:
            value, grads = step()
            return float(value), unload(grads)

        return Contestant(step, forward, jax.block_until_ready, result)

    return {name: entered(*both) for name, both in calls.items()}
