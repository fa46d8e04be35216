"""Floyd-Warshall on JAX arrays, a block of vertices at a time, with its subgradient.

What a vertex does to all pairs is a sum of its column and its row as they were at its
turn. So only the rows and columns of `_BLOCK` vertices are brought up to date one
vertex at a time; what they do to the whole matrix is then one matrix product. The
numbers are added in the order of the plain algorithm: the bits are the same.

References:
    Venkataraman, Sahni & Mukhopadhyaya 2003, "A blocked all-pairs shortest-paths
    algorithm", ACM J. Experimental Algorithmics 8, 2.2 (another order of sums).
"""

import functools

import jax
import jax.numpy as jnp
from jax.core import Tracer

from ._jax_product import faster, matmul, pick, zero

# Vertices of one block: the matrix is read and written once for each.
_BLOCK = 32


def closure(d: jax.Array, kind: str) -> jax.Array:
    """All best walks; cycles that gain are looked for afterwards.

    Raises:
        ValueError: there is such a cycle.
    """
    out, cycles = _closure(d, kind)
    if not isinstance(cycles, Tracer) and bool(cycles.any()):
        vertex = int((cycles != 0).argmax())  # later ones may be walks around it
        raise ValueError(
            f"vertex {vertex} lies on a cycle of weight {cycles[vertex].item()}, which "
            "gets better with every round: there is no best walk."
        )
    return out


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
@functools.partial(jax.jit, static_argnums=1)
def _closure(d: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """The closure, and what the best cycle through each vertex weighs; 0 if sound."""
    n = d.shape[0]
    blocks, rest = divmod(n, _BLOCK)

    def body(
        i: jax.Array, state: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return _through(state, i * _BLOCK, _BLOCK, kind)

    state = _standing_still(d, kind), jnp.zeros(n, d.dtype)
    if blocks:
        state = jax.lax.fori_loop(0, blocks, body, state)
    return _through(state, blocks * _BLOCK, rest, kind) if rest else state


def _through(
    state: tuple[jax.Array, jax.Array], start: "int | jax.Array", width: int, kind: str
) -> tuple[jax.Array, jax.Array]:
    """Let walks pass through the vertices from `start` on, `width` of them."""
    out, cycles = state
    block = lambda x, axis=0: jax.lax.dynamic_slice_in_dim(x, start, width, axis)

    def vertex(
        both: tuple[jax.Array, jax.Array], k: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
        columns, rows = both
        into, from_it = columns[k], rows[k]
        columns = faster(kind, columns, block(from_it)[:, None] + into[None])
        rows = faster(kind, rows, block(into)[:, None] + from_it[None])
        return (columns, rows), (into, from_it, into[start + k])

    # Two arrays of long rows: stacked in one, XLA takes five times as long.
    both = block(out, axis=1).T, block(out, axis=0)
    _, (into, from_it, turns) = jax.lax.scan(vertex, both, jnp.arange(width))
    out = faster(kind, out, matmul(into.T, from_it, kind))
    return out, jax.lax.dynamic_update_slice_in_dim(cycles, turns, start, 0)


@_closure.defjvp
def _closure_jvp(
    kind: str, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[tuple[jax.Array, ...], tuple[object, ...]]:
    """The tangent of a best walk is the sum of those of its steps.

    Walks are followed from their ends, twice as far in each round.
    """
    (d,), (change,) = primals, tangents
    out, cycles = _closure(d, kind)
    n = d.shape[0]
    before = _vertex_before(d, kind)
    total = jnp.take_along_axis(change, before, axis=0)
    total = jnp.where(jnp.eye(n, dtype=bool), 0, total)
    for _ in range((n - 1).bit_length()):
        total = total + jnp.take_along_axis(total, before, axis=1)
        before = jnp.take_along_axis(before, before, axis=1)
    total = jnp.where(out == zero(kind, out), 0, total)
    # Cycles are looked at and never answered: they have no tangent of use.
    return (out, cycles), (total, jnp.zeros_like(cycles))


def _vertex_before(d: jax.Array, kind: str) -> jax.Array:
    """The vertex before the last on the best walk from `i` to `j`; `i` where none."""
    n = d.shape[0]

    def body(
        k: jax.Array, state: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        out, before = state
        through = out[:, k, None] + out[None, k]
        gain = through > out if kind == "max" else through < out
        return jnp.where(gain, through, out), jnp.where(gain, before[k], before)

    start = jnp.broadcast_to(jnp.arange(n)[:, None], (n, n))
    return jax.lax.fori_loop(0, n, body, (_standing_still(d, kind), start))[1]


def _standing_still(d: jax.Array, kind: str) -> jax.Array:
    """The single steps, or none: staying where one is costs 0."""
    on = jnp.eye(d.shape[0], dtype=bool)
    return jnp.where(on, pick(kind)(d, jnp.zeros_like(d)), d)
