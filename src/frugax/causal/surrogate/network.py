"""The network of the surrogate: axial attention over pairs of variables.

A pair is a token. In each block, tokens attend along their row (one parent, all
children), along their column (one child, all parents) and to their transpose. No weight
depends on the number of variables. NumPy computes inference, JAX the training.

References:
    Ho et al. 2019, arXiv:1912.12180 (axial attention); Lorch et al. 2022, NeurIPS
    (amortized causal discovery).
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from .evidence import NEVER, PAIR_FEATURES, Evidence, set_membership

HEADS = 4
# NumPy or JAX arrays by name; those of all blocks are stacked.
Weights = dict[str, Any]
_BLOCK = (
    "row", "row_out", "column", "column_out", "mix", "mix_bias", "mix_out", "norms",
)  # fmt: skip


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
        y = attend(layer_norm(x, gain, xp), qkv, hide, xp) @ out
        return xp.swapaxes(x + y, 1, 2)

    def mix(x: Any, gain: Any, into: Any, bias: Any, out: Any) -> Any:
        y = dense_with_transpose(layer_norm(x, gain, xp), into, xp)
        return x + gelu(y + broadcast_last(bias, y), xp) @ out

    def block(x: Any, w: Weights) -> Any:
        x = look(x, w["row"], w["row_out"], w["norms"][0])
        x = look(x, w["column"], w["column_out"], w["norms"][1])
        return mix(x, w["norms"][2], w["mix"], w["mix_bias"], w["mix_out"])

    blocks = {name: weights[name] for name in _BLOCK}
    if xp is np:
        for index in range(len(weights["row"])):
            x = block(x, {name: stacked[index] for name, stacked in blocks.items()})
    else:
        import jax  # inference needs no JAX

        # One compiled program for all blocks. Recomputing the activations for the
        # gradient costs less than storing and compiling them; within a scan nothing
        # is merged with the first pass, so that no barriers are needed.
        again = jax.checkpoint(block, prevent_cse=False)
        x, _ = jax.lax.scan(lambda x, w: (again(x, w), None), x, blocks)
    return layer_norm(x, weights["norm"], xp)


def _heads(weights: Weights, x: Any, mask: Any, xp: Any) -> tuple[Any, Any]:
    """Compute edge logits [batch, width, width] and posterior weights [.., 2]."""
    share = mask / xp.maximum(mask.sum(1)[:, None], 1.0)
    pooled = (x * share[:, :, None, None]).sum(1)
    trust = pooled @ weights["trust"]
    trust = softplus(trust + broadcast_last(weights["trust_bias"], trust), xp)
    return (x @ weights["edge"])[..., 0], trust


# The layers: the same code runs in NumPy and in JAX.


def attend(x: Any, qkv: Any, hide: Any, xp: Any) -> Any:
    """Apply self-attention along the third axis of [batch, rows, tokens, hidden]."""
    b, r, t, h = x.shape
    q, k, v = (x @ qkv[:, i * h : (i + 1) * h] for i in range(3))
    # Heads are stacked, each with zeros for the channels of the others: this takes few
    # large products and no transposes, which XLA compiles slowly.
    own = np.repeat(np.eye(HEADS, dtype=np.float32), h // HEADS, axis=1)
    own = own[None, None, :, None]  # [1, 1, heads, 1, hidden]
    q = (q[:, :, None] * (own * (h // HEADS) ** -0.5)).reshape(b, r, HEADS * t, h)
    logits = q @ xp.swapaxes(k, 2, 3) + hide
    w = xp.exp(logits - row_max(logits, xp))
    w = w / w.sum(-1)[..., None]
    return ((w @ v).reshape(b, r, HEADS, t, h) * own).sum(2)


def layer_norm(x: Any, gain: Any, xp: Any) -> Any:
    """Normalize channels to mean 0 and variance 1, then multiply by a gain."""
    # Centred first: E x^2 - (E x)^2 cancels where the mean of a token is large.
    x = x - x.mean(-1)[..., None]
    return x / xp.sqrt((x * x).mean(-1)[..., None] + 1e-6) * broadcast_last(gain, x)


def dense_with_transpose(x: Any, weight: Any, xp: Any) -> Any:
    """Multiply each pair, concatenated with its transpose, by a weight."""
    # The concatenation is never built: its product is a sum of two products.
    n = x.shape[-1]
    return x @ weight[:n] + xp.swapaxes(x @ weight[n:], 1, 2)


def broadcast_last(vector: Any, like: Any) -> Any:
    """Reshape a vector to broadcast along the last axis."""
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def gelu(x: Any, xp: Any) -> Any:
    """Gaussian error linear unit (tanh approximation)."""
    # 0.7978846 is sqrt(2 / pi) (Hendrycks & Gimpel 2016, arXiv:1606.08415).
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def softplus(x: Any, xp: Any) -> Any:
    """Compute log(1 + exp(x)) without overflow."""
    # exp of a negative number cannot overflow, and log1p keeps the digits of a small
    # one.
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


def row_max(x: Any, xp: Any) -> Any:
    """Maximum of each row, which a softmax subtracts; its gradient is zero."""
    if xp is np:
        return x.max(-1)[..., None]
    from jax.lax import stop_gradient  # inference needs no JAX

    return stop_gradient(x.max(-1)[..., None])
