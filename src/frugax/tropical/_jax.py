"""Tropical operations on JAX arrays; imported only when one is met."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.core import Tracer

# Products in one pass: a tree of 16 maxima is what XLA vectorises well; with 4 or 8
# the same program takes 5 to 10 times as long (measured on a Zen 4 core).
_UNROLL = 16


def has_zero(a: jax.Array) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def holds_infinity(a: jax.Array, which: float) -> bool:
    """Whether this infinity is in the array; unknown, so no, under a transformation."""
    if isinstance(a, Tracer) or not has_zero(a):
        return False
    return bool((a == which).any())


def identity(n: int, like: jax.Array, kind: str) -> jax.Array:
    """0 on the diagonal, the zero elsewhere."""
    on = jnp.eye(n, dtype=bool)
    return jnp.where(on, jnp.zeros((), like.dtype), _zero(kind, like))


@functools.partial(jax.jit, static_argnames="kind")
def matmul(a: jax.Array, b: jax.Array, kind: str) -> jax.Array:
    """`out[i, j]` is the best `a[i, k] + b[k, j]`, `_UNROLL` values of k at a time."""
    inner = a.shape[1]
    if inner == 0:
        return jnp.full((a.shape[0], b.shape[1]), _zero(kind, a))
    width = min(_UNROLL, inner)

    def products(start: "int | jax.Array") -> jax.Array:
        left = jax.lax.dynamic_slice_in_dim(a, start, width, axis=1)
        right = jax.lax.dynamic_slice_in_dim(b, start, width, axis=0)
        terms = [left[:, k, None] + right[None, k] for k in range(width)]
        return functools.reduce(_better(kind), terms)

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        # The last slice is moved back inside: terms seen twice change no maximum.
        return _better(kind)(out, products(i * width))

    return jax.lax.fori_loop(1, -(-inner // width), body, products(0))


def closure(d: jax.Array, kind: str) -> jax.Array:
    """Floyd-Warshall; cycles that gain are looked for afterwards.

    Raises:
        ValueError: there is such a cycle.
    """
    out, gains = _closure(d, kind)
    if not isinstance(gains, Tracer) and bool(gains.any()):
        raise ValueError(
            f"vertex {int(gains.argmax())} lies on a cycle that gets better with "
            "every round: there is no best walk."
        )
    return out


@functools.partial(jax.jit, static_argnames="kind")
def _closure(d: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    better, n = _better(kind), d.shape[0]
    on = jnp.eye(n, dtype=bool)
    start = jnp.where(on, better(d, jnp.zeros_like(d)), d)

    def body(
        k: jax.Array, state: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        out, gains = state
        gains = gains.at[k].set(out[k, k] != 0)
        return better(out, out[:, k, None] + out[None, k]), gains

    return jax.lax.fori_loop(0, n, body, (start, jnp.zeros(n, bool)))


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
    zero = _zero(kind, points)
    # HIGHEST: accelerators would otherwise round the factors to fewer bits.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    gone = points == zero
    finite = jnp.where(gone, jnp.zeros_like(points), points)
    terms = product(finite, exponents.T) + coefficients[None, :]
    swallowed = product(
        gone.astype(points.dtype), (exponents != 0).astype(points.dtype).T
    )
    terms = jnp.where(swallowed > 0, zero, terms)
    wrong = (gone.any(axis=0) & (exponents < 0).any(axis=0)).any()
    return terms.max(axis=1) if kind == "max" else terms.min(axis=1), wrong


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
        return jnp.where(
            first, value, jnp.where(inside, _better(kind)(out, value), out)
        )

    return jax.lax.fori_loop(1, n, body, term(0)[0])


def _zero(kind: str, like: jax.Array) -> jax.Array:
    return jnp.asarray(-math.inf if kind == "max" else math.inf, like.dtype)


def _better(kind: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    return jnp.maximum if kind == "max" else jnp.minimum
