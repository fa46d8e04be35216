"""The JAX engine of tropical operations; imported when a JAX array is first met."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Int, Num

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
# Numbers of an array that goes through NumPy: a product of larger matrices takes longer
# there than in a compiled program.
_SMALL = 1 << 13


def call_small_in_numpy(
    operation: Callable[..., Any], *args: Any, **options: Any
) -> Any:
    """Call an operation, through NumPy if its JAX arrays are small and on a CPU.

    XLA compiles a program for each shape, which takes seconds on a busy machine, and
    NumPy's results have the same bits.
    """
    arrays = [x for x in (*args, *options.values()) if isinstance(x, jax.Array)]
    is_small = all(a.size <= _SMALL and _is_on_cpu(a) for a in arrays)
    # NumPy has no product of matrices, nor infinities, for the types of ml_dtypes.
    if not is_small or (dtype := jnp.result_type(*arrays)).kind not in "fiu":
        return operation(*args, **options)
    host = lambda x: np.asarray(x, dtype) if isinstance(x, jax.Array) else x
    found = operation(*map(host, args), **{k: host(x) for k, x in options.items()})
    return jax.tree.map(jax.device_put, found)


def _is_on_cpu(a: Num[jax.Array, "..."]) -> bool:
    """Whether NumPy can look at an array without a copy."""
    if isinstance(a, Tracer):
        return False
    return [device.platform for device in a.devices()] == ["cpu"]


def _of_batches(program: Callable[..., Any], signature: str) -> Callable[..., Any]:
    """Make a program of matrices and a semiring one of batches, which broadcast."""

    def call(*given: Any) -> Any:
        *arrays, kind = given
        if all(a.ndim == 2 for a in arrays):
            return program(*arrays, kind)
        # Equal ranks also where a program forbids JAX to promote them.
        rank = max(a.ndim for a in arrays)
        ranked = [a.reshape((1,) * (rank - a.ndim) + a.shape) for a in arrays]
        of_one = lambda *one: program(*one, kind)
        return jnp.vectorize(of_one, signature=signature)(*ranked)

    return call


matmul = _of_batches(product, "(n,k),(k,m)->(n,m)")
matmul_with_argument = _of_batches(product_and_argument, "(n,k),(k,m)->(n,m),(n,m)")
predecessors = _of_batches(predecessors_of_matrix, "(n,n)->(n,n)")
_closure_and_cycles = _of_batches(closure_and_cycles, "(n,n)->(n,n),(n)")


def has_infinity(a: Num[jax.Array, "..."]) -> bool:
    """Whether the dtype has infinities."""
    return jnp.issubdtype(a.dtype, jnp.floating)


def contains(a: Num[jax.Array, "..."], which: float) -> bool:
    """Whether the array contains this infinity; False for traced values."""
    if isinstance(a, Tracer) or not has_infinity(a):
        return False
    return bool(_any_equal(a, which))


@functools.partial(jax.jit, static_argnums=1)
def _any_equal(a: Num[jax.Array, "..."], which: float) -> Bool[jax.Array, ""]:
    # One call: two eager ones cost as much as a small product.
    return (a == which).any()


def contains_nan(a: Num[jax.Array, "..."]) -> bool:
    """Whether the array contains NaN; False for traced values."""
    return not isinstance(a, Tracer) and bool((a != a).any())


def closure(d: Num[jax.Array, "*batch n n"], kind: str) -> Num[jax.Array, "*batch n n"]:
    """Compute optimal walks, then check for improving cycles."""
    out, cycles = _closure_and_cycles(d, kind)
    if not isinstance(cycles, Tracer) and np.asarray(cycles).any():
        weights = np.asarray(cycles).reshape(-1, d.shape[-1])
        matrix, vertex = np.argwhere(weights)[0]  # later ones may be on it too
        raise ValueError(
            f"vertex {vertex} lies on a cycle of weight {weights[matrix, vertex]}, "
            "which improves in every round: the optimal walk does not exist."
        )
    return out


def mark_missing(
    before: Int[jax.Array, "*batch n n"], out: Num[jax.Array, "*batch n n"], kind: str
) -> Int[jax.Array, "*batch n n"]:
    """Write -1 where no edge leads to j: from j itself, and where no walk does."""
    missing = jnp.broadcast_to(jnp.eye(out.shape[-1], dtype=bool), out.shape)
    if has_infinity(out):
        missing |= out == zero(kind, out)
    return jnp.where(missing, -1, before)


@functools.partial(jax.jit, static_argnames="kind")
def viterbi(
    scores: Num[jax.Array, "batch steps states"],
    transitions: Num[jax.Array, "states states"],
    kind: str,
) -> tuple[Int[jax.Array, "batch steps"], Num[jax.Array, " batch"]]:
    """Find the optimal sequence of states of each batch; ties go to the lowest."""
    best = {"max": jnp.argmax, "min": jnp.argmin}[kind]
    dtype = jnp.result_type(scores, transitions)
    steps, moves = scores.astype(dtype).swapaxes(0, 1), transitions.astype(dtype)
    # The weight is summed along the path afterwards, and has its gradient there.
    known, known_moves = jax.lax.stop_gradient((steps, moves))

    def forward(total: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        # XLA has no vectors for the place of an optimum: for the optimum alone a step
        # takes a sixth to a twentieth of the time. `back` finds the place on the path.
        after = _reduce(total[:, :, None] + known_moves[None], kind, axis=1) + now
        return after, total

    def back(state: jax.Array, total: jax.Array) -> tuple[jax.Array, jax.Array]:
        return best(total + known_moves.T[state], axis=1), state

    def add(
        weight: jax.Array, step: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, None]:
        move, now = step
        return weight + move + now, None

    total, before = jax.lax.scan(forward, known[0], known[1:])
    first, path = jax.lax.scan(back, best(total, axis=1), before, reverse=True)
    path = jnp.concatenate([first[None], path])
    scored = jnp.take_along_axis(steps, path[..., None], axis=2)[..., 0]
    along = moves[path[:-1], path[1:]], scored[1:]
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
    # Accelerators round the factors to fewer bits at the default precision.
    product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)
    dtype = jnp.result_type(coefficients, exponents, points)
    coefficients, exponents, points = (
        a.astype(dtype) for a in (coefficients, exponents, points)
    )
    used = (exponents != 0).astype(dtype)

    def evaluate(point: jax.Array, *, has_zeros: bool) -> jax.Array:
        # 0 * inf is NaN, but the zero to the power 0 is the one, else the zero.
        is_zero = point == zero(kind, point)
        finite = jnp.where(is_zero, jnp.zeros_like(point), point)
        terms = product(exponents, finite if has_zeros else point) + coefficients
        if has_zeros:
            # A product of zeros and ones counts the zero factors of each monomial.
            has_zero_factor = product(used, is_zero.astype(dtype)) > 0
            terms = jnp.where(has_zero_factor, zero(kind, terms), terms)
        return _reduce(terms, kind)

    at_all = {
        has_zeros: functools.partial(
            jax.lax.map,
            functools.partial(evaluate, has_zeros=has_zeros),
            batch_size=_POINTS,
        )
        for has_zeros in (True, False)
    }
    if not has_infinity(points):  # integers are finite
        return at_all[False](points), jnp.zeros((), bool)
    is_zero = (points == zero(kind, points)).any(axis=0)
    # A branch and not a `where`: finite points need not pay for the second product.
    out = jax.lax.cond(is_zero.any(), at_all[True], at_all[False], points)
    return out, (is_zero & (exponents < 0).any(axis=0)).any()


@functools.partial(jax.jit, static_argnums=2)
def convolve(
    short: Num[jax.Array, " n"], long: Num[jax.Array, " m"], kind: str
) -> Num[jax.Array, " n+m-1"]:
    """Make one pass over the long sequence for each element of the short one."""
    m = long.shape[0]

    def body(i: jax.Array, out: jax.Array) -> jax.Array:
        inside = jax.lax.dynamic_slice_in_dim(out, i, m - 1)
        inside = optimum(kind)(inside, short[i] + long[:-1])
        return jax.lax.dynamic_update_slice_in_dim(out, inside, i, 0)

    # Each place with the term of the first pass that reaches it: integers do not have
    # an infinity to start with.
    out = jnp.concatenate([short[0] + long, short[1:] + long[-1]])
    return jax.lax.fori_loop(1, short.shape[0], body, out)
