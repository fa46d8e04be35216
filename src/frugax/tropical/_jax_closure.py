"""The tropical closure (all-pairs best paths) in JAX, by blocked Floyd-Warshall.

A vertex updates all pairs with the sum of its column and its row, as they were at its
turn. So only the rows and columns of a block of vertices are updated one vertex at a
time; the update of the whole matrix by the block is then one matrix product. All sums
are those of the plain algorithm, so the result has the same bits.

References:
    Venkataraman, Sahni & Mukhopadhyaya 2003, "A blocked all-pairs shortest-paths
    algorithm", ACM J. Experimental Algorithmics 8, 2.2 (another order of sums).
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Int, Num

from ._jax_product import is_better, matmul, optimum, select, zero

# Vertices in one block: the whole matrix is read and written once per block. A product
# of 32 terms is two passes of `_jax_product`.
_BLOCK = 32


# Differentiated as a loop, it would store the whole matrix for each block.
@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
@functools.partial(jax.jit, static_argnums=1)
def closure_and_cycles(
    d: Num[jax.Array, "n n"], kind: str
) -> tuple[Num[jax.Array, "n n"], Num[jax.Array, " n"]]:
    """Return the closure, and the optimal cycle weight of each vertex; 0 if valid."""
    n = d.shape[0]
    blocks, rest = divmod(n, _BLOCK)

    def body(
        i: jax.Array, state: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        return _update_block(state, i * _BLOCK, _BLOCK, kind)

    state = _with_empty_walks(d, kind), jnp.zeros(n, d.dtype)
    if blocks:
        state = jax.lax.fori_loop(0, blocks, body, state)
    if rest:
        state = _update_block(state, blocks * _BLOCK, rest, kind)
    return state


def _update_block(
    state: tuple[jax.Array, jax.Array],
    start: "int | jax.Array",
    width: int,
    kind: str,
) -> tuple[jax.Array, jax.Array]:
    """Allow walks through `width` more vertices, beginning at `start`."""
    out, cycles = state
    block = lambda x, axis=0: jax.lax.dynamic_slice_in_dim(x, start, width, axis)

    def vertex(
        both: tuple[jax.Array, jax.Array], k: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
        columns, rows = both
        into, from_it = columns[k], rows[k]
        columns = select(kind, columns, block(from_it)[:, None] + into[None])
        rows = select(kind, rows, block(into)[:, None] + from_it[None])
        # The weight of the best cycle through the vertex comes last: it is 0 unless the
        # cycle improves, because the empty walk counts.
        return (columns, rows), (into, from_it, into[start + k])

    # Two arrays with long rows: stacked into one, XLA takes five times as long.
    both = block(out, axis=1).T, block(out, axis=0)
    _, (into, from_it, turns) = jax.lax.scan(vertex, both, jnp.arange(width))
    out = select(kind, out, matmul(into.T, from_it, kind))
    return out, jax.lax.dynamic_update_slice_in_dim(cycles, turns, start, 0)


@closure_and_cycles.defjvp
def _closure_jvp(
    kind: str, primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, ...]]:
    """Sum the tangents of the steps of each optimal walk.

    Walks are followed from their ends by pointer doubling: each round doubles the
    number of steps, so log2(n) gathers replace a loop over n steps.
    """
    (d,), (change,) = primals, tangents
    out, cycles = closure_and_cycles(d, kind)
    n = d.shape[0]
    before = predecessors(d, kind)
    total = jnp.take_along_axis(change, before, axis=0)
    total = jnp.where(jnp.eye(n, dtype=bool), 0, total)
    # An optimal walk visits no vertex twice, so it has at most n - 1 steps (Butkovic
    # 2010, chapter 1: the Kleene star ends with the power n - 1).
    for _ in range((n - 1).bit_length()):
        total = total + jnp.take_along_axis(total, before, axis=1)
        before = jnp.take_along_axis(before, before, axis=1)
    # Where j cannot be reached from i, the result is constant.
    total = jnp.where(out == zero(kind, out), 0, total)
    # The cycle weights only serve the check above: their tangent is not used.
    return (out, cycles), (total, jnp.zeros_like(cycles))


@functools.partial(jax.jit, static_argnums=1)
def predecessors(d: Num[jax.Array, "n n"], kind: str) -> Int[jax.Array, "n n"]:
    """Return the vertex before j on the optimal walk from i to j; i for no walk."""
    n = d.shape[0]

    def body(
        k: jax.Array, state: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        out, before = state
        through = out[:, k, None] + out[None, k]
        better = is_better(kind, through, out)
        return jnp.where(better, through, out), jnp.where(better, before[k], before)

    start = jnp.broadcast_to(jnp.arange(n)[:, None], (n, n))
    if not n:  # no vertex to index even in a loop of no rounds
        return start
    return jax.lax.fori_loop(0, n, body, (_with_empty_walks(d, kind), start))[1]


def _with_empty_walks(d: Num[jax.Array, "n n"], kind: str) -> Num[jax.Array, "n n"]:
    """Add the empty walks, which cost 0, to the single steps."""
    on = jnp.eye(d.shape[0], dtype=bool)
    return jnp.where(on, optimum(kind)(d, jnp.zeros_like(d)), d)
