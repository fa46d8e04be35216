"""What training makes small: surprise at the true parents and at the true edges."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ._network import Weights, apply_network
from ._subsets import others

_LEAST = 1e-6


def set_index(graphs: np.ndarray) -> np.ndarray:
    """The number of each child's true parent set.

    Args:
        graphs: 1 from parent to child [batch, width, width].

    Returns:
        int32 [batch, width]; bits as in `members`.
    """
    width = graphs.shape[1]
    parents = graphs[:, others(width), np.arange(width)[:, None]]
    return (parents * (1 << np.arange(width - 1))).sum(-1).astype(np.int32)


def surprise(weights: Weights, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Mean surprise at the parent sets of all variables, plus that at all pairs.

    Both are least for the true probabilities, and for them only.

    Args:
        weights: of the network.
        batch: `evidence`, `mask`, `sets` from `set_index`, and `graphs`.

    Returns:
        The sum, and its parts `"sets"` and `"edges"` in nats.
    """
    mask, graphs = batch["mask"], batch["graphs"]
    answer = apply_network(weights, batch["evidence"], mask, xp=jnp)
    chosen = jnp.take_along_axis(answer.log_sets, batch["sets"][:, :, None], axis=2)
    # One data set that looks like another model must not outweigh all the others.
    sets = -(jnp.maximum(chosen[:, :, 0], -30.0) * mask).sum() / mask.sum()
    pairs = mask[:, :, None] * mask[:, None, :]
    pairs = pairs * (1 - jnp.eye(mask.shape[1], dtype=mask.dtype))[None]
    p = jnp.clip(answer.edges, _LEAST, 1 - _LEAST)
    log_p = graphs * jnp.log(p) + (1 - graphs) * jnp.log1p(-p)
    edges = -(log_p * pairs).sum() / jnp.maximum(pairs.sum(), 1.0)
    return sets + 2 * edges, {"sets": sets, "edges": edges}
