"""The nets in frugax, as its guide writes them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from frugax import models

from .by_hand_conv import conv
from .by_hand_encoder import encoder
from .contestant import Arrays, Contestant
from .nets import MLP, Conv, Encoder, Net
from .variant import Variant, loss_of, rows_by, transposed

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
        return models.Model(
            *(
                models.TransformerBlock(
                    net.width, net.heads, net.hidden, name=f"block_{i}"
                )
                for i in range(net.layers)
            )
        )
    assert isinstance(net, Conv)
    model = models.Model()
    for channels in net.channels[1:]:
        model += models.Conv2D(channels)
        model += models.Relu()
        model += models.MaxPool2D(2)
    model += models.Flatten()
    model += models.Linear(net.classes)
    return model


def form_of(net: Net, *, scanned: bool) -> Variant:
    """The hand-written variant that has weights and data as frugax has them.

    But for the matrix behind convolutions, which is transposed there.
    """
    if isinstance(net, Encoder):
        return encoder(net, linear=rows_by, fused=False, scanned=scanned)
    if not isinstance(net, Conv):
        return Variant(lambda params, x: x)
    form = conv(net)
    return Variant(
        form.forward,
        lambda a: transposed(form.load(a)),
        lambda a: form.unload(transposed(a)),
        form.data,
    )


def names_of(net: Net, own: list[str], given: Arrays) -> dict[str, str]:
    """The benchmark's name for each key of the compiled model."""
    if not isinstance(net, Encoder):
        # Its parameters come in the order of the layers, as the net's own do.
        return dict(zip(own, given, strict=True))
    names = {}
    for name in given:
        *block, kind, leaf = name.split(".")
        names[f"block_{(block or '*')[0]}.{BLOCK[kind]}.{leaf}"] = name
    return names


def contestants(net: Net) -> dict[str, Contestant]:
    return {"frugax": contestant(net)}


def contestant(net: Net, *, scan_from: int | None = 8) -> Contestant:
    """The net, with its blocks in a loop where there are `scan_from` or more."""
    compiled = models.compile(
        model_of(net),
        models.JaxBackend(),
        shapes={"input": form_of(net, scanned=False).data(net.data()).shape},
        scan_from=scan_from,
    )
    own = list(compiled.weights)
    form = form_of(net, scanned=any("*" in key for key in own))
    given = form.load(net.weights())
    names = names_of(net, own, given)
    params = {k: jnp.asarray(given[names[k]]) for k in own}
    inputs = {"input": jnp.asarray(form.data(net.data()))}
    loss = lambda outputs: loss_of(outputs["output"])
    step = functools.partial(compiled.value_and_grad, params, inputs, loss)
    forward = functools.partial(compiled.evaluate, params, inputs)

    def result() -> tuple[float, Arrays]:
        value, grads = step()
        arrays = {names[k]: np.asarray(g) for k, g in grads.items()}
        return float(value), form.unload(arrays)

    return Contestant(step, forward, jax.block_until_ready, result)
