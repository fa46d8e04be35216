"""A small net that many tests plan: its loss, its arguments and their shapes."""

import jax
import jax.numpy as jnp

from draws import normal


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of an array of float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def chain(ws, x):
    """Eight layers, one after the other."""
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


WS = [normal(i, 64, 64, scale=1 / 8) for i in range(8)]
X = normal(8, 512, 64)
SHAPES = ([f32(64, 64)] * 8, f32(512, 64))
