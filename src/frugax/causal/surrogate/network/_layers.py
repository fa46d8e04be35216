"""Layers of the surrogate's network; the same code runs in NumPy and in JAX."""

import functools
from typing import Any

import numpy as np

HEADS = 4


def dense(x: Any, weight: Any, xp: Any) -> Any:
    """Multiply the last axis by a weight [n, out]."""
    if xp is np:
        return x @ weight
    return _jax_dense()(x, weight)


@functools.cache
def _jax_dense() -> Any:
    """Return a product whose gradient has the form that XLA's CPU backend takes.

    JAX's own rule gives the transposed gradient of the weight, for which XLA first
    copies each input in transposed order: further kernels, which take as long to
    compile as any other. Imported lazily, because inference does not need JAX.
    """
    import jax

    flatten = lambda x: x.reshape(-1, x.shape[-1])

    @jax.custom_vjp
    def product(x: Any, weight: Any) -> Any:
        return (flatten(x) @ weight).reshape(*x.shape[:-1], weight.shape[-1])

    def forward(x: Any, weight: Any) -> tuple[Any, tuple[Any, Any]]:
        return product(x, weight), (x, weight)

    def backward(saved: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
        x, weight = saved
        grad = flatten(grad)
        return (grad @ weight.T).reshape(x.shape), flatten(x).T @ grad

    product.defvjp(forward, backward)
    return product


def attend(x: Any, qkv: Any, hide: Any, xp: Any) -> Any:
    """Apply self-attention along the third axis of [batch, rows, tokens, hidden]."""
    b, r, t, h = x.shape
    q, k, v = (dense(x, qkv[:, i * h : (i + 1) * h], xp) for i in range(3))
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
    across = dense(x, weight[n:], xp)
    return dense(x, weight[:n], xp) + xp.swapaxes(across, 1, 2)


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
