"""The matrix product on JAX arrays, with its subgradient.

The right matrix is cut into panels of `_PANEL` columns. A pass adds `_WIDTH` of its
rows to as many columns of the left matrix and keeps the best: the rows stay in the
first-level cache, the sums in registers, and no array is larger than the result.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

# Terms of one pass: each pass reads and writes the result once. What fewer cost:
# `python -m benchmarks.tropical --parts width`.
_WIDTH = 16
# Columns of one panel: 16 rows of them are 8 KiB in float32.
_PANEL = 128


def pick(kind: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The better of two numbers, NaN if one of them is."""
    return jnp.maximum if kind == "max" else jnp.minimum


def zero(kind: str, like: jax.Array) -> jax.Array:
    """The semiring's zero: what no walk at all weighs."""
    return jnp.asarray(-math.inf if kind == "max" else math.inf, like.dtype)


@functools.partial(jax.jit, static_argnames="kind")
def matmul(a: jax.Array, b: jax.Array, kind: str) -> jax.Array:
    """`out[i, j]` is the best `a[i, k] + b[k, j]`."""
    dtype = jnp.result_type(a, b)
    a, b = a.astype(dtype), b.astype(dtype)
    if a.shape[1] == 0:
        return jnp.full((a.shape[0], b.shape[1]), zero(kind, a))
    if b.shape[1] < min(_WIDTH, a.shape[0]):  # few columns fill no vector register
        return _product(b.T, a.T, kind).T
    return _product(a, b, kind)


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(a: jax.Array, b: jax.Array, kind: str) -> jax.Array:
    rows, columns = a.shape[0], b.shape[1]
    panels = max(1, -(-columns // _PANEL))
    across = -(-columns // panels)
    if panels > 1:
        across = -(-across // _WIDTH) * _WIDTH  # whole vector registers
    passes = -(-a.shape[1] // _WIDTH)
    more = passes * _WIDTH - a.shape[1]
    # The last term again: what is seen twice changes no maximum.
    left = jnp.pad(a, ((0, 0), (0, more)), mode="edge")
    left = left.reshape(rows, passes, _WIDTH).transpose(1, 0, 2)
    right = jnp.pad(b, ((0, more), (0, 0)), mode="edge")
    right = jnp.pad(right, ((0, 0), (0, panels * across - columns)))
    right = right.reshape(passes, _WIDTH, panels, across).transpose(2, 0, 1, 3)

    def panel(right: jax.Array) -> jax.Array:
        first = left[0, :, :1] + right[0, :1]
        each = lambda best, k: (_best_of_a_pass(best, k[0], k[1], kind), None)
        return jax.lax.scan(each, first, (left, right))[0]

    out = jax.lax.map(panel, right).transpose(1, 0, 2)
    out = out.reshape(rows, panels * across)[:, :columns]
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return out
    # `faster` may lose a NaN. The wrong infinity, which `jit` cannot refuse, is made
    # one too: it has no product with the zero.
    return jnp.where(_odd(a, kind, 1)[:, None] | _odd(b, kind, 0)[None], math.nan, out)


@_product.defjvp
def _product_jvp(
    kind: str,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """The tangent of the first best term; 0 where there is no term but the zero."""
    (a, b), (da, db) = primals, tangents
    out = _product(a, b, kind)
    best = _first_best(a, b, out)
    change = jnp.take_along_axis(da, best, axis=1) + jnp.take_along_axis(
        db, best, axis=0
    )
    counts = jnp.where(out == zero(kind, out), 0, jnp.where(out == out, 1, math.nan))
    return out, change * counts.astype(out.dtype)


def _best_of_a_pass(
    best: jax.Array, left: jax.Array, right: jax.Array, kind: str
) -> jax.Array:
    terms = [left[:, k, None] + right[None, k] for k in range(_WIDTH)]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=True)
        terms = [faster(kind, x, y) for x, y in pairs]
    return faster(kind, best, terms[0])


def faster(kind: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """The better of two numbers, neither of them NaN.

    As a comparison and a choice this is one instruction of the processor; XLA makes
    three of `jnp.maximum`, which has to keep NaN.
    """
    return jnp.where(x > y if kind == "max" else x < y, x, y)


def _odd(a: jax.Array, kind: str, axis: int) -> jax.Array:
    """Which rows or columns hold NaN or the infinity that is no number here."""
    sound = a < math.inf if kind == "max" else a > -math.inf
    return ~sound.all(axis=axis)


def _first_best(a: jax.Array, b: jax.Array, out: jax.Array) -> jax.Array:
    """The smallest `k` with `a[i, k] + b[k, j] == out[i, j]`."""
    inner = a.shape[1]

    def each(found: jax.Array, k: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        column, row, at = k
        hit = column[:, None] + row[None] == out
        return jnp.minimum(found, jnp.where(hit, at, inner - 1)), None

    start = jnp.full(out.shape, inner - 1)
    at = jnp.arange(inner)
    return jax.lax.scan(each, start, (a.T, b, at), unroll=min(_WIDTH, inner))[0]
