"""The JAX engine of tropical operations; imported when a JAX array is first met."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Int, Num

from ._jax_buckets import pad_edges, padded_size, size_is_free
from ._jax_closure import closure_and_cycles, predecessors as predecessors
from ._jax_product import (
    matmul as product,
    optimum,
    product_and_argument,
    zero,
)

# Points evaluated at once: the values of 512 monomials then take 512 KiB, which fits
# into a core's cache.
_POINTS = 256


def has_infinity(a: Num[jax.Array, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def contains(a: Num[jax.Array, "..."], which: float) -> bool:
    """Whether the array contains this infinity; False for traced values."""
    if isinstance(a, Tracer) or not has_infinity(a):
        return False
    if size_is_free(a):  # NumPy looks without a compilation for each shape
        return bool((np.asarray(a) == which).any())
    return bool(_any_equal(a, which))


@functools.partial(jax.jit, static_argnums=1)
def _any_equal(a: Num[jax.Array, "..."], which: float) -> Bool[jax.Array, ""]:
    # One call: two eager ones cost as much as a small product.
    return (a == which).any()


def contains_nan(a: Num[jax.Array, "..."]) -> bool:
    """Whether the array contains NaN; False for traced values."""
    if isinstance(a, Tracer):
        return False
    if size_is_free(a):
        return bool(np.isnan(np.asarray(a)).any())
    return bool((a != a).any())


def matmul(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], kind: str
) -> Num[jax.Array, "n m"]:
    """Compute the product; matrices on a CPU share programs by the sizes' buckets."""
    if not (a.shape[1] and size_is_free(a) and size_is_free(b)):
        return product(a, b, kind)
    # Padding repeats the last term, and duplicates do not change an optimum.
    n, m, k = a.shape[0], b.shape[1], padded_size(a.shape[1])
    a, b = pad_edges(a, padded_size(n), k), pad_edges(b, k, padded_size(m))
    return jnp.asarray(np.asarray(product(a, b, kind))[:n, :m])


def matmul_with_argument(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], kind: str
) -> tuple[Num[jax.Array, "n m"], Int[jax.Array, "n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    if not (a.shape[1] and size_is_free(a) and size_is_free(b)):
        return product_and_argument(a, b, kind)
    n, m, k = a.shape[0], b.shape[1], padded_size(a.shape[1])
    a, b = pad_edges(a, padded_size(n), k), pad_edges(b, k, padded_size(m))
    both = product_and_argument(a, b, kind)
    out, which = (jnp.asarray(np.asarray(x)[:n, :m]) for x in both)
    return out, which


def closure(d: Num[jax.Array, "n n"], kind: str) -> Num[jax.Array, "n n"]:
    """Compute optimal walks, then check for improving cycles."""
    n = d.shape[0]
    if size_is_free(d) and has_infinity(d):
        # More vertices without an edge change no walk.
        more = padded_size(n) - n
        padded = np.pad(np.asarray(d), (0, more), constant_values=float(zero(kind, d)))
        out, cycles = closure_and_cycles(jnp.asarray(padded), kind)
        out = jnp.asarray(np.asarray(out)[:n, :n])
    else:
        out, cycles = closure_and_cycles(d, kind)
    if not isinstance(cycles, Tracer) and bool(np.asarray(cycles).any()):
        vertex = int((np.asarray(cycles) != 0).argmax())  # later ones may be on it too
        raise ValueError(
            f"vertex {vertex} lies on a cycle of weight {cycles[vertex].item()}, which "
            "improves in every round: the optimal walk does not exist."
        )
    return out


def vectorize(function: Callable[..., Any], signature: str, *arrays: jax.Array) -> Any:
    """Apply a function of matrices to each batch; the axes before them broadcast."""
    # Equal ranks also where a program forbids JAX to promote them.
    rank = max(a.ndim for a in arrays)
    ranked = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
    return jnp.vectorize(function, signature=signature)(*ranked)


def mark_missing(
    before: Int[jax.Array, "n n"], out: Num[jax.Array, "n n"], kind: str
) -> Int[jax.Array, "n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    missing = jnp.eye(len(out), dtype=bool)
    if has_infinity(out):
        missing |= out == zero(kind, out)
    return jnp.where(missing, -1, before)


@functools.partial(jax.jit, static_argnames="kind")
def viterbi(
    scores: Num[jax.Array, "batch steps states"],
    transitions: Num[jax.Array, "states states"],
    kind: str,
) -> tuple[Int[jax.Array, "batch steps"], Num[jax.Array, " batch"]]:
    """Find the optimal sequence of states of each batch."""
    best = {"max": jnp.argmax, "min": jnp.argmin}[kind]

    def forward(total: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        terms = total[:, :, None] + transitions[None]
        came = best(terms, axis=1)
        return jnp.take_along_axis(terms, came[:, None], axis=1)[:, 0] + now, came

    def back(state: jax.Array, came: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.take_along_axis(came, state[:, None], axis=1)[:, 0], state

    dtype = jnp.result_type(scores, transitions)
    steps = scores.astype(dtype).swapaxes(0, 1)
    total, before = jax.lax.scan(forward, steps[0], steps[1:])
    last = best(total, axis=1)
    weight = jnp.take_along_axis(total, last[:, None], axis=1)[:, 0]
    first, path = jax.lax.scan(back, last, before, reverse=True)
    return jnp.concatenate([first[None], path]).T, weight


def _reduce(
    terms: Num[jax.Array, "count points"], kind: str
) -> Num[jax.Array, " points"]:
    return {"max": jnp.max, "min": jnp.min}[kind](terms, axis=0)


def identity(
    n: int, like: Num[jax.Array, "..."], kind: str
) -> Num[jax.Array, "{n} {n}"]:
    """Return 0 on the diagonal and the zero elsewhere."""
    on = jnp.eye(n, dtype=bool)
    return jnp.where(on, jnp.zeros((), like.dtype), zero(kind, like))


def polynomial(
    coefficients: Num[jax.Array, " monomials"],
    exponents: Num[jax.Array, "monomials variables"],
    points: Num[jax.Array, "points variables"],
    kind: str,
) -> Num[jax.Array, " points"]:
    """Evaluate the optimal monomial at each point."""
    out, is_undefined = _polynomial(coefficients, exponents, points, kind)
    if not isinstance(is_undefined, Tracer) and bool(is_undefined):
        raise ValueError(
            "polynomial: a negative power of an infinite point is undefined."
        )
    return out


@functools.partial(jax.jit, static_argnames="kind")
def _polynomial(
    coefficients: Num[jax.Array, " monomials"],
    exponents: Num[jax.Array, "monomials variables"],
    points: Num[jax.Array, "points variables"],
    kind: str,
) -> tuple[Num[jax.Array, " points"], Bool[jax.Array, ""]]:
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
def convolve(
    short: Num[jax.Array, " n"], long: Num[jax.Array, " m"], kind: str
) -> Num[jax.Array, " n+m-1"]:
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
