"""A model that looks at the rows themselves, attending to variables and rows in turns.

It gets no statistics of pairs, so it has to learn from nothing what the other model is
told. It is here for comparison.

References:
    Lorch et al. 2022, NeurIPS, 'Amortized inference for causal structure learning'.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._layers import HEADS, attend, normal
from .._row import Weights


def initial_raw_weights(seed: int, hidden: int, blocks: int) -> Weights:
    """Weights before training: all parent sets are as likely.

    Args:
        seed: of the draw.
        hidden: channels of a value, a multiple of 4.
        blocks: how often values look at each other.
    """
    assert hidden % HEADS == 0  # the config has seen to it
    rng = np.random.default_rng(seed)

    def dense(*shape: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / shape[-2] ** 0.5)
        return rng.standard_normal(shape, np.float32) * scale

    return {
        "embed": dense(4, hidden),
        "qkv": dense(blocks, 2, hidden, 3 * hidden),
        "out": dense(blocks, 2, hidden, hidden, gain=0.3),
        "inner": dense(blocks, 2, hidden, 2 * hidden),
        "outer": dense(blocks, 2, 2 * hidden, hidden, gain=0.3),
        "norms": np.ones((blocks, 2, 2, hidden), np.float32),
        "norm": np.ones(hidden, np.float32),
        "parent": dense(hidden, hidden),
        "child": dense(hidden, hidden, gain=0.1),
        "bias": np.full(1, -1.2, np.float32),
    }


def raw_scores(weights: Weights, rows: Any, mask: Any, target: Any, inside: Any) -> Any:
    """Scores of listed parent sets of one target in each data set [batch, k].

    Args:
        weights: of the network.
        rows: value, whether it was set, whether it is the target's, whether it is there
            [batch, rows, width, 4].
        mask: 1 for variables that are there [batch, width].
        target: 1 for the target, else 0 [batch, width].
        inside: 1 for the variables in each set [batch, k, width].
    """
    seen = rows[..., 3].max(2)  # rows that are there
    hide = [(1 - of)[:, None, None, :] * -1e9 for of in (mask, seen)]
    x = rows @ weights["embed"]

    def look(x: Any, w: Weights, axis: int) -> Any:
        """Values look along their row (0) or their column (1), then each at itself."""
        y = normal(x, w["norms"][axis, 0], jnp)
        x = x + attend(y, w["qkv"][axis], hide[axis], jnp) @ w["out"][axis]
        y = normal(x, w["norms"][axis, 1], jnp) @ w["inner"][axis]
        x = x + jax.nn.relu(y) @ w["outer"][axis]
        return jnp.swapaxes(x, 1, 2)

    def block(x: Any, w: Weights) -> tuple[Any, None]:
        return look(look(x, w, 0), w, 1), None

    blocks = {name: weights[name] for name in ("qkv", "out", "inner", "outer", "norms")}
    x, _ = jax.lax.scan(jax.checkpoint(block, prevent_cse=False), x, blocks)
    x = normal(x, weights["norm"], jnp)
    there = seen[:, :, None, None] > 0
    x = jnp.where(there, x, 0.0).sum(1) / jnp.maximum(seen.sum(1), 1.0)[:, None, None]
    child = target[:, None] @ x @ weights["child"]
    edge = ((x @ weights["parent"]) * child).sum(-1) + weights["bias"][None]
    return (inside @ edge[:, :, None])[..., 0]
