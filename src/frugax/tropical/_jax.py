"""Tropical operations on JAX arrays; imported only when one is met."""

import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._jax_closure import closure
from ._jax_product import matmul, pick, zero

__all__ = [
    "closure",
    "convolve",
    "has_zero",
    "holds_infinity",
    "holds_nan",
    "identity",
    "matmul",
    "polynomial",
]

# Points evaluated at once: their monomials should stay in a core's cache.
_POINTS = 256


def has_zero(a: jax.Array) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def holds_infinity(a: jax.Array, which: float) -> bool:
    """Whether this infinity is in the array; unknown, so no, under a transformation."""
    if isinstance(a, Tracer) or not has_zero(a):
        return False
    return bool(_any_is(a, which))


@functools.partial(jax.jit, static_argnums=1)
def _any_is(a: jax.Array, which: float) -> jax.Array:
    return (a == which).any()  # in one call: eager steps cost as much as small products


def holds_nan(a: jax.Array) -> bool:
    """Whether what is no number is in the array; unknown, so no, when traced."""
    return not isinstance(a, Tracer) and bool((a != a).any())


def identity(n: int, like: jax.Array, kind: str) -> jax.Array:
    """0 on the diagonal, the zero elsewhere."""
    on = jnp.eye(n, dtype=bool)
    return jnp.where(on, jnp.zeros((), like.dtype), zero(kind, like))


def polynomial(
    coefficients: jax.Array, exponents: jax.Array, points: jax.Array, kind: str
) -> jax.Array:
    """The best monomial at each point.

    Raises:
        ValueError: an infinite point with a negative power.
    """
    out, wrong = _polynomial(coefficients, exponents, points, kind)
    if not isinstance(wrong, Tracer) and bool(wrong):
        raise ValueError("an infinite point has no negative power.")
    return out


@functools.partial(jax.jit, static_argnames="kind")
def _polynomial(
    coefficients: jax.Array, exponents: jax.Array, points: jax.Array, kind: str
) -> tuple[jax.Array, jax.Array]:
    count, variables = points.shape
    # HIGHEST: accelerators would otherwise round the factors to fewer bits.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    dtype = jnp.result_type(coefficients, exponents, points)
    coefficients, exponents, points = (
        a.astype(dtype) for a in (coefficients, exponents, points)
    )
    used = (exponents != 0).astype(dtype)

    def evaluate(points: jax.Array) -> jax.Array:
        # Monomials first: maxima over the first axis fill whole vector registers.
        terms = product(exponents, points.T) + coefficients[:, None]
        return terms.max(axis=0) if kind == "max" else terms.min(axis=0)

    def evaluate_with_zeros(points: jax.Array) -> jax.Array:
        # 0 * inf is not a number; the zero to the power 0 is one, else zero.
        gone = points == zero(kind, points)
        finite = jnp.where(gone, jnp.zeros_like(points), points)
        terms = product(exponents, finite.T) + coefficients[:, None]
        swallowed = product(used, gone.astype(dtype).T) > 0
        terms = jnp.where(swallowed, zero(kind, terms), terms)
        return terms.max(axis=0) if kind == "max" else terms.min(axis=0)

    at_once = min(_POINTS, count)
    blocks = -(-count // at_once) if count else 0
    padded = jnp.pad(points, ((0, blocks * at_once - count), (0, 0)))
    padded = padded.reshape(blocks, at_once, variables)
    if not has_zero(points):  # nor has any of whole numbers an infinite point
        return jax.lax.map(evaluate, padded).reshape(-1)[:count], jnp.zeros((), bool)
    gone = (points == zero(kind, points)).any(axis=0)
    out = jax.lax.cond(
        gone.any(),
        functools.partial(jax.lax.map, evaluate_with_zeros),
        functools.partial(jax.lax.map, evaluate),
        padded,
    )
    wrong = (gone & (exponents < 0).any(axis=0)).any()
    return out.reshape(-1)[:count], wrong


@functools.partial(jax.jit, static_argnames="kind")
def convolve(short: jax.Array, long: jax.Array, kind: str) -> jax.Array:
    """One pass over the long sequence for each number of the short one."""
    n, m = short.shape[0], long.shape[0]
    # Places out of range are masked: whole numbers have no infinity to pad with.
    places = jnp.arange(n + m - 1)

    def term(i: "int | jax.Array") -> tuple[jax.Array, jax.Array]:
        at = places - i
        return short[i] + long[jnp.clip(at, 0, m - 1)], (at >= 0) & (at < m)

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        value, inside = term(i)
        first = places == i + m - 1  # the place that no earlier term has reached
        return jnp.where(first, value, jnp.where(inside, pick(kind)(out, value), out))

    return jax.lax.fori_loop(1, n, body, term(0)[0])
