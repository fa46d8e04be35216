"""Tropical operations on JAX arrays; imported when one is first passed in."""

import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._jax_closure import closure
from ._jax_product import matmul, optimum, zero

__all__ = [
    "closure",
    "contains",
    "contains_nan",
    "convolve",
    "has_infinity",
    "identity",
    "matmul",
    "polynomial",
]

# Points evaluated at once: the values of 512 monomials then take 512 KiB, which fits
# into a core's cache.
_POINTS = 256


def has_infinity(a: jax.Array) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def contains(a: jax.Array, which: float) -> bool:
    """Whether the array contains this infinity; False for traced values."""
    if isinstance(a, Tracer) or not has_infinity(a):
        return False
    return bool(_any_equal(a, which))


@functools.partial(jax.jit, static_argnums=1)
def _any_equal(a: jax.Array, which: float) -> jax.Array:
    return (
        a == which
    ).any()  # one call: two eager ones cost as much as a small product


def contains_nan(a: jax.Array) -> bool:
    """Whether the array contains NaN; False for traced values."""
    return not isinstance(a, Tracer) and bool((a != a).any())


def _reduce(terms: jax.Array, kind: str) -> jax.Array:
    return {"max": jnp.max, "min": jnp.min}[kind](terms, axis=0)


def identity(n: int, like: jax.Array, kind: str) -> jax.Array:
    """Return 0 on the diagonal and the zero elsewhere."""
    on = jnp.eye(n, dtype=bool)
    return jnp.where(on, jnp.zeros((), like.dtype), zero(kind, like))


def polynomial(
    coefficients: jax.Array, exponents: jax.Array, points: jax.Array, kind: str
) -> jax.Array:
    """Evaluate the optimal monomial at each point."""
    out, is_undefined = _polynomial(coefficients, exponents, points, kind)
    if not isinstance(is_undefined, Tracer) and bool(is_undefined):
        raise ValueError(
            "polynomial: a negative power of an infinite point is undefined."
        )
    return out


@functools.partial(jax.jit, static_argnames="kind")
def _polynomial(
    coefficients: jax.Array, exponents: jax.Array, points: jax.Array, kind: str
) -> tuple[jax.Array, jax.Array]:
    count, variables = points.shape
    # Accelerators round the factors to fewer bits at the default precision.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    dtype = jnp.result_type(coefficients, exponents, points)
    coefficients, exponents, points = (
        a.astype(dtype) for a in (coefficients, exponents, points)
    )
    used = (exponents != 0).astype(dtype)

    def evaluate(points: jax.Array) -> jax.Array:
        # Monomials first: reductions over the first axis use whole vector registers.
        terms = product(exponents, points.T) + coefficients[:, None]
        return _reduce(terms, kind)

    def evaluate_with_zeros(points: jax.Array) -> jax.Array:
        # 0 * inf is NaN, but the zero to the power 0 is the one, else the zero.
        is_zero = points == zero(kind, points)
        finite = jnp.where(is_zero, jnp.zeros_like(points), points)
        terms = product(exponents, finite.T) + coefficients[:, None]
        # A product of two matrices of zeros and ones counts the zero factors of each
        # monomial.
        has_zero_factor = product(used, is_zero.astype(dtype).T) > 0
        terms = jnp.where(has_zero_factor, zero(kind, terms), terms)
        return _reduce(terms, kind)

    at_once = min(_POINTS, count)
    blocks = -(-count // at_once) if count else 0
    padded = jnp.pad(points, ((0, blocks * at_once - count), (0, 0)))
    padded = padded.reshape(blocks, at_once, variables)
    if not has_infinity(points):  # integers are finite
        return jax.lax.map(evaluate, padded).reshape(-1)[:count], jnp.zeros((), bool)
    is_zero = (points == zero(kind, points)).any(axis=0)
    # A branch and not a `where`: finite points need not pay for the second product.
    out = jax.lax.cond(
        is_zero.any(),
        functools.partial(jax.lax.map, evaluate_with_zeros),
        functools.partial(jax.lax.map, evaluate),
        padded,
    )
    is_undefined = (is_zero & (exponents < 0).any(axis=0)).any()
    return out.reshape(-1)[:count], is_undefined


@functools.partial(jax.jit, static_argnames="kind")
def convolve(short: jax.Array, long: jax.Array, kind: str) -> jax.Array:
    """Make one pass over the long sequence for each element of the short one."""
    n, m = short.shape[0], long.shape[0]
    # Positions out of range are masked: integers do not have an infinity to pad with.
    places = jnp.arange(n + m - 1)

    def term(i: "int | jax.Array") -> tuple[jax.Array, jax.Array]:
        at = places - i
        return short[i] + long[jnp.clip(at, 0, m - 1)], (at >= 0) & (at < m)

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        value, inside = term(i)
        first = places == i + m - 1  # the position that no earlier term has reached
        return jnp.where(
            first, value, jnp.where(inside, optimum(kind)(out, value), out)
        )

    # Term 0 is clipped at its end. Later terms overwrite those places when they first
    # reach them.
    return jax.lax.fori_loop(1, n, body, term(0)[0])
