"""What the networks are made of; the same lines run in NumPy and in JAX."""

from typing import Any

import numpy as np

HEADS = 4


def dense(x: Any, weight: Any, xp: Any) -> Any:
    """The product of the last axis with a weight [n, out]."""
    if xp is np:
        return x @ weight
    from ._dense import dense as in_jax  # asking needs no JAX

    return in_jax(x, weight)


def attend(x: Any, qkv: Any, hide: Any, xp: Any) -> Any:
    """Attention along the third axis of [batch, rows, tokens, hidden].

    Args:
        x: what looks, and what is looked at.
        qkv: weights of queries, keys and values side by side [hidden, 3 * hidden].
        hide: added to logits; very negative for tokens that are not there.
        xp: `numpy` or `jax.numpy`.
    """
    b, r, t, h = x.shape
    q, k, v = (dense(x, qkv[:, i * h : (i + 1) * h], xp) for i in range(3))
    # Heads one below the other, each with zeros for the channels of the others: few
    # large products, and nothing to turn round, which is long to compile.
    own = np.repeat(np.eye(HEADS, dtype=np.float32), h // HEADS, axis=1)
    own = own[None, None, :, None]  # [1, 1, heads, 1, hidden]
    q = (q[:, :, None] * (own * (h // HEADS) ** -0.5)).reshape(b, r, HEADS * t, h)
    logits = q @ xp.swapaxes(k, 2, 3) + hide
    w = xp.exp(logits - top(logits, xp))
    w = w / w.sum(-1)[..., None]
    return ((w @ v).reshape(b, r, HEADS, t, h) * own).sum(2)


def normal(x: Any, gain: Any, xp: Any) -> Any:
    """Channels with mean 0 and variance 1, times their gain."""
    x = x - x.mean(-1)[..., None]
    return x / xp.sqrt((x * x).mean(-1)[..., None] + 1e-6) * along_last(gain, x)


def beside_transpose(x: Any, weight: Any, xp: Any) -> Any:
    """Each pair beside its transpose, times a weight [2 * hidden, out].

    Args:
        x: pairs [batch, width, width, hidden].
        weight: for the pair and for its transpose, one above the other.
        xp: `numpy` or `jax.numpy`.
    """
    n = x.shape[-1]
    across = dense(x, weight[n:], xp)
    return dense(x, weight[:n], xp) + xp.swapaxes(across, 1, 2)


def along_last(vector: Any, like: Any) -> Any:
    """A vector as an array that broadcasts along the last axis."""
    return vector.reshape((1,) * (like.ndim - 1) + (-1,))


def gelu(x: Any, xp: Any) -> Any:
    """Gaussian error linear unit, by a hyperbolic tangent."""
    return 0.5 * x * (1 + xp.tanh(0.7978846 * (x + 0.044715 * x * x * x)))


def softplus(x: Any, xp: Any) -> Any:
    """log(1 + exp(x)), without overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-abs(x)))


def top(x: Any, xp: Any) -> Any:
    """The greatest of each row, which a softmax takes off: its gradient is nothing."""
    if xp is np:
        return x.max(-1)[..., None]
    from jax.lax import stop_gradient  # asking needs no JAX

    return stop_gradient(x.max(-1)[..., None])
