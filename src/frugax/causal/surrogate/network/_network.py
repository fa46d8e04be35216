"""The network: axial attention over pairs of variables.

A pair is a token. In each block tokens look along their row (one parent, all children),
along their column (one child, all parents) and at their transpose. No weight depends on
the number of variables. The same lines run in NumPy, for an answer without compiling,
and in JAX, for training.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..evidence import NEVER, PAIR_FEATURES, Evidence, parents
from ._flat_weights import BLOCK, Weights, cut, of_look, of_mix
from ._layers import (
    HEADS,
    along_last,
    attend,
    beside_transpose,
    dense,
    gelu,
    normal,
    softplus,
    top,
)


class Answer(NamedTuple):
    """What the network says of a batch.

    Attributes:
        log_sets: log-probability of each child's parent sets [batch, width, sets].
        edges: probability of each edge, parent first [batch, width, width].
    """

    log_sets: Float[Any, "b w s"]
    edges: Float[Any, "b w w"]


def initial_weights(seed: int, hidden: int, blocks: int) -> Weights:
    """Weights before training: float32, of NumPy.

    The answer is then the mean of both posteriors' logarithms, whatever the pairs say.

    Args:
        seed: of the draw.
        hidden: channels of a token, a multiple of 4.
        blocks: how often tokens look at each other, >= 0.

    Raises:
        ValueError: a size is out of its range.
    """
    if hidden < HEADS or hidden % HEADS or blocks < 0:
        raise ValueError(
            f"hidden must be a multiple of {HEADS} and blocks >= 0, got hidden="
            f"{hidden} and blocks={blocks}."
        )
    rng = np.random.default_rng(seed)

    def dense(*shape: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / shape[-2] ** 0.5)
        return rng.standard_normal(shape, np.float32) * scale

    zeros = lambda *shape: np.zeros(shape, np.float32)
    return {
        "embed": dense(2 * PAIR_FEATURES, hidden),
        "embed_bias": zeros(hidden),
        "row": dense(blocks, hidden, 3 * hidden),
        "row_out": dense(blocks, hidden, hidden, gain=0.3),
        "column": dense(blocks, hidden, 3 * hidden),
        "column_out": dense(blocks, hidden, hidden, gain=0.3),
        "mix": dense(blocks, 2 * hidden, 2 * hidden),
        "mix_bias": zeros(blocks, 2 * hidden),
        "mix_out": dense(blocks, 2 * hidden, hidden, gain=0.3),
        "norms": np.ones((blocks, 3, hidden), np.float32),
        "norm": np.ones(hidden, np.float32),
        "edge": zeros(hidden, 1),
        "trust": zeros(hidden, 2),
        "trust_bias": np.full(2, np.log(np.expm1(0.5)), np.float32),  # softplus: 1/2
    }


def apply_network(
    weights: Weights,
    told: Evidence,
    mask: Any,
    *,
    temperature: float = 1.0,
    xp: Any = np,
) -> Answer:
    """Probabilities of parent sets and edges.

    Args:
        weights: from `initial_weights`, or trained.
        told: from `evidence`.
        mask: 1 for variables that are there [batch, width].
        temperature: log-probabilities are divided by it.
        xp: `numpy` or `jax.numpy`.
    """
    width = mask.shape[1]
    edge, trust = _heads(weights, _tokens(weights, told.pairs, mask, xp), mask, xp)
    sets = xp.asarray(parents(width))
    # For each child a product with its sets: [child, batch, parent], then [.., set].
    logits = xp.swapaxes(xp.transpose(edge, (2, 0, 1)) @ sets, 0, 1)
    logits = logits + trust[:, :, :1] * told.linear + trust[:, :, 1:] * told.curved
    logits = xp.where(told.linear < NEVER / 2, NEVER, logits / temperature)
    apart = logits - top(logits, xp)
    odds = xp.exp(apart)
    total = odds.sum(-1)[..., None]
    into = xp.swapaxes(odds / total, 0, 1) @ xp.swapaxes(sets, 1, 2)
    return Answer(apart - xp.log(total), xp.transpose(into, (1, 2, 0)))


def set_scores(
    weights: Weights,
    pairs: Any,
    mask: Any,
    target: Any,
    inside: Any,
    posteriors: Any,
    xp: Any = np,
) -> Any:
    """Scores of listed parent sets of one target in each data set [batch, k].

    Args:
        weights: of the network.
        pairs: features of pairs [batch, width, width, features].
        mask: 1 for variables that are there [batch, width].
        target: 1 for the target, else 0 [batch, width].
        inside: 1 for the variables in each set [batch, k, width].
        posteriors: `linear` and `curved` of each set [batch, k, 2].
        xp: `numpy` or `jax.numpy`.
    """
    edge, trust = _heads(weights, _tokens(weights, pairs, mask, xp), mask, xp)
    into = edge @ target[:, :, None]  # [batch, width, 1]
    trusted = target[:, None] @ trust  # [batch, 1, 2]
    return (inside @ into)[..., 0] + (posteriors * trusted).sum(-1)


def _tokens(weights: Weights, pairs: Any, mask: Any, xp: Any) -> Any:
    """What the network makes of each pair [batch, width, width, hidden]."""
    x = beside_transpose(pairs, weights["embed"], xp)
    x = gelu(x + along_last(weights["embed_bias"], x), xp)
    hide = (mask - 1)[:, None, None, :] * 1e9

    def look(x: Any, qkv: Any, out: Any, gain: Any) -> Any:
        """Along rows; then rows become columns."""
        y = dense(attend(normal(x, gain, xp), qkv, hide, xp), out, xp)
        return xp.swapaxes(x + y, 1, 2)

    def mix(x: Any, gain: Any, into: Any, bias: Any, out: Any) -> Any:
        y = beside_transpose(normal(x, gain, xp), into, xp)
        return x + dense(gelu(y + along_last(bias, y), xp), out, xp)

    if "blocks" in weights:
        x = _in_loops(look, mix, x, weights["blocks"])
    else:
        for index in range(len(weights["row"])):
            w = {name: weights[name][index] for name in BLOCK}
            x = look(x, w["row"], w["row_out"], w["norms"][0])
            x = look(x, w["column"], w["column_out"], w["norms"][1])
            x = mix(x, w["norms"][2], w["mix"], w["mix_bias"], w["mix_out"])
    return normal(x, weights["norm"], xp)


def _in_loops(
    look: Callable[..., Any], mix: Callable[..., Any], x: Any, blocks: Any
) -> Any:
    """The blocks in JAX, from a row of weights for each.

    One program for rows and columns of all blocks. What they keep for their gradient
    would cost more to store and fetch, and to compile, than to compute again.
    """
    import jax  # asking needs none
    import jax.numpy as jnp

    again = functools.partial(jax.checkpoint, prevent_cse=False)
    hidden = x.shape[-1]
    size = sum(map(math.prod, of_look(hidden)))

    @again
    def one_look(x: Any, row: Any) -> tuple[Any, None]:
        return look(x, *cut(row, of_look(hidden), jnp)), None

    @again
    def one_mix(x: Any, row: Any) -> Any:
        return mix(x, *cut(row, of_mix(hidden), jnp))

    def block(x: Any, row: Any) -> tuple[Any, None]:
        looks, rest = jnp.split(row, [2 * size])
        x, _ = jax.lax.scan(one_look, x, looks.reshape(2, size))
        return one_mix(x, rest), None

    return jax.lax.scan(block, x, blocks)[0] if len(blocks) else x


def _heads(weights: Weights, x: Any, mask: Any, xp: Any) -> tuple[Any, Any]:
    """What each edge adds [batch, width, width], trust in each posterior [.., 2]."""
    share = mask / xp.maximum(mask.sum(1)[:, None], 1.0)
    pooled = (x * share[:, :, None, None]).sum(1)
    trust = pooled @ weights["trust"]
    trust = softplus(trust + along_last(weights["trust_bias"], trust), xp)
    return (x @ weights["edge"])[..., 0], trust
