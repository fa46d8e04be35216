"""What each leaf computes, in JAX. `x` has the batch as its first axis."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from frugax.models.graph import (
    Conv,
    Flatten,
    Gelu,
    LayerNorm,
    Leaf,
    Linear,
    MeanPool,
    Relu,
    Tanh,
)


def linear(
    layer: Linear,
    x: Float[Array, "*places inputs"],
    weight: Float[Array, "features inputs"],
    bias: Float[Array, " features"] | None = None,
) -> Float[Array, "*places features"]:
    """See `graph.Linear`."""
    y = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())))
    return y if bias is None else y + jnp.expand_dims(bias, range(x.ndim - 1))


def conv(
    layer: Conv,
    x: Float[Array, "batch height width inputs"],
    weight: Float[Array, "kernel kernel inputs features"],
    bias: Float[Array, " features"],
) -> Float[Array, "batch rows columns features"]:
    """See `graph.Conv`."""
    y = lax.conv_general_dilated(
        x,
        weight,
        window_strides=(layer.stride, layer.stride),
        padding=layer.padding(x.shape[1:]),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return y + jnp.expand_dims(bias, (0, 1, 2))


def layer_norm(
    layer: LayerNorm,
    x: Float[Array, "*places features"],
    scale: Float[Array, " features"],
    shift: Float[Array, " features"],
) -> Float[Array, "*places features"]:
    """See `graph.LayerNorm`."""
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    places = range(x.ndim - 1)
    scale, shift = jnp.expand_dims(scale, places), jnp.expand_dims(shift, places)
    return centred * lax.rsqrt(variance + layer.epsilon) * scale + shift


def mean_pool(
    layer: MeanPool, x: Float[Array, "batch height width channels"]
) -> Float[Array, "batch ... channels"]:
    """See `graph.MeanPool`."""
    if layer.window is None:
        return x.mean(axis=(1, 2))
    batch, height, width, channels = x.shape
    n = layer.window
    windows = x.reshape(batch, height // n, n, width // n, n, channels)
    return windows.mean(axis=(2, 4))


RUN: dict[type[Leaf], Callable[..., Any]] = {
    Conv: conv,
    Flatten: lambda layer, x: x.reshape(x.shape[0], -1),
    Gelu: lambda layer, x: jax.nn.gelu(x, approximate=False),
    LayerNorm: layer_norm,
    Linear: linear,
    MeanPool: mean_pool,
    Relu: lambda layer, x: jax.nn.relu(x),
    Tanh: lambda layer, x: jnp.tanh(x),
}
