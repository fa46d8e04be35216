"""How wrong a classifier is."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def cross_entropy(
    logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    """Mean of -log softmax(logits)[label] over the batch, in nats.

    Args:
        logits: one score for each class.
        labels: the right class; in [0, classes). Any other gives NaN, also under
            `jit`, where nothing can be raised.
    """
    scores = jax.nn.log_softmax(logits, axis=-1)
    picked = jnp.take_along_axis(scores, labels[:, None], axis=-1)[:, 0]
    # Indexing from the end would take a negative label for a class.
    return -jnp.where(labels < 0, jnp.nan, picked).mean()


def accuracy(
    logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, ""]:
    """Share of the batch whose highest score is that of the right class.

    Args:
        logits: one score for each class.
        labels: the right class.
    """
    return (logits.argmax(axis=-1) == labels).mean(dtype=jnp.float32)
