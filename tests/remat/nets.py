"""A small net that many tests plan: its loss, its arguments and their shapes."""

import jax
import jax.numpy as jnp


def f32(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of an array of float32."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def chain(ws, x):
    """Eight layers, one after the other."""
    for w in ws:
        x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


WS = list(jax.random.normal(jax.random.key(0), (8, 64, 64)) / 8)
X = jax.random.normal(jax.random.key(1), (512, 64))
SHAPES = ([f32(64, 64)] * 8, f32(512, 64))
