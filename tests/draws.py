"""Random arrays for tests, drawn by NumPy.

JAX compiles a program for each shape that it draws, and more for what is done with the
numbers, in every worker that imports the file.
"""

import jax
import jax.numpy as jnp
import numpy as np


def normal(seed: int, *shape: int, scale: float = 1.0) -> jax.Array:
    """float32 numbers of a normal distribution with this deviation."""
    numbers = np.random.default_rng(seed).normal(scale=scale, size=shape)
    return jnp.asarray(numbers.astype(np.float32))


def integers(seed: int, below: int, *shape: int) -> jax.Array:
    """int32 numbers from 0, each as likely as the others."""
    numbers = np.random.default_rng(seed).integers(below, size=shape)
    return jnp.asarray(numbers.astype(np.int32))
