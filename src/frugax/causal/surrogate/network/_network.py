"""The network of the surrogate: axial attention over pairs of variables.

A pair is a token. In each block, tokens attend along their row (one parent, all
children), along their column (one child, all parents) and to their transpose. No weight
depends on the number of variables. NumPy computes inference, JAX the training.

References:
    Ho et al. 2019, arXiv:1912.12180 (axial attention); Lorch et al. 2022, NeurIPS
    (amortized causal discovery).
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from ..evidence import NEVER, PAIR_FEATURES, Evidence, set_membership
from ._flat_weights import BLOCK, Weights, look_shapes, mix_shapes, split_row
from ._layers import (
    HEADS,
    attend,
    broadcast_last,
    dense,
    dense_with_transpose,
    gelu,
    layer_norm,
    row_max,
    softplus,
)


class Prediction(NamedTuple):
    """The output of the network for a batch.

    Attributes:
        log_sets: log-probability of each child's parent sets.
        edges: probability of each edge, parent first.
    """

    log_sets: Float[Any, "b w s"]
    edges: Float[Any, "b w w"]


def initial_weights(seed: int, hidden: int, blocks: int) -> Weights:
    """Initialize the weights as float32 NumPy arrays."""
    # The initial prediction is the mean of the logarithms of both posteriors,
    # independent of the pair features.
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
        # Residual branches start small, so that blocks begin near the identity (compare
        # Zhang et al. 2019, ICLR, "Fixup initialization").
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
    evidence: Evidence,
    mask: Any,
    *,
    temperature: float = 1.0,
    xp: Any = np,
) -> Prediction:
    """Compute probabilities of parent sets and edges."""
    width = mask.shape[1]
    edge, trust = _heads(weights, _tokens(weights, evidence.pairs, mask, xp), mask, xp)
    sets = xp.asarray(set_membership(width))
    # One product for each child: [child, batch, parent] @ [child, parent, set].
    logits = xp.swapaxes(xp.transpose(edge, (2, 0, 1)) @ sets, 0, 1)
    # A logarithmic opinion pool (Genest & Zidek 1986, Statistical Science 1:114-135):
    # weighted logarithms of both posteriors, plus a logit for each edge.
    logits = (
        logits + trust[:, :, :1] * evidence.linear + trust[:, :, 1:] * evidence.curved
    )
    # Impossible sets are restored last: weights and temperature have scaled NEVER.
    logits = xp.where(evidence.linear < NEVER / 2, NEVER, logits / temperature)
    apart = logits - row_max(logits, xp)
    odds = xp.exp(apart)
    total = odds.sum(-1)[..., None]
    into = xp.swapaxes(odds / total, 0, 1) @ xp.swapaxes(sets, 1, 2)
    return Prediction(apart - xp.log(total), xp.transpose(into, (1, 2, 0)))


def _tokens(weights: Weights, pairs: Any, mask: Any, xp: Any) -> Any:
    """Compute the final token of each pair [batch, width, width, hidden]."""
    x = dense_with_transpose(pairs, weights["embed"], xp)
    x = gelu(x + broadcast_last(weights["embed_bias"], x), xp)
    # Not -inf: rows of padding alone would give -inf - -inf, which is NaN.
    hide = (mask - 1)[:, None, None, :] * 1e9

    def look(x: Any, qkv: Any, out: Any, gain: Any) -> Any:
        """Attend along rows; then rows become columns."""
        y = dense(attend(layer_norm(x, gain, xp), qkv, hide, xp), out, xp)
        return xp.swapaxes(x + y, 1, 2)

    def mix(x: Any, gain: Any, into: Any, bias: Any, out: Any) -> Any:
        y = dense_with_transpose(layer_norm(x, gain, xp), into, xp)
        return x + dense(gelu(y + broadcast_last(bias, y), xp), out, xp)

    if "blocks" in weights:
        x = _scan_blocks(look, mix, x, weights["blocks"])
    else:
        for index in range(len(weights["row"])):
            w = {name: weights[name][index] for name in BLOCK}
            x = look(x, w["row"], w["row_out"], w["norms"][0])
            x = look(x, w["column"], w["column_out"], w["norms"][1])
            x = mix(x, w["norms"][2], w["mix"], w["mix_bias"], w["mix_out"])
    return layer_norm(x, weights["norm"], xp)


def _scan_blocks(
    look: Callable[..., Any], mix: Callable[..., Any], x: Any, blocks: Any
) -> Any:
    """Apply the blocks in JAX, each from a row of weights.

    Scans compile one program for the rows and columns of all blocks. Recomputing the
    activations for the gradient costs less than storing and compiling them.
    """
    import jax  # inference needs no JAX
    import jax.numpy as jnp

    # Nothing is merged with the first pass across the body of a scan, so the barriers
    # of `prevent_cse` would only slow it down.
    again = functools.partial(jax.checkpoint, prevent_cse=False)
    hidden = x.shape[-1]
    size = sum(map(math.prod, look_shapes(hidden)))

    @again
    def checkpointed_look(x: Any, row: Any) -> tuple[Any, None]:
        return look(x, *split_row(row, look_shapes(hidden), jnp)), None

    @again
    def checkpointed_mix(x: Any, row: Any) -> Any:
        return mix(x, *split_row(row, mix_shapes(hidden), jnp))

    def block(x: Any, row: Any) -> tuple[Any, None]:
        looks, rest = jnp.split(row, [2 * size])
        x, _ = jax.lax.scan(checkpointed_look, x, looks.reshape(2, size))
        return checkpointed_mix(x, rest), None

    if not len(blocks):
        return x
    return jax.lax.scan(block, x, blocks)[0]


def _heads(weights: Weights, x: Any, mask: Any, xp: Any) -> tuple[Any, Any]:
    """Compute edge logits [batch, width, width] and posterior weights [.., 2]."""
    share = mask / xp.maximum(mask.sum(1)[:, None], 1.0)
    pooled = (x * share[:, :, None, None]).sum(1)
    trust = pooled @ weights["trust"]
    trust = softplus(trust + broadcast_last(weights["trust_bias"], trust), xp)
    return (x @ weights["edge"])[..., 0], trust
