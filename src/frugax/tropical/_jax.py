"""The JAX engine of tropical operations; imported when a JAX array is first met."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Int, Num

from . import _numpy
from ._jax_buckets import reshape as reshape, run, size_is_free
from ._jax_closure import closure_and_cycles, predecessors as predecessors_of_matrix
from ._jax_product import (
    matmul as product,
    optimum,
    product_and_argument,
    zero,
)

# Points evaluated at once: the values of 512 monomials then take 512 KiB, which fits
# into a core's cache.
_POINTS = 256
# The longest sequences and the most points that are padded to share programs.
_LONGEST = 1 << 14


def has_infinity(a: Num[jax.Array, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def contains(a: Num[jax.Array, "..."], which: float) -> bool:
    """Whether the array contains this infinity; False for traced values."""
    if isinstance(a, Tracer) or not has_infinity(a):
        return False
    if size_is_free(a, _LONGEST):  # NumPy looks without a compilation for each shape
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
    if size_is_free(a, _LONGEST):
        return bool(np.isnan(np.asarray(a)).any())
    return bool((a != a).any())


def matmul(
    a: Num[jax.Array, "*left n k"], b: Num[jax.Array, "*right k m"], kind: str
) -> Num[jax.Array, "*both n m"]:
    """Compute the product; copies of the last term do not change an optimum."""
    return run(product, "(n,k),(k,m)->(n,m)", a, b, kind=kind)


def matmul_with_argument(
    a: Num[jax.Array, "*left n k"], b: Num[jax.Array, "*right k m"], kind: str
) -> tuple[Num[jax.Array, "*both n m"], Int[jax.Array, "*both n m"]]:
    """Compute the product and the first k of each optimum; -1 for no term."""
    # The copies come after the term that they copy, so they are never the first.
    return run(product_and_argument, "(n,k),(k,m)->(n,m),(n,m)", a, b, kind=kind)


def closure(d: Num[jax.Array, "*batch n n"], kind: str) -> Num[jax.Array, "*batch n n"]:
    """Compute optimal walks, then check for improving cycles."""
    # Only the first vertices take part: integers lack an edge that changes no walk.
    signature, lengths = "(n,n)->(n,n),(n)", d.shape[-1:]
    out, cycles = run(closure_and_cycles, signature, d, kind=kind, lengths=lengths)
    if not isinstance(cycles, Tracer) and np.asarray(cycles).any():
        weights = np.asarray(cycles).reshape(-1, d.shape[-1])
        matrix, vertex = np.argwhere(weights)[0]  # later ones may be on it too
        raise ValueError(
            f"vertex {vertex} lies on a cycle of weight {weights[matrix, vertex]}, "
            "which improves in every round: the optimal walk does not exist."
        )
    return out


def predecessors(
    d: Num[jax.Array, "*batch n n"], kind: str
) -> Int[jax.Array, "*batch n n"]:
    """Return the vertex before j on the optimal walk from i to j; i for no walk."""
    lengths = d.shape[-1:]
    return run(predecessors_of_matrix, "(n,n)->(n,n)", d, kind=kind, lengths=lengths)


def mark_missing(
    before: Int[jax.Array, "*batch n n"], out: Num[jax.Array, "*batch n n"], kind: str
) -> Int[jax.Array, "*batch n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    if size_is_free(out):
        host = _numpy.mark_missing(np.asarray(before), np.asarray(out), kind)
        return jax.device_put(host)
    missing = jnp.broadcast_to(jnp.eye(out.shape[-1], dtype=bool), out.shape)
    if has_infinity(out):
        missing |= out == zero(kind, out)
    return jnp.where(missing, -1, before)


def viterbi(
    scores: Num[jax.Array, "batch steps states"],
    transitions: Num[jax.Array, "states states"],
    kind: str,
) -> tuple[Int[jax.Array, "batch steps"], Num[jax.Array, " batch"]]:
    """Find the optimal sequence of states of each batch; ties go to the lowest."""
    # Copies of the last state have its weights, and come after it.
    signature, lengths = "(b,t,s),(s,s)->(b,t),(b)", (scores.shape[1],)
    return run(_viterbi, signature, scores, transitions, kind=kind, lengths=lengths)


@functools.partial(jax.jit, static_argnames="kind")
def _viterbi(
    scores: Num[jax.Array, "batch steps states"],
    transitions: Num[jax.Array, "states states"],
    length: "int | jax.Array",
    kind: str,
) -> tuple[Int[jax.Array, "batch steps"], Num[jax.Array, " batch"]]:
    best = {"max": jnp.argmax, "min": jnp.argmin}[kind]
    dtype = jnp.result_type(scores, transitions)
    steps, moves = scores.astype(dtype).swapaxes(0, 1), transitions.astype(dtype)
    # The weight is summed along the path afterwards, and has its gradient there.
    known, known_moves = jax.lax.stop_gradient((steps, moves))
    later = jnp.arange(1, len(steps))

    def forward(
        total: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        now, t = step
        # XLA has no vectors for the place of an optimum: for the optimum alone a step
        # takes a sixth to a twentieth of the time. `back` finds the place on the path.
        after = _reduce(total[:, :, None] + known_moves[None], kind, axis=1) + now
        # Steps after the last one leave everything as it is.
        return jnp.where(t < length, after, total), total

    def back(
        state: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        total, t = step
        came = best(total + known_moves.T[state], axis=1)
        return jnp.where(t < length, came, state), state

    def add(
        weight: jax.Array, step: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        move, now, t = step
        return jnp.where(t < length, weight + move + now, weight), None

    total, before = jax.lax.scan(forward, known[0], (known[1:], later))
    first, path = jax.lax.scan(back, best(total, axis=1), (before, later), reverse=True)
    path = jnp.concatenate([first[None], path])
    scored = jnp.take_along_axis(steps, path[..., None], axis=2)[..., 0]
    along = moves[path[:-1], path[1:]], scored[1:], later
    return path.T, jax.lax.scan(add, scored[0], along)[0]


def _reduce(
    terms: Num[jax.Array, "..."], kind: str, axis: int = 0
) -> Num[jax.Array, "..."]:
    return {"max": jnp.max, "min": jnp.min}[kind](terms, axis=axis)


def identity(
    shape: tuple[int, ...], like: Num[jax.Array, "..."], kind: str
) -> Num[jax.Array, "..."]:
    """Return 0 on the diagonal and the zero elsewhere."""
    on = jnp.broadcast_to(jnp.eye(shape[-1], dtype=bool), shape)
    return jnp.where(on, jnp.zeros((), like.dtype), zero(kind, like))


def polynomial(
    coefficients: Num[jax.Array, " monomials"],
    exponents: Num[jax.Array, "monomials variables"],
    points: Num[jax.Array, "points variables"],
    kind: str,
) -> Num[jax.Array, " points"]:
    """Evaluate the optimal monomial at each point."""
    # The last monomial and the last point are repeated; more variables have power 0.
    out, is_undefined = run(
        _polynomial,
        "(m),(m,v),(p,v)->(p),()",
        *(coefficients, exponents, points),
        kind=kind,
        fill={"v": 0},
        longest=_LONGEST,
    )
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


def convolve(
    short: Num[jax.Array, " n"], long: Num[jax.Array, " m"], kind: str
) -> Num[jax.Array, " n+m-1"]:
    """Make one pass over the long sequence for each element of the short one."""
    lengths = short.shape[0], long.shape[0]
    out = run(
        _convolve,
        "(n),(m)->(s)",
        *(short, long),
        kind=kind,
        lengths=lengths,
        longest=_LONGEST,
    )
    # Empty but for buckets, and by NumPy there, which compiles nothing.
    size = sum(lengths) - 1
    return out if len(out) == size else jax.device_put(np.asarray(out)[:size])


@functools.partial(jax.jit, static_argnames="kind")
def _convolve(
    short: Num[jax.Array, " n"],
    long: Num[jax.Array, " m"],
    n: "int | jax.Array",
    m: "int | jax.Array",
    kind: str,
) -> Num[jax.Array, " n+m-1"]:
    # Positions out of range are masked: integers do not have an infinity to pad with.
    places = jnp.arange(short.shape[0] + long.shape[0] - 1)

    def term(i: "int | jax.Array") -> tuple[jax.Array, jax.Array]:
        at = places - i
        inside = (at >= 0) & (at < m) & (i < n)
        return short[i] + long[jnp.clip(at, 0, long.shape[0] - 1)], inside

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        value, inside = term(i)
        # The position that no earlier term has reached.
        first = (places == i + m - 1) & (i < n)
        return jnp.where(
            first, value, jnp.where(inside, optimum(kind)(out, value), out)
        )

    # Term 0 is clipped at its end. Later terms overwrite those places when they first
    # reach them.
    return jax.lax.fori_loop(1, short.shape[0], body, term(0)[0])
