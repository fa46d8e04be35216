"""The task that the contract test runs."""

import jax.numpy as jnp
import numpy as np

from frugax.run import Task


def task() -> Task:
    """A deep chain of small layers, so that a memory plan has something to save."""
    x = np.ones((64, 8), "float32")

    def loss(weights, x):
        for w in weights:
            x = x + jnp.tanh(x @ w)
        return (x**2).mean()

    return Task(init=lambda key: [jnp.eye(8)] * 2, loss=loss, batches=lambda step: x)
