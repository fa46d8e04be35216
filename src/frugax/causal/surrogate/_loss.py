"""What training makes small: surprise at the true parents and at the true edges."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ._tasks import Tasks
from .evidence import others
from .network import Weights, apply_network

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


def truth(tasks: Tasks) -> dict[str, np.ndarray]:
    """What a batch's answers are held against.

    Args:
        tasks: data sets.

    Returns:
        `graphs`; `sets` from `set_index`; and what each variable `[batch, width]` and
        each pair `[batch, width, width]` weighs in a mean over those that are there.
    """
    mask = tasks.mask
    pairs = mask[:, :, None] * mask[:, None] * (1 - np.eye(mask.shape[1]))
    return {
        "graphs": tasks.graphs,
        "sets": set_index(tasks.graphs),
        "share_of_sets": (mask / mask.sum()).astype(np.float32),
        "share_of_pairs": (pairs / max(pairs.sum(), 1)).astype(np.float32),
    }


def surprise(weights: Weights, batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Mean surprise at the parent sets of all variables, plus that at all pairs.

    Both are least for the true probabilities, and for them only.

    Args:
        weights: of the network.
        batch: `evidence`, `mask`, and what `truth` says.

    Returns:
        The sum, and its parts `"sets"` and `"edges"` in nats.
    """
    answer = apply_network(weights, batch["evidence"], batch["mask"], xp=jnp)
    # A comparison and a sum are a shorter program than a gather and its gradient.
    every = jnp.arange(answer.log_sets.shape[-1], dtype=jnp.int32)
    chosen = every[None, None] == batch["sets"][..., None]
    chosen = jnp.where(chosen, answer.log_sets, 0.0).sum(-1)
    # One data set that looks like another model must not outweigh all the others.
    sets = -(jnp.maximum(chosen, -30.0) * batch["share_of_sets"]).sum()
    p = jnp.clip(answer.edges, _LEAST, 1 - _LEAST)
    graphs = batch["graphs"]
    log_p = graphs * jnp.log(p) + (1 - graphs) * jnp.log1p(-p)
    edges = -(log_p * batch["share_of_pairs"]).sum()
    return sets + 2 * edges, {"sets": sets, "edges": edges}
