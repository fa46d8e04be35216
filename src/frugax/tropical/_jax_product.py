"""The tropical matrix product in JAX, with its subgradient.

The right matrix is split into panels of `_PANEL` columns. Each pass adds `_WIDTH` rows
of a panel to as many columns of the left matrix and reduces the sums: the rows stay in
the L1 cache, the sums in registers, and no array is larger than the result.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Int, Num

# Terms of one pass: each pass reads and writes the result once. A product of n = 512
# took 6.7 times as long with 4 or 8 terms, and as long with 32 (2026-11-26, processor
# time in paired rounds: part `width` of benchmarks/tropical.py at commit 02ef0dc6).
_WIDTH = 16
# Columns of one panel: 16 rows of it take 8 KiB in float32, a quarter of an L1 cache.
_PANEL = 128


def optimum(kind: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return the function for the maximum or minimum; it propagates NaN."""
    return {"max": jnp.maximum, "min": jnp.minimum}[kind]


def zero(kind: str, like: jax.Array) -> jax.Array:
    """Return the zero of the semiring: the weight of a missing edge."""
    value = {"max": -math.inf, "min": math.inf}[kind]
    return jnp.asarray(value, like.dtype)


@functools.partial(jax.jit, static_argnames="kind")
def matmul(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], kind: str
) -> Num[jax.Array, "n m"]:
    """Compute the product; of two narrow operands the wider one supplies the rows."""
    dtype = jnp.result_type(a, b)
    a, b = a.astype(dtype), b.astype(dtype)
    if a.shape[1] == 0:
        return jnp.full((a.shape[0], b.shape[1]), zero(kind, a))
    if b.shape[1] < min(_WIDTH, a.shape[0]):  # too few for a vector register
        return _product(b.T, a.T, kind).T
    return _product(a, b, kind)


@functools.partial(jax.jit, static_argnames="kind")
def product_and_argument(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], kind: str
) -> tuple[Num[jax.Array, "n m"], Int[jax.Array, "n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    out = matmul(a, b, kind)
    if a.shape[1] == 0:
        return out, jnp.full(out.shape, -1)
    known = jax.lax.stop_gradient((a.astype(out.dtype), b.astype(out.dtype), out))
    which = _first_argopt(*known)
    if jnp.issubdtype(out.dtype, jnp.floating):
        which = jnp.where((out == zero(kind, out)) | (out != out), -1, which)
    return out, which


@functools.partial(jax.custom_jvp, nondiff_argnums=(2,))
def _product(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], kind: str
) -> Num[jax.Array, "n m"]:
    rows, columns = a.shape[0], b.shape[1]
    panels = max(1, -(-columns // _PANEL))
    across = -(-columns // panels)
    if panels > 1:
        across = -(-across // _WIDTH) * _WIDTH  # whole vector registers
    passes = -(-a.shape[1] // _WIDTH)
    more = passes * _WIDTH - a.shape[1]
    # Padding repeats the last term: duplicates do not change a maximum.
    left = jnp.pad(a, ((0, 0), (0, more)), mode="edge")
    left = left.reshape(rows, passes, _WIDTH).transpose(1, 0, 2)
    right = jnp.pad(b, ((0, more), (0, 0)), mode="edge")
    right = jnp.pad(right, ((0, 0), (0, panels * across - columns)))
    right = right.reshape(passes, _WIDTH, panels, across).transpose(2, 0, 1, 3)

    def panel(right: jax.Array) -> jax.Array:
        # A maximum starts with the first term: integers lack an infinity to start with.
        first = left[0, :, :1] + right[0, :1]
        step = lambda best, k: (_reduce_pass(best, k[0], k[1], kind), None)
        return jax.lax.scan(step, first, (left, right))[0]

    out = jax.lax.map(panel, right).transpose(1, 0, 2)
    out = out.reshape(rows, panels * across)[:, :columns]
    if not jnp.issubdtype(a.dtype, jnp.floating):
        return out
    # `select` may lose a NaN, so it is restored here. The opposite infinity, which
    # cannot be rejected under `jit`, becomes NaN too: its product with the zero is
    # undefined.
    return jnp.where(
        _has_invalid(a, kind, 1)[:, None] | _has_invalid(b, kind, 0)[None],
        math.nan,
        out,
    )


@_product.defjvp
def _product_jvp(
    kind: str,
    primals: tuple[jax.Array, jax.Array],
    tangents: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Return the tangent of the first optimal term; 0 if all terms are the zero."""
    (a, b), (da, db) = primals, tangents
    out = _product(a, b, kind)
    best = _first_argopt(a, b, out)
    change = jnp.take_along_axis(da, best, axis=1) + jnp.take_along_axis(
        db, best, axis=0
    )
    counts = jnp.where(out == zero(kind, out), 0, jnp.where(out == out, 1, math.nan))
    return out, change * counts.astype(out.dtype)


def _reduce_pass(
    best: jax.Array, left: jax.Array, right: jax.Array, kind: str
) -> jax.Array:
    terms = [left[:, k, None] + right[None, k] for k in range(_WIDTH)]
    while len(terms) > 1:
        pairs = zip(terms[::2], terms[1::2], strict=True)
        terms = [select(kind, x, y) for x, y in pairs]
    return select(kind, best, terms[0])


def select(kind: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the optimum of two numbers that are not NaN.

    A comparison and a select compile to one instruction; XLA emits three for
    `jnp.maximum`, which must propagate NaN.
    """
    return jnp.where(is_better(kind, x, y), x, y)


def is_better(kind: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """Whether x is strictly better than y; False for NaN."""
    return {"max": jnp.greater, "min": jnp.less}[kind](x, y)


def _has_invalid(a: jax.Array, kind: str, axis: int) -> jax.Array:
    """Whether a row or column contains NaN or the infinity that is not an element."""
    # Minus the zero is the infinity that is not an element. It is better neither than
    # itself nor than NaN, so one comparison finds both.
    return ~is_better(kind, -zero(kind, a), a).all(axis=axis)


def _first_argopt(
    a: Num[jax.Array, "n k"], b: Num[jax.Array, "k m"], out: Num[jax.Array, "n m"]
) -> Int[jax.Array, "n m"]:
    """Return the smallest `k` with `a[i, k] + b[k, j] == out[i, j]`."""
    inner = a.shape[1]

    def step(found: jax.Array, k: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        column, row, at = k
        # The same sum has the same bits again, so equality finds the optimal term.
        hit = column[:, None] + row[None] == out
        return jnp.minimum(found, jnp.where(hit, at, inner - 1)), None

    start = jnp.full(out.shape, inner - 1)
    at = jnp.arange(inner)
    return jax.lax.scan(step, start, (a.T, b, at), unroll=min(_WIDTH, inner))[0]
