"""The network: axial attention over pairs of variables.

A pair is a token. In each block tokens look along their row (one parent, all children),
along their column (one child, all parents) and at their transpose. No weight depends on
the number of variables.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ._pairs import PAIR_FEATURES, Evidence
from ._subsets import NEVER, members, others, squared

Params = dict[str, Any]
_FLOOR = -40.0


class Answer(NamedTuple):
    """What the network says of a batch.

    Attributes:
        log_sets: log-probability of each child's parent sets [batch, width, sets].
        edges: probability of each edge, parent first [batch, width, width].
    """

    log_sets: Float[Array, "b w s"]
    edges: Float[Array, "b w w"]


def initial_weights(key: Array, hidden: int, blocks: int) -> Params:
    """Weights of a network.

    Args:
        key: a JAX random key.
        hidden: channels of a token, divisible by 4 (heads).
        blocks: how often tokens look at each other, >= 0.
    """
    keys = iter(jax.random.split(key, 2 + 8 * blocks))

    def dense(rows: int, columns: int, gain: float = 1.0) -> Array:
        w = jax.random.normal(next(keys), (rows, columns), jnp.float32)
        return w * (gain / rows**0.5)

    def block() -> Params:
        return {
            "row": dense(hidden, 3 * hidden),
            "row_out": dense(hidden, hidden, 0.3),
            "column": dense(hidden, 3 * hidden),
            "column_out": dense(hidden, hidden, 0.3),
            "mix": dense(2 * hidden, 2 * hidden),
            "mix_bias": jnp.zeros(2 * hidden, jnp.float32),
            "mix_out": dense(2 * hidden, hidden, 0.3),
            "norms": jnp.ones((3, hidden), jnp.float32),
        }

    embed = dense(2 * PAIR_FEATURES, hidden)
    made = [block() for _ in range(blocks)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *made) if made else {}
    return {
        "embed": embed,
        "embed_bias": jnp.zeros(hidden, jnp.float32),
        "blocks": stacked,
        "norm": jnp.ones(hidden, jnp.float32),
        # Before training the answer is the mean of both posteriors' logarithms.
        "edge": jnp.zeros((hidden, 1), jnp.float32),
        "trust": jnp.zeros((hidden, 2), jnp.float32),
        "trust_bias": jnp.full(2, -0.4328, jnp.float32),  # softplus: a half
    }


def _normal(x, gain):
    x = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * scale * gain.reshape((1,) * (x.ndim - 1) + (-1,))


def _attend(x, qkv, out, mask, heads=4):
    """Attention along the third axis of [batch, rows, tokens, hidden]."""
    b, r, t, h = x.shape
    q, k, v = jnp.split((x @ qkv).reshape(b, r, t, heads, 3 * h // heads), 3, axis=-1)
    logits = jnp.einsum("brqhc,brkhc->brhqk", q, k) * (h // heads) ** -0.5
    logits = logits + (mask - 1)[:, None, None, None, :] * 1e9
    weights = jax.nn.softmax(logits, axis=-1)
    return jnp.einsum("brhqk,brkhc->brqhc", weights, v).reshape(b, r, t, h) @ out


def apply_network(
    params: Params, told: Evidence, mask: Float[Array, "b w"], temperature: Any = 1.0
) -> Answer:
    """Probabilities of parent sets and edges.

    Args:
        params: from `initial_weights`.
        told: from `evidence`.
        mask: 1 for variables that are there.
        temperature: log-probabilities are divided by it.
    """
    width = mask.shape[1]
    flipped = jnp.swapaxes(told.pairs, 1, 2)
    x = jnp.concatenate([told.pairs, flipped], axis=-1) @ params["embed"]
    x = jax.nn.gelu(x + params["embed_bias"][None, None, None])

    def block(x, p):
        x = x + _attend(_normal(x, p["norms"][0]), p["row"], p["row_out"], mask)
        turned = jnp.swapaxes(x, 1, 2)
        y = _attend(_normal(turned, p["norms"][1]), p["column"], p["column_out"], mask)
        x = x + jnp.swapaxes(y, 1, 2)
        y = _normal(x, p["norms"][2])
        y = jnp.concatenate([y, jnp.swapaxes(y, 1, 2)], axis=-1) @ p["mix"]
        y = jax.nn.gelu(y + p["mix_bias"][None, None, None])
        return x + y @ p["mix_out"], None

    if params["blocks"]:
        x, _ = jax.lax.scan(block, x, params["blocks"])
    x = _normal(x, params["norm"])
    edge = (x @ params["edge"])[..., 0]  # [batch, parent, child]
    weight = mask / jnp.maximum(mask.sum(1, keepdims=True), 1.0)
    pooled = jnp.einsum("bijh,bi->bjh", x, weight)
    trust = jax.nn.softplus(pooled @ params["trust"] + params["trust_bias"][None, None])
    of_others = edge[:, others(width), np.arange(width)[:, None]]
    sets = jnp.asarray(members(width))
    trust = trust[:, :, None]
    linear, curved = (jnp.maximum(p, _FLOOR) for p in (told.linear, told.curved))
    logits = of_others @ sets.T + trust[..., 0] * linear + trust[..., 1] * curved
    never = told.linear < NEVER / 2
    log_sets = jax.nn.log_softmax(jnp.where(never, NEVER, logits / temperature), axis=2)
    return Answer(log_sets, squared(jnp.exp(log_sets) @ sets))
